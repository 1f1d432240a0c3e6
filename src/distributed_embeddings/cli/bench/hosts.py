"""Hosts emulated on this machine: the workers of an MPI job in network namespaces that a slow network joins."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from distributed_embeddings.comm.launch_mpi import find_mpirun
from distributed_embeddings.comm.launch_processes import end_group

_PROGRAMS = ("ip", "tc", "mount", "unshare", "nsenter", "taskset")
_NETWORK = "10.77.0"  # seen by nobody outside: jobs side by side use the same addresses
_GRACE = 10.0
_instances = itertools.count()

# The machine the hosts stand in: process 1 of a process namespace, so that nothing of a job outlives it, and a network
# namespace for the switch. A host is a network, a name and a /dev/shm, held by a process that sleeps, and a cable
# (veth) to the switch with the rate at both ends. $1: what the hosts' names begin with, $2: rate, $3: burst, $4:
# largest packet, then each host's cores. Prints the hosts' process ids, then waits for the end of its input.
_SETUP = r"""
set -e
name=$1 rate=$2 burst=$3 packet=$4
shift 4
ip link add switch type bridge
ip link set switch up
i=0
for cores in "$@"; do
    i=$((i + 1))
    pid=$(unshare --net --uts --mount sh -ec '
        mount -t tmpfs tmpfs /dev/shm
        echo "$0" > /proc/sys/kernel/hostname
        sleep infinity > /dev/null &
        echo $!' "$name-$i")
    ip link add "port$i" gso_max_size "$packet" type veth peer name eth0 gso_max_size "$packet" netns "$pid"
    ip link set "port$i" master switch up
    tc qdisc add dev "port$i" root tbf rate "$rate" burst "$burst" latency 50ms
    nsenter --target "$pid" --net sh -ec '
        ip link set lo up
        ip address add "$0/24" dev eth0
        ip link set eth0 up
        tc qdisc add dev eth0 root tbf rate "$1" burst "$2" latency 50ms' "NETWORK.$i" "$rate" "$burst"
    pids="$pids $pid"
    cases="$cases NETWORK.$i) pid=$pid cores=$cores;;"
done
# What mpirun calls instead of ssh: AGENT HOST COMMAND. Its daemons want it too, else they crash.
for pid in $pids; do
    nsenter --target "$pid" --mount sh -ec 'printf "%s\n" "$0" > AGENT; chmod +x AGENT' \
"#!/bin/sh
case \$1 in $cases esac
shift
exec taskset --cpu-list \$cores nsenter --target \$pid --net --uts --mount sh -c \"\$*\""
done
echo $pids
exec cat
"""
_AGENT = "/dev/shm/to-host"

_SETTINGS = {
    "PRTE_MCA_plm_ssh_agent": _AGENT,
    # Session directories are named by process ids, and those of two process namespaces are alike: not in /tmp.
    "PRTE_MCA_prte_tmpdir_base": "/dev/shm",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    # By default the rest of a long message goes as one piece, and what tells the peer to begin with its own waits
    # behind it on the same connection: four in ten exchanges of 8 MiB took twice as long.
    "OMPI_MCA_btl_tcp_flags": "send",
    # By default the kernel takes as much as 4 MiB of a bulky message, 32 ms at 1 Gbit/s, and what little the dense
    # layers send waits behind it.
    "OMPI_MCA_btl_tcp_sndbuf": "212992",
}


def missing() -> str | None:
    """Return why hosts cannot be emulated here, None when they can: makes some, and takes them away."""
    if os.geteuid() != 0:
        return (
            f"emulated hosts need root, for network namespaces; this process runs as user id {os.geteuid()}"
        )
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"emulated hosts need {', '.join(absent)} in PATH: install iproute2 and util-linux"
    try:
        find_mpirun()
        EmulatedHosts().close()
    except OSError as error:
        return str(error)
    return None


class EmulatedHosts:
    """`count` hosts at one switch, each with a full-duplex cable of `rate` to it. Use as a context manager.

    rate: bits a second as tc writes them: "1gbit", "100mbit". Workers on different hosts exchange over TCP through
    that network, workers on one host through shared memory. This process's cores are divided among the hosts, if there
    are enough. Needs root and iproute2 (`missing`).
    Nothing is left when this process ends, however it ends: the hosts live as long as a pipe from here is open, and
    the kernel takes links, namespaces and processes with them (a child forked without exec keeps it open too).
    Raises ValueError for wrong arguments, OSError with the kernel's words where it refuses.
    """

    def __init__(self, rate: str = "1gbit", count: int = 2) -> None:
        if not 2 <= count <= 200:
            raise ValueError(f"`count` must be at least 2 and at most 200 hosts. Received: count={count}")
        burst, packet = _bucket(rate)
        self.count = count
        self._cores = _shares(sorted(os.sched_getaffinity(0)), count)
        name = f"demb-{os.getpid()}-{next(_instances)}"
        script = _SETUP.replace("NETWORK", _NETWORK).replace("AGENT", _AGENT)
        command = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                   "sh", "-c", script, "sh", name, rate, str(burst), str(packet), *self._cores]  # fmt: skip
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            self._machine = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # a Ctrl-C is for this process, which then closes the hosts
            )
            try:
                self._hosts = self._started(errors)
            except BaseException:
                self.close()
                raise

    def command(self, command: Sequence[str], workers: int, timeout: float | None = None) -> list[str]:
        """Return what runs `command` on `workers` processes, spread over the hosts: `demb launch` on the first one.

        Rank 0 is on the first host and gets the standard input. timeout: seconds, then all is ended with status 124.
        Raises ValueError when there are fewer workers than hosts.
        """
        if workers < self.count:
            raise ValueError(
                f"`workers` must be at least {self.count}, one a host. Received: workers={workers}"
            )
        shares = [(workers + i) // self.count for i in reversed(range(self.count))]
        hosts = ",".join(f"{_NETWORK}.{i}:{n}" for i, n in enumerate(shares, 1))
        first = f"{self._proc(0)}/ns"
        return [
            "taskset", "--cpu-list", self._cores[0], "nsenter", f"--pid=/proc/{self._machine.pid}/ns/pid_for_children",
            f"--net={first}/net", f"--uts={first}/uts", f"--mount={first}/mnt",
            "env", f"--chdir={os.getcwd()}", *(f"{name}={value}" for name, value in _SETTINGS.items()),
            sys.executable, "-m", "distributed_embeddings.cli.main", "launch", "-n", str(workers), "--hosts", hosts,
            *(() if timeout is None else ("--timeout", str(timeout))),
            "--", *command,
        ]  # fmt: skip

    def launch(
        self,
        command: Sequence[str],
        workers: int,
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
    ) -> int:
        """Run `command` on `workers` processes over the hosts; arguments and status as of `comm.launch`."""
        process = subprocess.Popen(
            self.command(command, workers, timeout),
            env={**os.environ, **(env or {})},
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            status = process.wait()
            return status if status >= 0 else 128 - status
        finally:
            end_group([process])

    def sent_bytes(self) -> list[int]:
        """Return what each host has sent to the others so far, in bytes with all headers."""
        return [_sent((self._proc(i) / "net/dev").read_text()) for i in range(self.count)]

    def close(self) -> None:
        """End all processes on the hosts, and with them the hosts."""
        with contextlib.suppress(BrokenPipeError):
            self._machine.stdin.close()  # type: ignore[union-attr]
        try:
            self._machine.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._machine.kill()
            self._machine.wait()
        self._machine.stdout.close()  # type: ignore[union-attr]

    def __enter__(self) -> EmulatedHosts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _started(self, errors: IO[str]) -> list[str]:
        """Wait for the machine; the hosts' process ids in its namespace."""
        hosts = self._machine.stdout.readline().split()  # type: ignore[union-attr]
        if len(hosts) != self.count:
            self._machine.wait(_GRACE)
            errors.seek(0)
            said = "; ".join(errors.read().split("\n")).strip("; ")
            raise OSError(f"emulated hosts cannot be made here: {said or 'no reason was given'}")
        return hosts

    def _proc(self, host: int) -> Path:
        return Path(f"/proc/{self._machine.pid}/root/proc/{self._hosts[host]}")


def _shares(cores: Sequence[int], count: int) -> list[str]:
    """Each host's cores, as taskset wants them: its own, or all where there are fewer cores than hosts."""
    if len(cores) < count:
        return [",".join(map(str, cores))] * count
    cuts = [len(cores) * i // count for i in range(count + 1)]
    return [",".join(map(str, cores[a:b])) for a, b in itertools.pairwise(cuts)]


def _bucket(rate: str) -> tuple[int, int]:
    """Burst and largest packet, in bytes, of a token bucket of `rate`.

    A burst passes at once after a pause, so it is short: 1 ms. (At 200 µs the bucket's timers took a tenth more of the
    processor time of a step.) No packet may be larger, else the kernel cuts it into those of the wire, which costs a
    fifth of 1 Gbit/s in two directions; hence 64 KiB at most.
    """
    match = re.fullmatch(r"([1-9]\d*)([kmg])bit", rate)
    if match is None:
        raise ValueError(
            f'`rate` must be a number with kbit, mbit or gbit, as "1gbit". Received: rate={rate!r}'
        )
    bits = int(match[1]) * {"k": 10**3, "m": 10**6, "g": 10**9}[match[2]]
    burst = max(6144, bits // 8 // 1000)
    return burst, min(65536, burst * 2 // 3)


def _sent(table: str) -> int:
    """Bytes sent by eth0, of a text of /proc/net/dev."""
    line = next(line for line in table.splitlines() if line.strip().startswith("eth0:"))
    return int(line.partition(":")[2].split()[8])
