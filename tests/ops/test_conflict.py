"""The ops of `ops.conflict` by kernel equal their twins and plain NumPy, bit by bit."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings.ops.conflict import (
    announce,
    compact,
    pack_masks,
    split_lanes,
    spread,
    unpack_masks,
)
from twins import needs_kernels, without_kernels

SEEDS = st.integers(0, 2**31)
PATHS = [pytest.param(contextlib.nullcontext, marks=needs_kernels, id="kernel"), without_kernels]


def _both(call):
    """What the twin gives, after a look that the kernel gives the same; NumPy."""
    with without_kernels():
        expected = [np.asarray(x) for x in call()]
    for found, twin in zip(call(), expected, strict=True):
        assert found.dtype == twin.dtype
        assert found.shape == twin.shape
        assert found.numpy().tobytes() == twin.tobytes()
    return expected


def _counts(rng, sources, lanes, most=12):
    """Some of them 0, and sometimes a source's all."""
    counts = rng.integers(0, most, (sources, lanes)) * (rng.random((sources, lanes)) < 0.8)
    return counts * (rng.random((sources, 1)) < 0.8)


def _lane_of(counts):
    sources, lanes = counts.shape
    return np.repeat(np.tile(np.arange(lanes), sources), counts.ravel())


def _rows(rng, blocks, counts):
    """Within a piece none twice, as ranks ask them; over sources often."""
    sources, lanes = counts.shape
    pieces = [rng.permutation(blocks[k])[: counts[s, k]] for s in range(sources) for k in range(lanes)]
    return np.concatenate([np.zeros(0, np.int64), *pieces]).astype(np.int64)


def _asked(rng, blocks, sources):
    counts = np.minimum(_counts(rng, sources, len(blocks)), np.asarray(blocks, int)[None])
    return _rows(rng, blocks, counts), counts


@needs_kernels
@settings(max_examples=40, deadline=None)
@given(
    sources=st.integers(0, 3),
    lanes=st.integers(0, 4),
    first=st.sampled_from((1, 2**31 - 1, 2**32)),
    seed=SEEDS,
)
def test_announced_rows_are_those_that_two_batches_share(sources, lanes, first, seed):
    rng = np.random.default_rng(seed)
    blocks = rng.integers(1, 30, lanes).tolist()
    kernel = [tf.Variable(tf.fill([n], -7)) for n in blocks]
    twin = [tf.Variable(tf.fill([n], -7)) for n in blocks]
    step = tf.function(announce) if seed % 2 else announce
    before = _asked(rng, blocks, sources)
    for batch in range(first, first + 4):
        now = _asked(rng, blocks, sources)
        args = [tf.constant(a, tf.int64) for a in (*now, batch, *before)]
        forward, backward = step(kernel, *args)
        with without_kernels():
            expected = announce(twin, *args)
        shared = _shared(now, before)
        # The batch before the first was never announced.
        assert forward.numpy().tolist() == (shared if batch > first else [False] * len(now[0]))
        assert backward.numpy().tolist() == _shared(before, now)
        for found, other in zip((forward, backward), expected, strict=True):
            assert found.dtype == other.dtype == tf.bool
            assert found.numpy().tolist() == other.numpy().tolist()
        for own, other, lane in zip(kernel, twin, range(lanes), strict=True):
            assert own.numpy().tobytes() == other.numpy().tobytes()
            rows = now[0][_lane_of(now[1]) == lane]
            assert (own.numpy()[rows] == np.int64(batch).astype(np.int32)).all()
        before = now


def _shared(these, those):
    """For each row of `these` whether it is among `those`, lane by lane."""
    named = set(zip(_lane_of(those[1]).tolist(), those[0].tolist(), strict=True))
    return [pair in named for pair in zip(_lane_of(these[1]).tolist(), these[0].tolist(), strict=True)]


@needs_kernels
def test_many_rows_of_few_lanes_are_announced_by_many_threads():
    rng = np.random.default_rng(0)
    stamps = [tf.Variable(tf.fill([200_000], -1)), tf.Variable(tf.fill([9], -1))]
    before = None
    for batch in range(1, 4):
        counts = np.array([[100_000, 3], [70_000, 0]])
        now = _rows(rng, [200_000, 9], counts), counts
        before = before or now
        args = [tf.constant(a, tf.int64) for a in (*now, batch, *before)]
        forward, backward = announce(stamps, *args)
        assert (forward.numpy() == (np.asarray(_shared(now, before)) & (batch > 1))).all()
        assert (backward.numpy() == _shared(before, now)).all()
        before = now


