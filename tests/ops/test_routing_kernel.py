"""`route`, `look_up_lanes` and `assemble` by kernel equal their twins; in their order they equal a plain lookup."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.bags import make_bags
from distributed_embeddings.ops.block import Block
from distributed_embeddings.ops.features import Feature, GroupedTable, feature_arguments
from distributed_embeddings.ops.lanes import look_up_lanes
from distributed_embeddings.ops.lookup import look_up
from distributed_embeddings.ops.routing import ReplyLane, RoutedTable, assemble, route
from twins import drawn, flat, needs_kernels, without_kernels

pytestmark = needs_kernels

POLICIES = st.sampled_from(("raise", "zero", "clip"))


def _routed_tables(drawn, seed, *, unrouted=True):
    """The tables cut by rows: in runs, round and round, not at all, or not routed."""
    rng = np.random.default_rng(seed)
    tables = []
    for rows, _ in drawn.tables:
        kind = rng.integers(0 if unrouted else 1, 4)
        shards = int(rng.integers(1, 6))
        if kind == 0:
            tables.append(RoutedTable(rows, None))
        elif kind == 1:
            tables.append(RoutedTable(rows, (rows,)))
        elif kind == 2:
            tables.append(RoutedTable(rows, (rows,) * shards, cyclic=True))
        else:
            # Shards may be empty, and more than rows.
            ends = np.sort(rng.integers(0, rows + 1, shards - 1)).tolist()
            tables.append(RoutedTable(rows, (*ends, rows)))
    return tables


def _same_routes(found, expected):
    for own, twin in zip(found.rows, expected.rows, strict=True):
        # A table that no feature reads: the twin has no shards for it, the kernel empty ones.
        for k, rows in enumerate(own):
            assert rows.dtype == tf.int64
            assert rows.numpy().tolist() == (twin[k].numpy().tolist() if twin else [])
    for own, twin in zip(found.inverse, expected.inverse, strict=True):
        assert own.dtype == twin.dtype == tf.int64
        assert own.shape == twin.shape
        assert (own.numpy() == twin.numpy()).all()
    assert found.invalid.numpy().tolist() == expected.invalid.numpy().tolist()
    assert bool(found.wrong) == bool(expected.wrong)


@settings(max_examples=60, deadline=None)
@given(drawn=drawn(), policy=POLICIES, seed=st.integers(0, 2**31), invalid=st.sampled_from((0.0, 0.3)))
def test_routes_equal_the_twin(drawn, policy, seed, invalid):
    tables = _routed_tables(drawn, seed)
    ids = drawn.ids(invalid)
    features = drawn.make(ids, drawn.weights(ids))
    found = route(tables, features, policy)
    with without_kernels():
        expected = route(tables, features, policy)
    _same_routes(found, expected)


def test_batch_sizes_that_differ_make_a_wrong_call():
    features = _features([[1, 2], [0]])
    tables = [RoutedTable(9, (4, 9)), RoutedTable(9, None)]
    assert bool(route(tables, features, "clip").wrong)
    with without_kernels():
        assert bool(route(tables, features, "clip").wrong)
    assert not bool(route(tables, _features([[1, 2], [0, 1]]), "raise").wrong)


def _features(ids):
    return [
        Feature(f"f{k}", k, "sum", make_bags(tf.constant(i), feature=f"f{k}", pooled=True))
        for k, i in enumerate(ids)
    ]


@pytest.mark.parametrize("ends", [(4, 3, 9), (4, 8), (10, 9), (-1, 9)])
def test_shards_that_are_no_cut_of_the_table_are_refused(ends):
    with pytest.raises(tf.errors.InvalidArgumentError, match="must rise to the number of rows"):
        route([RoutedTable(9, ends)], _features([[1]]), "clip")


def _cut(drawn, tables, seed):
    """Shards of every table, (shard number, columns), in a random order over all tables."""
    rng = np.random.default_rng(seed)
    lanes = []
    for t, (table, (_, dim)) in enumerate(zip(tables, drawn.tables, strict=True)):
        if table.num_shards > 1 or dim == 1 or rng.integers(2):
            lanes += [ReplyLane(t, s, range(dim)) for s in range(table.num_shards)]
        else:
            cuts = np.unique([0, *rng.integers(0, dim + 1, 3), dim]).tolist()
            lanes += [ReplyLane(t, s, range(a, b)) for s, (a, b) in enumerate(itertools.pairwise(cuts))]
    return [lanes[k] for k in rng.permutation(len(lanes))]


def _answers(drawn, tables, lanes, routed):
    """Rows asked of each lane, and vectors that stand for the answers."""
    rows = []
    for lane in lanes:
        own = routed.rows[lane.table]
        rows.append(int(tf.size(own[lane.shard if len(own) > 1 else 0])) if own else 0)
    floats = sum(n * len(lane.columns) for n, lane in zip(rows, lanes, strict=True))
    return tf.constant(rows, tf.int64), tf.constant(drawn.rng.uniform(-1, 1, floats).astype(np.float32))


def _assembled(drawn, case, ids, weights, factors=None):
    """Outputs, and with factors the gradients of the replies and of the weights."""
    lanes, counts, replies, inverse = case
    watched = [getattr(w, "flat_values", w) for w in weights if w is not None]
    with tf.GradientTape() as tape:
        tape.watch([replies, *watched])
        features = drawn.make(ids, weights)
        outputs = assemble(replies, counts, lanes, [d for _, d in drawn.tables], features, inverse)
        values = [getattr(o, "flat_values", o) for o in outputs]
        loss = tf.add_n([tf.reduce_sum(v * c) for v, c in zip(values, factors or values, strict=True)])
    return outputs, tape.gradient(loss, [replies, *watched]) if factors else None


@settings(max_examples=60, deadline=None)
@given(drawn=drawn(), policy=st.sampled_from(("zero", "clip")), seed=st.integers(0, 2**31))
def test_assembled_outputs_and_gradients_equal_the_twin(drawn, policy, seed):
    tables = _routed_tables(drawn, seed, unrouted=False)
    ids = drawn.ids(invalid=0.2)
    weights = drawn.weights(ids)
    routed = route(tables, drawn.make(ids, weights), policy)
    lanes = _cut(drawn, tables, seed)
    counts, replies = _answers(drawn, tables, lanes, routed)
    case = lanes, counts, replies, routed.inverse
    with without_kernels():
        factors = drawn.like(_assembled(drawn, case, ids, weights)[0])
        expected, expected_gradients = _assembled(drawn, case, ids, weights, factors)
    outputs, gradients = _assembled(drawn, case, ids, weights, factors)
    for out, twin in zip(outputs, expected, strict=True):
        assert type(out) is type(twin)
        assert out.shape.as_list() == twin.shape.as_list()
        np.testing.assert_allclose(flat(out), flat(twin), rtol=2e-6, atol=2e-6)
    for gradient, twin in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient.numpy(), twin.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"replies": tf.zeros([7])}, "`replies` must have 8 elements"),
        ({"lane_rows": [2, 2, 2]}, "one number a lane"),
        ({"lane_rows": [-1, 3]}, "must not be negative"),
        ({"lane_rows": [1, 3]}, "as many rows each"),
        ({"lane_tables": [0, 1]}, "a table that is there"),
        ({"lane_columns": [0, 3]}, "a table that is there"),
        ({"lane_widths": [0, 2]}, "a table that is there"),
        ({"lane_widths": [2]}, "one entry a lane"),
        ({"table_of": [1]}, "tables that are there"),
    ],
)
def test_replies_that_do_not_fit_are_an_error_and_no_crash(changes, text):
    arguments = {
        "replies": tf.zeros([8]),
        "lane_rows": [2, 2],
        **feature_arguments(_features([[0, 1]]), "zero"),
        "num_features": 1,
        "lane_tables": [0, 0],
        "lane_widths": [2, 2],
        "lane_columns": [0, 2],
        "lane_shards": [0, 1],
        "dims": [4],
    }
    assert not kernels.library().demb_assemble(**arguments)[0].numpy().any()
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        kernels.library().demb_assemble(**{**arguments, **changes})


@settings(max_examples=40, deadline=None)
@given(
    drawn=drawn(),
    dtype=st.sampled_from((tf.float32, tf.bfloat16, tf.float16)),
    ranks=st.integers(1, 4),
)
def test_lanes_looked_up_equal_the_twin(drawn, dtype, ranks):
    blocks, lane_tables, rows, counts = _asked(drawn, dtype, ranks)
    factors = None
    results = []
    for twin in (False, True):
        with tf.GradientTape() as tape, without_kernels() if twin else tf.name_scope("kernels"):
            vectors, splits = look_up_lanes(blocks, lane_tables, rows, counts)
            factors = drawn.like([vectors])[0] if factors is None else factors
            loss = tf.reduce_sum(vectors * factors)
        results.append((vectors, splits, tape.gradient(loss, [b.variable for b in blocks])))
    (vectors, splits, gradients), (expected, expected_splits, twins) = results
    assert (vectors.numpy() == expected.numpy()).all()
    assert splits.numpy().tolist() == expected_splits.numpy().tolist()
    for gradient, twin, shape in zip(gradients, twins, drawn.tables, strict=True):
        found = gradient.indices.numpy()
        assert (np.diff(found) > 0).all()
        own, other = np.zeros(shape), np.zeros(shape)
        np.add.at(own, found, gradient.values.numpy())
        if twin is not None:
            values = tf.cast(twin.values, tf.float32).numpy()
            np.add.at(other, twin.indices.numpy(), values.reshape(-1, shape[1]))
        # The twin's gradients pass through the table's dtype, the kernel's are never rounded.
        room = 1e-5 if dtype == tf.float32 else 2e-2
        np.testing.assert_allclose(own, other, rtol=room, atol=room)


def _asked(drawn, dtype, ranks):
    """Blocks, the lanes that read them, and rows asked by every rank."""
    blocks = [Block.whole(v) for v in drawn.variables(dtype)]
    lane_tables = drawn.rng.integers(0, len(blocks), drawn.rng.integers(1, 5)).tolist()
    counts = drawn.rng.integers(0, 6, (ranks, len(lane_tables)))
    rows = [
        drawn.rng.integers(0, drawn.tables[t][0], counts[r, k])
        for r in range(ranks)
        for k, t in enumerate(lane_tables)
    ]
    return blocks, lane_tables, tf.constant(np.concatenate(rows), tf.int64), tf.constant(counts, tf.int64)


@pytest.mark.parametrize("row", [-1, 9, 2**40])
def test_a_row_that_is_not_here_is_an_error(row):
    block = Block.whole(tf.Variable(tf.zeros([9, 2])))
    with pytest.raises(tf.errors.InternalError, match="1 rows asked of this rank are not on it"):
        look_up_lanes([block], [0], tf.constant([3, row], tf.int64), tf.constant([[2]], tf.int64))


@pytest.mark.parametrize("counts", [[[3]], [[1]], [[-1], [3]], [[1, 1]], [2], [[2**62], [2**62]]])
def test_counts_that_do_not_fit_are_an_error_and_no_crash(counts):
    block = Block.whole(tf.Variable(tf.zeros([9, 2])))
    with pytest.raises(tf.errors.InvalidArgumentError, match="`counts` must"):
        look_up_lanes([block], [0], tf.constant([3, 4], tf.int64), tf.constant(counts, tf.int64))


@pytest.mark.parametrize("elements", [0, 5, 7])
def test_replies_that_do_not_fill_their_lanes_are_an_error_and_no_crash(elements):
    arguments = {
        "replies": tf.zeros([elements]), "lane_rows": tf.constant([3], tf.int64), "ids": [tf.constant([0, 2])],
        "splits": [], "weights": [tf.ones([2])], "table_of": [0], "splits_of": [-1], "weights_of": [0],
        "combiners": ["sum"], "invalid_ids": "zero", "lane_tables": [0], "lane_widths": [2], "lane_columns": [0],
        "lane_shards": [0], "dims": [2],
    }  # fmt: skip
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"must have 6 elements. Received: {elements}"):
        kernels.library().demb_assemble(**arguments, num_features=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"must have 6 elements. Received: {elements}"):
        kernels.library().demb_assemble_gradient(**arguments, grads=[tf.zeros([2, 2])])


def _shard_of(table, variable, lane, dim):
    """The block that a lane's owner holds."""
    rows = variable.numpy()
    if table.cyclic and table.num_shards > 1:
        rows = rows[lane.shard :: table.num_shards]
    elif table.num_shards > 1:
        start = 0 if lane.shard == 0 else table.shard_ends[lane.shard - 1]
        rows = rows[start : table.shard_ends[lane.shard]]
    return tf.Variable(rows[:, lane.columns.start : lane.columns.stop])


