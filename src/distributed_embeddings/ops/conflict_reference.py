"""Plain-TensorFlow twins of the kernels of `ops.conflict`, which says what each does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def announce(
    stamps: Sequence[tf.Variable],
    rows: tf.Tensor,
    counts: tf.Tensor,
    batch: tf.Tensor,
    previous_rows: tf.Tensor,
    previous_counts: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Twin of DembAnnounce."""
    unique = len({s.ref() for s in stamps}) == len(stamps)
    checks = [
        *_require(unique, "`stamps` must be a variable of its own for every lane. Received:", len(stamps)),
        *_check_lanes(rows, counts, "rows", "counts", len(stamps)),
        *_check_lanes(previous_rows, previous_counts, "previous_rows", "previous_counts", len(stamps)),
    ]
    with tf.control_dependencies(checks):
        places = _places(counts, len(stamps))
        forward = _marks(stamps, rows, places, tf.cast(batch - 1, tf.int32))
    with tf.control_dependencies([forward]):
        stamped = [_stamp(s, tf.gather(rows, p), batch) for s, p in zip(stamps, places, strict=True)]
    with tf.control_dependencies([s for s in stamped if s is not None]):
        places = _places(previous_counts, len(stamps))
        return forward, _marks(stamps, previous_rows, places, tf.cast(batch, tf.int32))


def _places(counts: tf.Tensor, lanes: int) -> list[tf.Tensor]:
    """Where each lane's rows are, int32 by lane."""
    lane_of = tf.tile(tf.range(lanes), tf.shape(counts)[:1])
    lane_of = tf.repeat(lane_of, tf.reshape(counts, [-1]))
    return [tf.cast(tf.where(lane_of == lane)[:, 0], tf.int32) for lane in range(lanes)]


def _marks(
    stamps: Sequence[tf.Variable], rows: tf.Tensor, places: Sequence[tf.Tensor], batch: tf.Tensor
) -> tf.Tensor:
    """Which rows have this stamp. Rows are gathered: reading a variable would copy it."""
    if not stamps:
        return tf.zeros([0], tf.bool)
    found = [s.sparse_read(tf.gather(rows, p)) == batch for s, p in zip(stamps, places, strict=True)]
    return tf.dynamic_stitch(list(places), found)


def _stamp(stamp: tf.Variable, rows: tf.Tensor, batch: tf.Tensor) -> Any:
    values = tf.fill([tf.size(rows)], tf.cast(batch, tf.int32))
    with tf.device(stamp.device):
        return tf.raw_ops.ResourceScatterUpdate(resource=stamp.handle, indices=rows, updates=values)


