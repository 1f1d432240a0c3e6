"""The one error of this room."""

from __future__ import annotations


class CommunicationError(RuntimeError):
    """A peer is lost, late beyond the deadline, or in another operation. Names ranks, phases and numbers.

    fatal: messages may still be under way or a rank is gone; no operation can follow. Otherwise every rank
    has raised at the same place and the job may go on.
    """

    def __init__(self, message: str, *, fatal: bool = True) -> None:
        super().__init__(message)
        self.fatal = fatal
