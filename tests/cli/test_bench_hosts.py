"""Emulated hosts: the exchange goes through their network, and nothing is left of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distributed_embeddings.cli.bench import hosts
from distributed_embeddings.cli.bench.hosts import EmulatedHosts, missing

WORKER = Path(__file__).with_name("hosts_worker.py")
needs_hosts = pytest.mark.usefixtures("possible")

# A parent that is told to do nothing about its end.
PARENT = """
import sys
from distributed_embeddings.cli.bench.hosts import EmulatedHosts

with EmulatedHosts() as hosts:
    hosts.launch([sys.executable, *sys.argv[1:]], 2)
"""
SLEEP = "import sys, time; open(f'{sys.argv[1]}/{time.monotonic_ns()}', 'w'); time.sleep(600)"


@pytest.fixture(scope="module")
def possible() -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)


def processes_with(text: str) -> list[int]:
    """Process ids whose command line holds `text`, without this process."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in file.read_bytes().decode(errors="replace") and int(file.parent.name) != os.getpid():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("cores", "count", "shares"),
    [
        ([0, 1], 2, ["0", "1"]),
        ([0, 2, 4, 6, 7], 2, ["0,2", "4,6,7"]),
        ([3], 2, ["3", "3"]),
        ([0, 1], 3, ["0,1"] * 3),
    ],
)
def test_cores_are_divided(cores, count, shares):
    assert hosts._shares(cores, count) == shares


def networks(text: str = "") -> set[str]:
    """Network namespaces, without our own, of the processes whose command line holds `text`."""
    found = set()
    for number in processes_with(text):
        with contextlib.suppress(OSError):  # it has just ended
            found.add(os.readlink(f"/proc/{number}/ns/net"))
    return found - {os.readlink("/proc/self/ns/net")}


def networks_of(emulated: EmulatedHosts) -> set[str]:
    """Those of the switch and of the hosts."""
    files = [Path(f"/proc/{emulated._machine.pid}"), *map(emulated._proc, range(emulated.count))]
    return {os.readlink(file / "ns/net") for file in files}


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.05)


@needs_hosts
def test_two_workers_exchange_through_the_network(tmp_path):
    with EmulatedHosts() as emulated:
        inside = networks_of(emulated)
        start = emulated.sent_bytes()
        status = emulated.launch([sys.executable, str(WORKER), str(tmp_path)], 2, timeout=100)
        sent = [end - begin for begin, end in zip(start, emulated.sent_bytes(), strict=True)]
    assert status == 0
    places = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert all(place["right"] for place in places)
    assert [place["local"] for place in places] == [[0, 1], [0, 1]]
    assert places[0]["host"] != places[1]["host"]
    ours = os.sched_getaffinity(0)
    first, second = (set(place["cores"]) for place in places)
    assert first | second == ours
    assert len(ours) < 2 or not first & second
    assert all(1_000_000 < count < 1_500_000 for count in sent)  # its megabyte for the other, and headers
    assert len(inside) == 3
    assert not inside & networks()
    assert not processes_with(str(tmp_path))
    assert not {"switch", "port1", "port2"} & set(os.listdir("/sys/class/net"))


@needs_hosts
def test_four_workers_are_two_a_host(tmp_path):
    code = (
        "import os, socket, sys; from distributed_embeddings.comm import detect; c = detect(); "
        "open(f'{sys.argv[1]}/{c.rank}', 'w').write(f'{c.local_rank} {c.local_size} {socket.gethostname()}')"
    )
    with EmulatedHosts() as emulated:
        assert emulated.launch([sys.executable, "-c", code, str(tmp_path)], 4, timeout=100) == 0
    places = [(tmp_path / str(rank)).read_text().split() for rank in range(4)]
    assert [place[:2] for place in places] == [["0", "2"], ["1", "2"], ["0", "2"], ["1", "2"]]
    names = [place[2] for place in places]
    assert names[0] == names[1] != names[2] == names[3]


@needs_hosts
def test_status_and_timeout(tmp_path):
    with EmulatedHosts() as emulated:
        failing = "import os, sys; sys.exit(7 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else 0)"
        assert emulated.launch([sys.executable, "-c", failing], 2, timeout=100) == 7
        with open(os.devnull, "w") as nowhere:
            command = [sys.executable, "-c", SLEEP, str(tmp_path)]
            assert emulated.launch(command, 2, timeout=3, stderr=nowhere) == 124
    assert len(list(tmp_path.iterdir())) == 2
    assert not processes_with(str(tmp_path))


@needs_hosts
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_parent_that_is_killed(tmp_path, number):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "-c", SLEEP, str(tmp_path)])
    try:
        wait_until(lambda: parent.poll() is not None or len(list(tmp_path.iterdir())) == 2)
        inside = networks(f"demb-{parent.pid}-") | networks(str(tmp_path))  # the switch's, and the workers'
        assert len(inside) == 3
        parent.send_signal(number)
        assert parent.wait(60) == -number
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not processes_with(str(tmp_path)))
    wait_until(lambda: not inside & networks())


@needs_hosts
def test_an_error_inside_takes_the_hosts_away():
    with pytest.raises(RuntimeError, match="ours"), EmulatedHosts("100mbit", count=3) as emulated:
        inside = networks_of(emulated)
        raise RuntimeError("ours")
    assert len(inside) == 4
    assert not inside & networks()


@needs_hosts
def test_fewer_workers_than_hosts_are_refused():
    with EmulatedHosts() as emulated, pytest.raises(ValueError, match=r"at least 2, one a host.*workers=1"):
        emulated.command(["true"], 1)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"`rate` must be .*rate='fast'"):
        EmulatedHosts("fast")
    with pytest.raises(ValueError, match=r"`count` must be .*count=1"):
        EmulatedHosts(count=1)


def test_a_burst_is_short_and_holds_a_packet():
    for rate, bytes_a_second in (
        ("10mbit", 1.25e6),
        ("100mbit", 1.25e7),
        ("1gbit", 1.25e8),
        ("10gbit", 1.25e9),
    ):
        burst, packet = hosts._bucket(rate)
        assert 1514 < packet < burst
        assert burst <= max(6144, bytes_a_second * 1e-3)


def test_without_root_the_reason_says_so(monkeypatch):
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 1000)
    assert missing() == (
        "emulated hosts need root, for network namespaces; this process runs as user id 1000"
    )


def test_without_iproute2_the_reason_names_it(monkeypatch):
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosts.shutil, "which", lambda name: None if name == "tc" else f"/bin/{name}")
    assert missing() == "emulated hosts need tc in PATH: install iproute2 and util-linux"


@needs_hosts
def test_what_the_kernel_says_is_the_reason(monkeypatch):
    monkeypatch.setattr(hosts, "_SETUP", hosts._SETUP.replace("type bridge", "type unheard-of"))
    said = missing()
    assert said is not None
    assert said.startswith("emulated hosts cannot be made here: ")
    assert "unheard-of" in said or "Unknown" in said
