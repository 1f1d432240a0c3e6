"""Waits report, give up, and stay silent when nobody is late."""

from __future__ import annotations

import itertools
import math
import time

import pytest

from distributed_embeddings.comm import CommunicationError
from distributed_embeddings.comm.waiting import Waiter


def test_returns_when_done(capsys: pytest.CaptureFixture[str]) -> None:
    calls = itertools.count()
    Waiter(0, 10, 10).wait(lambda: next(calls) >= 3, "all_reduce 'x' (operation 1)", lambda: [1])
    assert next(calls) == 4
    assert capsys.readouterr().err == ""


def test_watchdog_doubles_and_deadline_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommunicationError) as error:
        Waiter(3, 0.02, 0.2).wait(lambda: False, "all_to_all 'ids' (operation 17)", lambda: [0, 2])
    waits = "rank 3 is in all_to_all 'ids' (operation 17) and waits for rank(s) 0, 2 since "
    assert waits in str(error.value)
    assert "DEMB_DEADLINE_SECONDS=0.2" in str(error.value)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 4  # at 0.02, 0.04, 0.08 and 0.16 s at most
    assert all(line.startswith(f"[demb rank 3] watchdog: {waits}") for line in lines)


def test_without_deadline_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    end = time.monotonic() + 0.1
    Waiter(0, 0.02, 0.01).wait(lambda: time.monotonic() > end, "shutdown", lambda: [1], deadline=math.inf)
    assert "watchdog" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["DEMB_WATCHDOG_SECONDS", "DEMB_DEADLINE_SECONDS"])
@pytest.mark.parametrize("value", ["x", "0", "-1", "nan"])
def test_malformed_environment(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=rf"`{name}`.*{value!r}"):
        Waiter(0)
