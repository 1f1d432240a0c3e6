"""A competitor: a live process that answers one JSON line with one JSON line, and idles in between."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_GRACE = 10.0
"""Seconds between being told to stop and being killed."""


class WorkerError(RuntimeError):
    """A competitor ended, answered with an error, or did not answer in time."""


class Worker:
    """A process asked over stdin and stdout. Use as a context manager: leaving it ends the process and its children.

    command: the program and its arguments. env: variables on top of this process's own; None takes one away.
    The program answers each line of stdin by one line of JSON on stdout and ends at the end of stdin; see
    `peers/protocol.py`. What it writes to stderr is kept for errors.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the process
        merged = {**os.environ, **(env or {})}
        # A session of its own: a worker's own children (Gloo processes, mpirun) end with it.
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={k: v for k, v in merged.items() if v is not None},
            cwd=cwd,
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, request: Mapping[str, Any], timeout: float = 600.0) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises WorkerError with what the process said on stderr."""
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError as error:
            raise self._error("ended before it was asked") from error
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self._error(f"gave no answer in {timeout:g} s") from None
        if line is None:
            raise self._error("ended without an answer")
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            raise self._error(f"answered no JSON: {line[:200]!r}") from None
        if "error" in answer:
            raise self._error(f"failed: {answer['error']}")
        return dict(answer)

    def close(self) -> None:
        """End the process: at the end of its input it stops by itself, else it is killed with its children."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._reader.join(_GRACE)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(None)

    def _error(self, what: str) -> WorkerError:
        # Read through a copy of its own offset: the process may still be writing.
        size = os.fstat(self._errors.fileno()).st_size
        tail = os.pread(self._errors.fileno(), 4000, max(0, size - 4000)).decode(errors="replace").strip()
        return WorkerError(f"{self.name} {what}" + (f"\n{tail}" if tail else ""))