@pytest.mark.parametrize("path", PATHS)
def test_stamps_change_in_place_and_a_value_that_was_read_stays(path):
    with path():
        stamp = tf.Variable(tf.fill([5], -1))
        read = stamp.read_value()
        announce([stamp], *_asks([1], [[1]]))
        assert read.numpy().tolist() == [-1] * 5
        assert stamp.numpy().tolist() == [-1, 4, -1, -1, -1]


def _asks(rows, counts, previous_rows=(), previous_counts=((0,),), batch=4):
    return [tf.constant(a, tf.int64) for a in (rows, counts, batch, previous_rows, previous_counts)]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("row", [-1, 5, 2**40])
def test_a_row_outside_of_its_block_is_an_error_and_stamps_nothing(path, row):
    stamp = tf.Variable(tf.fill([5], -1))
    with path():
        with pytest.raises(tf.errors.InvalidArgumentError):
            announce([stamp], *_asks([0, row], [[2]]))
        assert stamp.numpy().tolist() == [-1] * 5
        with pytest.raises(tf.errors.InvalidArgumentError):
            announce([stamp], *_asks([0], [[1]], [row], [[1]]))


@needs_kernels
def test_a_row_outside_of_its_block_is_named():
    stamps = [tf.Variable(tf.fill([n], -1)) for n in (9, 5)]
    text = r"`rows` must lie in their lanes' blocks. Received: row 5 of lane 1, whose block has 5 rows"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        announce(stamps, *_asks([8, 5], [[1, 1]], [], [[0, 0]]))


WRONG_LANES = [
    ({"counts": [[1, 0]]}, "`counts` must be numbers of rows, none negative, that add up to the"),
    ({"counts": [[3, 0]]}, "`counts` must be numbers of rows, none negative, that add up to the"),
    ({"counts": [[3, -1]]}, "`counts` must be numbers of rows, none negative, that add up to the"),
    ({"counts": [2]}, r"`counts` must be of shape \[sources, "),
    ({"counts": 2}, r"`counts` must be of shape \[sources, "),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        *WRONG_LANES,
        ({"counts": [[2]]}, r"`counts` must be of shape \[sources, 2\]. Received: shape"),
        ({"previous_counts": [[2, 1]]}, "`previous_counts` must be numbers of rows"),
        ({"previous_counts": [[1]]}, r"`previous_counts` must be of shape \[sources, 2\]"),
    ],
)
def test_announcements_that_do_not_fit_are_an_error_and_no_crash(path, changes, text):
    stamps = [tf.Variable(tf.fill([5], -1)) for _ in range(2)]
    given = {
        "rows": [0, 1],
        "counts": [[1, 1]],
        "batch": 3,
        "previous_rows": [2],
        "previous_counts": [[0, 1]],
    }
    with path():
        announce(stamps, **{k: tf.constant(v, tf.int64) for k, v in given.items()})
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            announce(stamps, **{k: tf.constant(v, tf.int64) for k, v in {**given, **changes}.items()})


@pytest.mark.parametrize("path", PATHS)
def test_lanes_must_not_share_stamps(path):
    stamp = tf.Variable(tf.fill([5], -1))
    with path(), pytest.raises(tf.errors.InvalidArgumentError, match="a variable of its own for every lane"):
        announce([stamp, stamp], *_asks([0, 1], [[1, 1]], [], [[0, 0]]))


@needs_kernels
@pytest.mark.parametrize("stamp", [tf.zeros([5], tf.int64), tf.zeros([5]), tf.zeros([5, 1], tf.int32)])
def test_stamps_of_another_kind_are_refused(stamp):
    with pytest.raises(tf.errors.InvalidArgumentError, match="`stamps` must be int32 variables of shape"):
        announce([tf.Variable(stamp)], *_asks([0], [[1]]))


@needs_kernels
@settings(max_examples=60, deadline=None)
@given(sources=st.integers(0, 3), lanes=st.integers(0, 4), share=st.sampled_from((0.0, 0.3, 1.0)), seed=SEEDS)
def test_split_rows_keep_their_order_and_are_counted(sources, lanes, share, seed):
    rng = np.random.default_rng(seed)
    rows, counts = _asked(rng, [30] * lanes, sources)
    mask = rng.random(len(rows)) < share
    args = tf.constant(rows), tf.constant(counts, tf.int64), tf.constant(mask)
    free, free_counts, taken, taken_counts = _both(lambda: vars(split_lanes(*args)).values())
    assert free.tolist() == rows[~mask].tolist()
    assert taken.tolist() == rows[mask].tolist()
    piece = np.repeat(np.arange(counts.size), counts.ravel())
    assert taken_counts.ravel().tolist() == np.bincount(piece[mask], minlength=counts.size).tolist()
    assert (free_counts + taken_counts == counts).all()
    assert free_counts.dtype == np.int64


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("changes", "text"), [*WRONG_LANES, ({"conflicting": [True]}, "`conflicting` must ")]
)
def test_splits_that_do_not_fit_are_an_error_and_no_crash(path, changes, text):
    given = {"rows": [0, 1], "counts": [[1, 1]], "conflicting": [True, False], **changes}
    types = {"rows": tf.int64, "counts": tf.int64, "conflicting": tf.bool}
    with path(), pytest.raises(tf.errors.InvalidArgumentError, match=text):
        split_lanes(**{k: tf.constant(v, types[k]) for k, v in given.items()})


