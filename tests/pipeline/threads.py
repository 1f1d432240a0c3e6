"""Calls in another thread, and what became of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

LONG = 20.0  # seconds; nothing takes that long, unless it hangs


def started(call: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Run a call in a thread that does not keep the process alive."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def blocked(future: Future[Any], seconds: float = 0.05) -> bool:
    """Whether a call still waits after a while."""
    try:
        future.exception(seconds)
    except TimeoutError:
        return True
    return False
