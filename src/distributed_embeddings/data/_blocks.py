"""Text files as blocks of whole lines with their line numbers, plain or gzip, in bounded memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of a file; `first_line` counts from 1. The file's last line may lack its newline."""

    path: Path
    first_line: int
    data: bytes


def read_blocks(path: Path, block_bytes: int) -> Iterator[TextBlock]:
    """The file's lines in blocks of about `block_bytes`; a line longer than that is an error.

    Gzip is told by its first two bytes, not by the name. A UTF-8 byte order mark is dropped.
    Raises ValueError `path:LINE: …` for such a line and for a truncated or damaged gzip file.
    """
    line, rest = 1, b""
    with _open(path) as file:
        while True:
            try:
                piece = file.read(block_bytes)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(
                    f"{path}:{line}: the gzip file must be whole, but ends or is damaged here. "
                    f"Received: {error}."
                ) from error
            if not piece:
                break
            if line == 1 and not rest:
                piece = piece.removeprefix(_BOM)
            end = piece.rfind(b"\n") + 1
            if end == 0:
                rest += piece
                if len(rest) > block_bytes:
                    raise ValueError(
                        f"{path}:{line}: a line must fit into a block of {block_bytes} bytes. "
                        f"Received: a longer one, beginning {rest[:40]!r}."
                    )
                continue
            data = rest + piece[:end]
            rest = piece[end:]
            yield TextBlock(path, line, data)
            line += data.count(b"\n")
    if rest:
        yield TextBlock(path, line, rest)


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        zipped = file.read(2) == _GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path, "rb")) if zipped else path.open("rb")