def _packed(forward, forward_sizes, backward, backward_sizes):
    """By NumPy."""
    packed = []
    for own, other in zip(
        np.split(forward, np.cumsum(forward_sizes)),
        np.split(backward, np.cumsum(backward_sizes)),
        strict=True,
    ):
        packed += [np.packbits(own, bitorder="little"), np.packbits(other, bitorder="little")]
    return np.concatenate([np.zeros(0, np.uint8), *packed])


@needs_kernels
@settings(max_examples=60, deadline=None)
@given(ranks=st.integers(0, 4), most=st.sampled_from((1, 9, 70)), seed=SEEDS)
def test_masks_are_packed_by_rank_and_come_back(ranks, most, seed):
    rng = np.random.default_rng(seed)
    sizes = [rng.integers(0, most + 1, ranks) for _ in range(2)]
    forward, backward = (rng.random(s.sum()) < 0.5 for s in sizes)
    packed, splits = _both(lambda: pack_masks(*map(tf.constant, (forward, sizes[0], backward, sizes[1]))))
    assert packed.tobytes() == _packed(forward, sizes[0], backward, sizes[1]).tobytes()
    assert splits.tolist() == (-(-sizes[0] // 8) + -(-sizes[1] // 8)).tolist()
    found = _both(lambda: unpack_masks(*map(tf.constant, (packed, *sizes))))
    for mask, own in zip(found, (forward, backward), strict=True):
        assert mask.dtype == bool
        assert mask.tolist() == own.tolist()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"forward_sizes": [1, 1]},
            "`forward_sizes` must be numbers of rows, none negative, that add up to the",
        ),
        ({"forward_sizes": [4, -1]}, "`forward_sizes` must be numbers of rows"),
        ({"backward_sizes": [2**62, 2**62]}, "`backward_sizes` must be numbers of rows"),
        ({"backward_sizes": [0]}, "`backward_sizes` must "),
    ],
)
def test_masks_of_other_sizes_are_an_error_and_no_crash(path, changes, text):
    given = {
        "forward": [True] * 3,
        "forward_sizes": [3, 0],
        "backward": [True],
        "backward_sizes": [0, 1],
        **changes,
    }
    with path(), pytest.raises(tf.errors.InvalidArgumentError, match=text):
        pack_masks(**{k: tf.constant(v, tf.int64 if "sizes" in k else tf.bool) for k, v in given.items()})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("sizes", [([8], [9]), ([9], [9]), ([-1], [17]), ([2**62], [0]), ([1], [])])
def test_bytes_of_other_sizes_are_an_error_and_no_crash(path, sizes):
    sizes = [tf.constant(s, tf.int64) for s in sizes]
    with (
        path(),
        pytest.raises(tf.errors.InvalidArgumentError, match="`packed` must have, for every|`backward_sizes`"),
    ):
        unpack_masks(tf.constant([1, 2], tf.uint8), *sizes)


def _vectors(rng, most):
    """Widths, rows and vectors of lanes, a mask and which element is of which row."""
    lanes = int(rng.integers(0, 5))
    widths = rng.choice([1, 3, 8, 16, 20, 32, 64], lanes).tolist()
    lane_rows = rng.integers(0, most, lanes) * (rng.random(lanes) < 0.8)
    mask = rng.random(lane_rows.sum()) < rng.choice([0.0, 0.4, 1.0])
    vectors = rng.normal(size=int(lane_rows @ np.asarray(widths, int))).astype(np.float32)
    lane = np.repeat(np.arange(lanes), lane_rows)
    elements = np.repeat(np.arange(len(mask)), np.asarray(widths, int)[lane])
    return widths, lane_rows, vectors, mask, elements


