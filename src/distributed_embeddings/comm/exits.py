"""The status this process exits with, known while it exits: atexit handlers are not told."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

_status = 0


class _Exit(SystemExit):
    """What `sys.exit` raises. Somebody may catch it and go on, so only the interpreter's own end of it counts."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        # The interpreter reads `code` (handle_system_exit, pythonrun.c) when no Python frame is left.
        if name == "code" and sys._getframe().f_back is None:
            global _status
            _status = _as_status(value)
        return value


def exit_status() -> int:
    """Return the status of the `sys.exit` that ends this process, 0 … 255; 0 where none does."""
    return _status


def watch_exits() -> None:
    """Note what `sys.exit` is given from now on. A bare `raise SystemExit(3)` passes unseen."""

    def leave(status: Any = None, /) -> NoReturn:
        raise _Exit(status)

    sys.exit = leave


def _as_status(code: Any) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1  # a text is printed, status 1
