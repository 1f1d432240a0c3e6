"""`update_and_look_up` has the bits of the update and of the lookup after it."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings import optimizers
from distributed_embeddings.ops.conflict import can_fuse, update_and_look_up
from distributed_embeddings.ops.lanes import LaneGradients, look_up_lanes
from twins import DIMS, needs_kernels, without_kernels

pytestmark = needs_kernels

RULES = {
    "sgd": optimizers.SGD(stochastic_rounding=True, seed=3),
    "sgd_decayed": optimizers.SGD(weight_decay=0.03, clipvalue=0.4),
    "momentum": optimizers.SGD(momentum=0.9),
    "nesterov": optimizers.SGD(momentum=0.9, nesterov=True),
    "adagrad": optimizers.Adagrad(),
    "rowwise_adagrad": optimizers.RowwiseAdagradRule(),
    "adam": optimizers.Adam(stochastic_rounding=True, seed=5),
    "amsgrad": optimizers.Adam(amsgrad=True),
    "rmsprop": optimizers.RMSprop(momentum=0.5, centered=True),
    "ftrl": optimizers.Ftrl(),
}


class _Tables:
    """Tables (rows, dim) under a rule; starts are the same every time, with some -0 among them."""

    def __init__(self, shapes, rule, dtype):
        self.rule = rule
        starts = [np.random.default_rng(k).normal(size=s) for k, s in enumerate(shapes)]
        self.tables = [tf.Variable(tf.cast(np.where(s < -1, -0.0, s), dtype)) for s in starts]
        self.slots = [rule.create_slots(s, f"t{k}") for k, s in enumerate(shapes)]
        self.targets = [rule.target(t, s) for t, s in zip(self.tables, self.slots, strict=True)]

    def apart(self, gradients, asked, step):
        self.rule.apply_pending(gradients, dict(enumerate(self.targets)), 0.1, step)
        return look_up_lanes([t.table for t in self.targets], range(len(self.targets)), *asked)

    def fused(self, gradients, asked, step):
        step = tf.cast(step, tf.int64)
        rates = self.rule.rates(0.1, step)
        return update_and_look_up(gradients, self.targets, self.rule.kernel(), rates, step, *asked)

    def state(self):
        values = [*self.tables, *[v.value for own in self.slots for v in own.values()]]
        return [np.asarray(v).tobytes() for v in values]


def _rows(rng, num_rows, counts, rising):
    """By source, then lane."""
    pieces = [rng.integers(0, n, c) for own in counts for n, c in zip(num_rows, own, strict=True)]
    pieces = [np.sort(p) if rising else p for p in pieces]
    return tf.constant(np.concatenate([np.zeros(0, np.int64), *pieces]), tf.int64), tf.constant(
        counts, tf.int64
    )


def _gradients(rng, shapes, lane_tables, sources, most):
    counts = rng.integers(0, most, (sources, len(lane_tables)))
    rows, counts = _rows(rng, [shapes[t][0] for t in lane_tables], counts, True)
    floats = int(np.asarray(counts).sum(0) @ np.array([shapes[t][1] for t in lane_tables]))
    grads = tf.constant(rng.normal(size=floats).astype(np.float32))
    num_rows, dims = zip(*shapes, strict=True)
    return LaneGradients(num_rows, dims, tuple(lane_tables), rows, counts, grads)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=12, deadline=None)
@given(
    dims=st.lists(st.sampled_from(DIMS), min_size=1, max_size=3),
    dtype=st.sampled_from((tf.float32, tf.bfloat16, tf.float16)),
    most=st.sampled_from((1, 9, 700)),
    rising=st.booleans(),
    sources=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
def test_the_fused_op_has_the_bits_of_both(name, dims, dtype, most, rising, sources, seed):
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(1, 400)), d) for d in dims]
    # Now and then a table has two lanes, and another none.
    lane_tables = range(len(dims)) if seed % 3 else rng.integers(0, len(dims), len(dims)).tolist()
    apart, fused = (_Tables(shapes, RULES[name], dtype) for _ in range(2))
    assert can_fuse([t.table for t in fused.targets], RULES[name].kernel())
    call = tf.function(fused.fused) if seed % 2 else fused.fused
    for step in (1, 2):
        gradients = _gradients(rng, shapes, lane_tables, sources, most)
        asked = _rows(rng, [n for n, _ in shapes], rng.integers(0, most, (sources, len(dims))), rising)
        expected, expected_splits = apart.apart(gradients, asked, step)
        vectors, splits = call(gradients, asked, step)
        assert vectors.dtype == tf.float32
        assert vectors.numpy().tobytes() == expected.numpy().tobytes()
        assert splits.numpy().tolist() == expected_splits.numpy().tolist()
        assert fused.state() == apart.state()


def test_long_tables_are_walked_by_many_threads():
    rng = np.random.default_rng(0)
    shapes = [(60_000, 16), (50, 16)]
    apart, fused = (_Tables(shapes, RULES["adagrad"], tf.float32) for _ in range(2))
    gradients = _gradients(rng, shapes, range(2), 2, 40_000)
    asked = _rows(rng, [60_000, 50], [[30_000, 4], [20_000, 9000]], True)
    expected, _ = apart.apart(gradients, asked, 1)
    vectors, _ = fused.fused(gradients, asked, 1)
    assert vectors.numpy().tobytes() == expected.numpy().tobytes()
    assert fused.state() == apart.state()


def test_what_cannot_be_fused_is_told():
    tables = _Tables([(9, 2)], RULES["sgd"], tf.float32)
    blocks = [t.table for t in tables.targets]
    assert not can_fuse([], RULES["sgd"].kernel())
    assert not can_fuse(blocks, None)
    with without_kernels():
        assert not can_fuse(blocks, RULES["sgd"].kernel())


def _call(changes=None, rows=(3, 4), counts=((2,),)):
    tables = _Tables([(9, 2)], RULES["sgd"], tf.float32)
    ids = tf.constant([1, 3], tf.int64), tf.constant([[2]], tf.int64)
    gradients = LaneGradients((9,), (2,), (0,), *ids, tf.ones([4]))
    gradients = dataclasses.replace(gradients, **(changes or {}))
    return tables.fused(gradients, [tf.constant(rows, tf.int64), tf.constant(counts, tf.int64)], 1)


@pytest.mark.parametrize("rows", [(-1, 4), (4, 9), (2**40, 4)])
def test_a_row_that_is_not_here_is_an_error(rows):
    with pytest.raises(tf.errors.InternalError, match="1 rows asked of this rank are not on it"):
        _call(rows=rows)


@pytest.mark.parametrize("counts", [[[3]], [[1]], [[-1], [3]], [[1, 1]], [2], [[2**62], [2**62]]])
def test_counts_that_do_not_fit_are_an_error_and_no_crash(counts):
    with pytest.raises(tf.errors.InvalidArgumentError, match="`next_counts` must"):
        _call(counts=counts)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`counts` must"):
        _call({"counts": tf.constant(counts, tf.int64)})


def test_gradients_of_other_sizes_are_an_error_and_no_crash():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="the gradient must have 4 elements. Received: 5"
    ):
        _call({"grads": tf.ones([5])})
    with pytest.raises(ValueError, match="`targets` must be the tables of `gradients`"):
        _call({"dims": (3,)})
