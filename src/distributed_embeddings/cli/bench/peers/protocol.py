"""The worker's side: one JSON line in, one JSON line out, until stdin ends. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any]]
Step = Callable[[int], object]


def serve(start: Callable[[dict[str, Any]], tuple[dict[str, Any], Answer]]) -> None:
    """Answer requests. What is under "start" is given to `start`, which returns its answer and a function for all
    other requests; null drops what was started before, as another start does first, and is answered by memory.

    Whatever else the program prints goes to stderr: stdout carries answers only. An exception is answered by
    {"error": …}, and the process goes on.
    """
    # When memory ends, the system ends this process and not whoever started it.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    # Libraries write to descriptor 1 too, not only to sys.stdout.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answer: Answer | None = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if "start" in request:
                answer = None
                said, answer = _started(start, request["start"])
            elif answer is None:
                raise ValueError(f"`start` must be asked first. Received: {request}")
            else:
                said = answer(request)
        except Exception as error:
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answers, flush=True)


def _started(start: Any, case: dict[str, Any] | None) -> tuple[dict[str, Any], Answer | None]:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return (memory(), None) if case is None else start(case)


def answer_runs(steps: dict[str, Step], pool: int, per_call: int = 1) -> Answer:
    """Answers {"run": phase, "count": n} by {"seconds": [n]} and {"memory": "now" | "reset"} by resident bytes.

    steps[phase](i): per_call whole steps from prepared batch i of `pool` on. Batches take turns over all phases, so
    that none is fresher in the caches than a new one would be.
    """
    state = {"next": 0}

    def one(step: Step) -> float:
        batch = state["next"] % pool
        state["next"] += per_call
        start = time.perf_counter()
        step(batch)
        return (time.perf_counter() - start) / per_call

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "memory" in request:
            return memory(reset=request["memory"] == "reset")
        return {"seconds": [one(steps[request["run"]]) for _ in range(int(request.get("count", 1)))]}

    return answer


def memory(reset: bool = False) -> dict[str, int]:
    """Resident and peak resident bytes of this process; reset: the peak begins anew."""
    if reset:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    fields = {}
    with open("/proc/self/status") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                fields[name] = int(value.split()[0]) * 1024
    return {"resident": fields.get("VmRSS", 0), "peak": fields.get("VmHWM", 0)}