@settings(max_examples=30, deadline=None)
@given(drawn=drawn(), policy=st.sampled_from(("zero", "clip")), seed=st.integers(0, 2**31))
def test_route_look_up_and_assemble_equal_a_plain_lookup(drawn, policy, seed):
    """One rank that asks, one that answers, and every table cut somehow."""
    tables = _routed_tables(drawn, seed, unrouted=False)
    variables = drawn.variables()
    ids = drawn.ids(invalid=0.2)
    weights = drawn.weights(ids)
    lanes = _cut(drawn, tables, seed)
    routed = route(tables, drawn.make(ids, weights), policy)
    asked = []
    for lane in lanes:
        own = routed.rows[lane.table]
        asked.append(own[lane.shard if len(own) > 1 else 0])
    counts = tf.stack([tf.size(a, tf.int64) for a in asked])
    shards = [_shard_of(tables[k.table], variables[k.table], k, drawn.tables[k.table][1]) for k in lanes]
    blocks = [Block.whole(s) for s in shards]
    vectors, _ = look_up_lanes(blocks, range(len(lanes)), tf.concat(asked, 0), counts[None])
    dims = [d for _, d in drawn.tables]
    outputs = assemble(vectors, counts, lanes, dims, drawn.make(ids, weights), routed.inverse)
    named = [GroupedTable(f"t{k}", *shape) for k, shape in enumerate(drawn.tables)]
    expected, _ = look_up([Block.whole(v) for v in variables], named, drawn.make(ids, weights), policy)
    for out, plain in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(flat(out), flat(plain), rtol=2e-6, atol=2e-6)
