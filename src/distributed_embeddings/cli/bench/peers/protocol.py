"""The worker's side: one JSON line in, one JSON line out, until stdin ends. Standard library only."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def serve(start: Callable[[dict[str, Any]], tuple[dict[str, Any], Answer]]) -> None:
    """Answer requests. The first one is given to `start`, which returns its answer and a function for all others.

    Whatever else the program prints goes to stderr: stdout carries answers only. An exception is answered by
    {"error": …}, and the process goes on.
    """
    # Libraries write to descriptor 1 too, not only to sys.stdout.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answer: Answer | None = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if answer is None:
                said, answer = start(request)
            else:
                said = answer(request)
        except Exception as error:
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answers, flush=True)


def answer_runs(steps: dict[str, Callable[[int], None]], pool: int) -> Answer:
    """Answers {"run": phase, "count": n} by {"seconds": [n]} and {"memory": …} by this process's resident bytes.

    steps[phase](i): one whole step on prepared batch i of `pool`. Batches take turns over all phases, so that none
    is fresher in the caches than a new one would be.
    """
    state = {"next": 0}

    def one(step: Callable[[int], None]) -> float:
        batch = state["next"] % pool
        state["next"] += 1
        start = time.perf_counter()
        step(batch)
        return time.perf_counter() - start

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "memory" in request:
            return memory()
        return {"seconds": [one(steps[request["run"]]) for _ in range(int(request.get("count", 1)))]}

    return answer


def memory() -> dict[str, int]:
    """Resident and peak resident bytes of this process."""
    fields = {}
    with open("/proc/self/status") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                fields[name] = int(value.split()[0]) * 1024
    return {"resident": fields.get("VmRSS", 0), "peak": fields.get("VmHWM", 0)}