@needs_kernels
@settings(max_examples=60, deadline=None)
@given(most=st.sampled_from((4, 1200)), conflicting=st.booleans(), seed=SEEDS)
def test_parts_are_taken_out_and_put_back(most, conflicting, seed):
    rng = np.random.default_rng(seed)
    widths, lane_rows, vectors, mask, elements = _vectors(rng, most)
    ranks = np.sort(rng.integers(0, 3, len(widths))).tolist()
    wanted = mask[elements] == conflicting
    where = tf.constant(mask), tf.constant(lane_rows, tf.int64), widths
    part, splits = _both(lambda: compact(tf.constant(vectors), *where, ranks, 3, conflicting))
    assert part.tobytes() == vectors[wanted].tobytes()
    lane_of = np.repeat(np.arange(len(widths)), lane_rows * np.asarray(widths, int))
    floats = np.bincount(np.asarray(ranks, int)[lane_of[wanted]], minlength=3)
    assert splits.tolist() == floats.tolist()

    into = rng.normal(size=len(vectors)).astype(np.float32)
    held = tf.constant(into)
    (spread_out,) = _both(lambda: [spread(tf.constant(part), *where, conflicting, held)])
    assert spread_out.tobytes() == np.where(wanted, vectors, into).tobytes()
    assert held.numpy().tobytes() == into.tobytes()
    anything = spread(tf.constant(part), *where, conflicting, None).numpy()
    assert anything.shape == vectors.shape
    assert anything[wanted].tobytes() == vectors[wanted].tobytes()


@needs_kernels
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_parts_in_a_function_are_put_together_in_place_but_never_in_what_is_used_again(seed):
    widths, lane_rows, vectors, mask, elements = _vectors(np.random.default_rng(seed), 1200)
    where = tf.constant(mask), tf.constant(lane_rows, tf.int64), widths
    ranks = [0] * len(widths)

    @tf.function
    def both(vectors):
        parts = [compact(vectors, *where, ranks, 1, kind)[0] for kind in (False, True)]
        halves = spread(parts[0], *where, False, None)
        whole = spread(parts[1], *where, True, halves)
        zeros = spread(tf.zeros_like(parts[1]), *where, True, whole)
        return spread(parts[1], *where, True, spread(parts[0], *where, False, None)), whole, zeros

    in_place, whole, zeros = both(tf.constant(vectors))
    assert in_place.numpy().tobytes() == vectors.tobytes()
    assert whole.numpy().tobytes() == vectors.tobytes()
    assert zeros.numpy().tobytes() == np.where(mask[elements], np.float32(0), vectors).tobytes()


WRONG_PARTS = [
    ({"lane_rows": [1, 1]}, "`lane_rows` must be numbers of rows, none negative, that add up to the"),
    ({"lane_rows": [-1, 4]}, "`lane_rows` must be numbers of rows"),
    ({"lane_rows": [3]}, "`lane_rows` must "),
    ({"mask": [True]}, "`lane_rows` must be numbers of rows"),
    ({"widths": [2, 0]}, "`widths` must be at least 1"),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        *WRONG_PARTS,
        ({"vectors": [0.0] * 7}, "`vectors` must have "),
        ({"lane_ranks": [0]}, "`lane_ranks` must have one rank"),
        ({"lane_ranks": [0, 2]}, "`lane_ranks` must "),
    ],
)
def test_vectors_that_do_not_fit_are_an_error_and_no_crash(path, changes, text):
    given = {
        "vectors": [0.0] * 8, "mask": [True, False, True], "lane_rows": [1, 2], "widths": [2, 3],
        "lane_ranks": [0, 1], "num_ranks": 2, "conflicting": True,
    }  # fmt: skip
    with path(), pytest.raises(tf.errors.InvalidArgumentError, match=text):
        compact(**_tensors({**given, **changes}))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("changes", "text"),
    [*WRONG_PARTS, ({"part": [0.0] * 6}, "`part` must have "), ({"into": [0.0] * 9}, "`into` must have ")],
)
def test_parts_that_do_not_fit_are_an_error_and_no_crash(path, changes, text):
    given = {
        "part": [0.0] * 5, "mask": [True, False, True], "lane_rows": [1, 2], "widths": [2, 3],
        "conflicting": True, "into": [0.0] * 8,
    }  # fmt: skip
    with path(), pytest.raises(tf.errors.InvalidArgumentError, match=text):
        spread(**_tensors({**given, **changes}))


def _tensors(arguments):
    types = {
        "vectors": tf.float32,
        "part": tf.float32,
        "into": tf.float32,
        "mask": tf.bool,
        "lane_rows": tf.int64,
    }
    return {k: tf.constant(v, types[k]) if k in types else v for k, v in arguments.items()}