def split_lanes(
    rows: tf.Tensor, counts: tf.Tensor, conflicting: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Twin of DembSplitLanes."""
    checks = _check_lanes(rows, counts, "rows", "counts")
    checks += _check_size(conflicting, "conflicting", tf.size(rows, tf.int64))
    with tf.control_dependencies(checks):
        pieces = tf.size(counts, tf.int64)
        piece = tf.repeat(tf.range(pieces), tf.reshape(counts, [-1]))
        marks = tf.math.unsorted_segment_sum(tf.cast(conflicting, tf.int64), piece, pieces)
        marked = tf.reshape(marks, tf.shape(counts))
        free, other = tf.boolean_mask(rows, ~conflicting), tf.boolean_mask(rows, conflicting)
        return free, counts - marked, other, marked


def pack_masks(
    forward: tf.Tensor, forward_sizes: tf.Tensor, backward: tf.Tensor, backward_sizes: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Twin of DembPackMasks."""
    checks = _check_size(backward_sizes, "backward_sizes", tf.size(forward_sizes, tf.int64))
    checks += _check_sum(forward_sizes, "forward_sizes", tf.size(forward, tf.int64), "`forward`")
    checks += _check_sum(backward_sizes, "backward_sizes", tf.size(backward, tf.int64), "`backward`")
    with tf.control_dependencies(checks):
        splits, *where = _bits_of(forward_sizes, backward_sizes)
        marks = tf.cast(tf.concat([forward, backward], 0), tf.int32)
        bits = tf.scatter_nd(tf.concat(where, 0)[:, None], marks, 8 * tf.reduce_sum(splits)[None])
        return tf.cast(tf.linalg.matvec(tf.reshape(bits, [-1, 8]), 2 ** tf.range(8)), tf.uint8), splits


def unpack_masks(
    packed: tf.Tensor, forward_sizes: tf.Tensor, backward_sizes: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Twin of DembUnpackMasks."""
    checks = _check_size(backward_sizes, "backward_sizes", tf.size(forward_sizes, tf.int64))
    positive = tf.reduce_all(forward_sizes >= 0) & tf.reduce_all(backward_sizes >= 0)
    bytes_needed = tf.reduce_sum(_bytes(forward_sizes)) + tf.reduce_sum(_bytes(backward_sizes))
    fits = positive & (bytes_needed == tf.size(packed, tf.int64))
    text = (
        "`packed` must have, for every rank, the bytes of `forward_sizes` bits and of `backward_sizes` bits. "
        "Received, bytes and sizes:"
    )
    checks += _require(fits, text, tf.size(packed), forward_sizes, backward_sizes)
    with tf.control_dependencies(checks):
        _, forward, backward = _bits_of(forward_sizes, backward_sizes)
        bits = tf.bitwise.right_shift(tf.cast(packed, tf.int32)[:, None], tf.range(8)) % 2
        bits = tf.reshape(bits, [-1]) == 1
        return tf.gather(bits, forward), tf.gather(bits, backward)


def _bytes(sizes: tf.Tensor) -> tf.Tensor:
    return (sizes + 7) // 8


def _bits_of(forward_sizes: tf.Tensor, backward_sizes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Bytes of each rank, and where the bits of both masks are, counted from the first byte's lowest."""
    splits = _bytes(forward_sizes) + _bytes(backward_sizes)
    start = tf.cumsum(splits, exclusive=True)

    def where(sizes: tf.Tensor, first_byte: tf.Tensor) -> tf.Tensor:
        moved = 8 * first_byte - tf.cumsum(sizes, exclusive=True)
        return tf.range(tf.reduce_sum(sizes)) + tf.repeat(moved, sizes)

    return splits, where(forward_sizes, start), where(backward_sizes, start + _bytes(forward_sizes))


def compact(
    vectors: tf.Tensor,
    mask: tf.Tensor,
    lane_rows: tf.Tensor,
    *,
    widths: Sequence[int],
    lane_ranks: Sequence[int],
    num_ranks: int,
    conflicting: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Twin of DembCompact."""
    _check_ranks(lane_ranks, len(widths), num_ranks)
    checks = _check_rows(mask, lane_rows, widths)
    with tf.control_dependencies(checks):
        elements, by_lane = _elements(mask, lane_rows, widths, conflicting)
        checks = _check_size(vectors, "vectors", tf.size(elements, tf.int64))
    with tf.control_dependencies(checks):
        splits = tf.math.unsorted_segment_sum(by_lane, tf.constant(lane_ranks, tf.int64), num_ranks)
        return tf.boolean_mask(vectors, elements), splits


def spread(
    part: tf.Tensor,
    mask: tf.Tensor,
    lane_rows: tf.Tensor,
    widths: Sequence[int],
    conflicting: bool,
    into: tf.Tensor | None,
) -> tf.Tensor:
    """Twin of DembSpread; rows of the other kind are zeros where there is no `into`."""
    checks = _check_rows(mask, lane_rows, widths)
    with tf.control_dependencies(checks):
        elements, by_lane = _elements(mask, lane_rows, widths, conflicting)
        checks = _check_size(part, "part", tf.reduce_sum(by_lane))
        if into is not None:
            checks += _check_size(into, "into", tf.size(elements, tf.int64))
    with tf.control_dependencies(checks):
        where = tf.where(elements)
        if into is None:
            return tf.scatter_nd(where, part, tf.shape(elements, tf.int64))
        return tf.tensor_scatter_nd_update(into, where, part)


def _elements(
    mask: tf.Tensor, lane_rows: tf.Tensor, widths: Sequence[int], conflicting: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Which elements of the vectors are of the wanted rows, bool, and how many they are by lane, int64."""
    lanes = tf.constant(widths, tf.int64)
    lane = tf.repeat(tf.range(len(widths)), lane_rows)
    wanted = mask if conflicting else ~mask
    rows = tf.math.unsorted_segment_sum(tf.cast(wanted, tf.int64), lane, len(widths))
    return tf.repeat(wanted, tf.gather(lanes, lane)), rows * lanes


def _require(condition: tf.Tensor | bool, *told: Any) -> list[Any]:
    """Raises InvalidArgumentError; in a tf.function what must run first."""
    assertion = tf.debugging.Assert(condition, list(told), summarize=8)
    return [] if assertion is None else [assertion]


def _check_sum(sizes: tf.Tensor, name: str, total: tf.Tensor, whole: str) -> list[Any]:
    right = tf.reduce_all(sizes >= 0) & (tf.reduce_sum(sizes) == total)
    text = f"`{name}` must be numbers of rows, none negative, that add up to the size of {whole}. Received:"
    return _require(right, text, sizes, "for", total)


def _check_lanes(
    rows: tf.Tensor, counts: tf.Tensor, rows_name: str, counts_name: str, lanes: int | None = None
) -> list[Any]:
    fits = tf.rank(counts) == 2
    if lanes is not None:
        fits = fits & tf.reduce_all(tf.shape(counts)[1:] == [lanes])
    shape = f"[sources, {'lanes' if lanes is None else lanes}]"
    text = f"`{counts_name}` must be of shape {shape}. Received: shape"
    checks = _require(fits, text, tf.shape(counts))
    return checks + _check_sum(counts, counts_name, tf.size(rows, tf.int64), f"`{rows_name}`")


def _check_size(values: tf.Tensor, name: str, size: tf.Tensor) -> list[Any]:
    fits = tf.size(values, tf.int64) == size
    return _require(
        fits, f"`{name}` must have as many elements as", size, "Received: shape", tf.shape(values)
    )


def _check_rows(mask: tf.Tensor, lane_rows: tf.Tensor, widths: Sequence[int]) -> list[Any]:
    if any(width < 1 for width in widths):
        raise tf.errors.InvalidArgumentError(
            None, None, f"`widths` must be at least 1. Received: {list(widths)}"
        )
    lanes = tf.constant(len(widths), tf.int64)
    return [
        *_check_size(lane_rows, "lane_rows", lanes),
        *_check_sum(lane_rows, "lane_rows", tf.size(mask, tf.int64), "`mask`"),
    ]


def _check_ranks(lane_ranks: Sequence[int], lanes: int, num_ranks: int) -> None:
    if len(lane_ranks) != lanes or any(not 0 <= rank < num_ranks for rank in lane_ranks):
        text = f"`lane_ranks` must have one rank in [0, {num_ranks}) for each of {lanes} widths. Received: {lane_ranks}"
        raise tf.errors.InvalidArgumentError(None, None, text)
