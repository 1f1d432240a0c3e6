"""From what a person types to files: braces, globs, lists."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path


def expand_paths(patterns: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Files named by one or more patterns, in the order given (matches of one glob: sorted).

    `{a,b}` (nesting allowed) is expanded here, not by a shell; then `*`, `?`, `[…]` and `**`. A path that
    exists as written is taken as written. Raises FileNotFoundError naming the pattern that matches no file.
    """
    listed = [patterns] if isinstance(patterns, str | os.PathLike) else list(patterns)
    if not listed:
        raise FileNotFoundError("At least one file or pattern must be given. Received: an empty list.")
    return [path for pattern in listed for path in _expand_one(os.path.expanduser(os.fspath(pattern)))]


def _expand_one(pattern: str) -> list[Path]:
    if Path(pattern).is_file():
        return [Path(pattern)]
    found: list[Path] = []
    for alternative in expand_braces(pattern):
        if Path(alternative).is_file():
            found.append(Path(alternative))
            continue
        matches = [Path(match) for match in sorted(glob.glob(alternative, recursive=True))]
        files = [match for match in matches if match.is_file()]
        if not files:
            origin = "" if alternative == pattern else f" (from {pattern!r})"
            what = "is a directory: name its files, for instance with '/*'" if matches else "matches no file"
            raise FileNotFoundError(f"{alternative!r}{origin} {what}. Working directory: {os.getcwd()!r}.")
        found += files
    # '{a*,*b}' may name a file twice; a row is to be read once.
    return list(dict.fromkeys(found))


def expand_braces(pattern: str) -> list[str]:
    """'x{a,b{1,2}}' → ['xa', 'xb1', 'xb2']; braces without a comma or a partner stay as they are."""
    for start, character in enumerate(pattern):
        if character == "{":
            pieces = _alternatives(pattern, start)
            if pieces is not None:
                choices, end = pieces
                return [
                    pattern[:start] + rest
                    for choice in choices
                    for rest in expand_braces(choice + pattern[end:])
                ]
    return [pattern]


def _alternatives(pattern: str, start: int) -> tuple[list[str], int] | None:
    """The choices of the brace opened at `start` and the position after its end; None if it is no list."""
    depth, piece_start = 0, start + 1
    choices: list[str] = []
    for position in range(start, len(pattern)):
        character = pattern[position]
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        if (character == "," and depth == 1) or depth == 0:
            choices.append(pattern[piece_start:position])
            piece_start = position + 1
        if depth == 0:
            return (choices, position + 1) if len(choices) > 1 else None
    return None
