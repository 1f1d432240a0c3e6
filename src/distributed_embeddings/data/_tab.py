"""Small tab-separated files with a header line: fields with their line numbers, errors as `path:LINE: …`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def read_tab(path: Path, header: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """(line number from 1, fields) of each line after the header; blank lines are skipped.

    The header's names must be `header`; a type after a colon ("user_id:token") is not looked at.
    Raises ValueError `path:LINE: …` for another header, another number of fields or text that is not UTF-8.
    """
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(_decoded(path, file), 1):
            fields = line.rstrip("\r\n").split("\t")
            if number == 1:
                if tuple(name.split(":")[0] for name in fields) != header:
                    raise ValueError(
                        f"{path}:1: the header must be {' '.join(header)}. Received: {' '.join(fields)!r}."
                    )
            elif fields != [""]:
                if len(fields) != len(header):
                    raise ValueError(
                        f"{path}:{number}: a row must have {len(header)} fields. Received: {len(fields)}."
                    )
                yield number, fields


def to_float(path: Path, line: int, name: str, text: str) -> float:
    """`text` as a finite number. Raises ValueError `path:LINE: …`."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ValueError(f"{path}:{line}: {name} must be a number. Received: {text!r}.")
    return value


def _decoded(path: Path, lines: Iterator[str]) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: the file must be UTF-8 text. Received: {error}.") from error
