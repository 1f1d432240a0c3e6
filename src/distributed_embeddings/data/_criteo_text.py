"""Criteo's text format: blocks of lines to numbers, and what is wrong with a line.

The values always come from Arrow's CSV parser. What it would refuse or read too generously (short rows, bad
lines, hexadecimal or padded integers, lone carriage returns) goes through `_repair`, which checks every
line of the block alone and leaves clean text, or raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from ._blocks import TextBlock

NUM_DENSE = 13
NUM_CATEGORICAL = 26
NUM_FIELDS = 1 + NUM_DENSE + NUM_CATEGORICAL

_NAMES = [
    "label",
    *(f"I{i}" for i in range(1, NUM_DENSE + 1)),
    *(f"C{i}" for i in range(1, NUM_CATEGORICAL + 1)),
]
_TYPES = {name: pa.binary() if name.startswith("C") else pa.int64() for name in _NAMES}
# Criteo's files have no quotes: one in a field is a bad field, not the start of a field of many lines.
_PARSE = csv.ParseOptions(
    delimiter="\t", quote_char=False, double_quote=False, escape_char=False, ignore_empty_lines=True
)
_CONVERT = csv.ConvertOptions(
    column_types=_TYPES, null_values=[""], strings_can_be_null=False, check_utf8=False
)

_GOOD_LINE = re.compile(rb"[01](?:\t(?:-?[0-9]{1,18})?){13}(?:\t[0-9A-Fa-f]{0,8}){26}")
_INTEGER = re.compile(rb"-?[0-9]+")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,8}")

_NIBBLE = np.full(256, 0xFF, np.uint8)
for _digit, _value in zip(b"0123456789abcdefABCDEF", [*range(16), *range(10, 16)], strict=True):
    _NIBBLE[_digit] = _value


@dataclass(frozen=True)
class RawRows:
    """Rows as written.

    labels: float32 [B]. numbers: float64 [B, 13], NaN = missing. categorical: int64 [B, 26], -1 = missing.
    """

    labels: NDArray[np.float32]
    numbers: NDArray[np.float64]
    categorical: NDArray[np.int64]


@dataclass
class LineCounts:
    """What a reader did not take as written: rows padded, rows skipped."""

    padded: int = 0
    skipped: int = 0


class _NotClean(Exception):
    """The block holds something that must be looked at line by line."""


def parse_block(block: TextBlock, *, strict: bool, skip_bad: bool, counts: LineCounts) -> RawRows:
    """All rows of a block, in order.

    Raises ValueError `path:LINE: …` for a bad line, unless skip_bad: then it is left out and counted.
    """
    rows = _try_clean(block.data)
    if rows is None and not strict:
        # Files whose every row was cut at its trailing empties are common: padding alone mends them, and is quick.
        data, padded = _pad_short(block.data)
        rows = _try_clean(data) if padded else None
        counts.padded += padded if rows else 0
    if rows is None:
        lines = _repair(block, strict=strict, skip_bad=skip_bad, counts=counts)
        rows = _parse_clean(b"\n".join(lines)) if lines else _no_rows()
    return rows


def _no_rows() -> RawRows:
    return RawRows(
        np.empty(0, np.float32), np.empty((0, NUM_DENSE)), np.empty((0, NUM_CATEGORICAL), np.int64)
    )


def _try_clean(data: bytes) -> RawRows | None:
    try:
        return _parse_clean(data)
    except _NotClean:
        return None


def _pad_short(data: bytes) -> tuple[bytes, int]:
    """The lines of a block, those with too few fields filled up with empty ones, and how many those were."""
    lines = data.split(b"\n")
    padded = 0
    for i, line in enumerate(lines):
        missing = NUM_FIELDS - 1 - line.count(b"\t")
        if missing > 0:
            line = line.removesuffix(b"\r")
            if line:
                lines[i] = line + b"\t" * missing
                padded += 1
    return b"\n".join(lines), padded


def _parse_clean(data: bytes) -> RawRows:
    # Arrow takes '0x1F' and ' 5' for integers, a lone CR for a line's end and a leading byte order mark for
    # nothing.
    odd = b"x" in data or b"X" in data or b" " in data or data.startswith(b"\xef\xbb\xbf")
    if odd or data.count(b"\r") != data.count(b"\r\n"):
        raise _NotClean
    read = csv.ReadOptions(column_names=_NAMES, use_threads=False, block_size=len(data) + 1)
    try:
        # Threads stay off: several workers share one machine, and a reader has one core of it.
        table = csv.read_csv(pa.BufferReader(data), read, _PARSE, _CONVERT)
    except pa.ArrowInvalid as error:
        raise _NotClean from error
    # A number column without a value in the block arrives as int64 nulls, a column without nulls as integers.
    columns = [table.column(i).combine_chunks() for i in range(NUM_FIELDS)]
    labels = columns[0].to_numpy(zero_copy_only=False).astype(np.float32)
    if not np.isin(labels, (0, 1)).all():
        raise _NotClean
    numbers = np.empty((len(labels), NUM_DENSE))
    categorical = np.empty((len(labels), NUM_CATEGORICAL), np.int64)
    for i in range(NUM_DENSE):
        numbers[:, i] = columns[1 + i].to_numpy(zero_copy_only=False)
    for i in range(NUM_CATEGORICAL):
        categorical[:, i] = _hex_column(columns[1 + NUM_DENSE + i])
    return RawRows(labels, numbers, categorical)


def _hex_column(column: Any) -> NDArray[np.int64]:
    """An Arrow binary array of hexadecimal texts of 0 to 8 digits as int64, -1 for the empty text."""
    _, offset_buffer, data_buffer = column.buffers()
    rows = len(column)
    if not rows:
        return np.empty(0, np.int64)
    offsets = np.frombuffer(offset_buffer, np.int32, rows + 1, column.offset * 4)
    lengths = np.diff(offsets)
    result = np.full(rows, -1, np.int64)
    size = int(offsets[-1] - offsets[0])
    if size == 0:
        return result
    nibbles = _NIBBLE[np.frombuffer(data_buffer, np.uint8, size, int(offsets[0]))]
    if nibbles.max() > 15 or lengths.max() > 8:
        raise _NotClean
    present = lengths > 0
    if size != 8 * int(np.count_nonzero(present)):
        nibbles = _right_aligned(nibbles, lengths[present])
    result[present] = _join_nibbles(nibbles)
    return result


def _right_aligned(nibbles: NDArray[np.uint8], lengths: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Digits of texts of 1 to 8 digits, put at the right end of 8 places each, zeros before them."""
    ends = np.cumsum(lengths, dtype=np.int64)
    shift = 8 * np.arange(1, len(lengths) + 1, dtype=np.int64) - ends
    aligned = np.zeros(8 * len(lengths), np.uint8)
    aligned[np.arange(len(nibbles)) + np.repeat(shift, lengths)] = nibbles
    return aligned


def _join_nibbles(nibbles: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Eight digits, the highest first, to one number: neighbours are joined three times inside one uint64."""
    word = nibbles.view("<u8")
    pairs = (word << np.uint64(4) | word >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    quads = (pairs << np.uint64(8) | pairs >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    joined: NDArray[np.uint32] = (quads << np.uint64(16) | quads >> np.uint64(32)).astype(np.uint32)
    return joined


def _repair(block: TextBlock, *, strict: bool, skip_bad: bool, counts: LineCounts) -> list[bytes]:
    """The block's good lines, short ones padded, blank ones dropped."""
    good = []
    for number, line in enumerate(block.data.split(b"\n"), block.first_line):
        line = line.removesuffix(b"\r")
        if not line:
            continue
        missing = NUM_FIELDS - 1 - line.count(b"\t")
        padded = line + b"\t" * missing if missing > 0 and not strict else line
        if not _GOOD_LINE.fullmatch(padded):
            reason = _reason(padded.split(b"\t"), strict)
            if reason is not None:
                if not skip_bad:
                    raise ValueError(
                        f"{block.path}:{number}: {reason} "
                        "Mend the line, or skip such lines with bad_rows='skip'."
                    )
                counts.skipped += 1
                continue
            padded = _canonical(padded)
        counts.padded += padded is not line and missing > 0
        good.append(padded)
    return good


def _reason(fields: list[bytes], strict: bool) -> str | None:
    """What is wrong with a line, or None."""
    if len(fields) != NUM_FIELDS:
        hint = (
            " (strict=False would pad it with missing fields)" if strict and len(fields) < NUM_FIELDS else ""
        )
        return f"a row must have {NUM_FIELDS} fields separated by tabs. Received: {len(fields)} fields{hint}."
    if not _is_integer(fields[0]) or int(fields[0]) not in (0, 1):
        return f"the label must be 0 or 1. Received: {_shown(fields[0])}."
    checks: list[tuple[int, int, Callable[[bytes], bool], str]] = [
        (1, NUM_DENSE, _is_integer, "an integer of 64 bits or empty"),
        (1 + NUM_DENSE, NUM_CATEGORICAL, _is_hex, "a hexadecimal number of at most 8 digits or empty"),
    ]
    for first, number, holds, what in checks:
        for position in range(first, first + number):
            if fields[position] and not holds(fields[position]):
                return f"{_NAMES[position]} must be {what}. Received: {_shown(fields[position])}."
    return None


def _is_integer(field: bytes) -> bool:
    # Python refuses to convert more than 4,300 digits; nothing that long is an integer of 64 bits in earnest.
    return len(field) < 64 and _INTEGER.fullmatch(field) is not None and -(1 << 63) <= int(field) < 1 << 63


def _is_hex(field: bytes) -> bool:
    return _HEX.fullmatch(field) is not None


def _canonical(line: bytes) -> bytes:
    """Integers rewritten without leading zeros, so that Arrow's own rules about them do not matter."""
    fields = line.split(b"\t")
    numbers = [b"%d" % int(field) if field else field for field in fields[: 1 + NUM_DENSE]]
    return b"\t".join(numbers + fields[1 + NUM_DENSE :])


def _shown(field: bytes) -> str:
    text = field.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 60 else text[:57] + "...")
