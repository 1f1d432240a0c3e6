"""The fused update has the bits of the one in two steps, on any number of threads, whatever else is in the step."""

import subprocess
import sys
from pathlib import Path
from unittest import mock

import fused_steps
import numpy as np
import pytest
import tensorflow as tf
from fused_steps import OPTIMIZERS, Steps
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_embeddings.layers import slots
from distributed_embeddings.layers.slots import SlotView
from twins import DIMS, needs_kernels, without_kernels

pytestmark = needs_kernels


def _case(seed):
    """Tables, which input reads which, and the inputs of two steps, of the same shapes: one trace."""
    rng = np.random.default_rng(seed)
    combiners = ("sum", "mean", "sqrtn", None)
    tables = [(int(rng.integers(1, 30)), int(rng.choice(DIMS)), combiners[rng.integers(4)]) for _ in range(3)]
    tables_of = [0, 1, 2, int(rng.integers(3))]
    kinds = [(rng.random() < 0.5, rng.random() < 0.5, rng.integers(0, 5, 6)) for _ in tables_of]
    return tables, tables_of, [_batch(rng, tables, tables_of, kinds) for _ in range(2)]


def _batch(rng, tables, tables_of, kinds):
    """Ids and weights by input. kinds: whether an input is ragged, whether it is weighted, and its row lengths."""
    ids, weights = [], []
    for t, (ragged, weighted, lengths) in zip(tables_of, kinds, strict=True):
        size = int(lengths.sum()) if ragged else 18
        flat = rng.integers(0, tables[t][0], size)
        w = rng.uniform(0, 2, size).astype(np.float32)
        if ragged:
            ids.append(tf.RaggedTensor.from_row_lengths(flat, lengths))
            weights.append(ids[-1].with_flat_values(w) if weighted else None)
        else:
            ids.append(tf.constant(flat.reshape(6, 3)))
            weights.append(tf.constant(w.reshape(6, 3)) if weighted else None)
    return ids, weights


def _run(case, optimizer, dtype, traced):
    tables, tables_of, batches = case
    steps = Steps(tables, tables_of, optimizer, dtype)
    step = tf.function(steps.step) if traced else steps.step
    for ids, weights in batches:
        step(ids, weights)
    return steps


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=1, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(("float32", "bfloat16", "float16")),
    least_bytes=st.sampled_from((0, slots.LEAST_BYTES)),
)
def test_the_fused_update_has_the_bits_of_the_one_in_two_steps(name, seed, dtype, least_bytes):
    case = _case(seed)
    with mock.patch.object(slots, "LEAST_BYTES", least_bytes):
        fused = _run(case, OPTIMIZERS[name](), dtype, traced=True)
        plain = _run(case, OPTIMIZERS[name](), dtype, traced=False)
    for a, b in zip(fused.state(), plain.state(), strict=True):
        assert (a == b).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_update_is_fused(name):
    tables, tables_of, batches = _case(3)
    steps = Steps(tables, tables_of, OPTIMIZERS[name](), "float32")
    graph = tf.function(steps.step).get_concrete_function(*batches[0]).graph
    types = [op.type for op in graph.get_operations()]
    assert types.count("DembUpdate") == 1
    assert "DembApplyRows" not in types


@pytest.mark.parametrize("name", ["nesterov", "adagrad", "rowwise_adagrad", "rmsprop"])
@settings(max_examples=1, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_whole_steps_equal_those_of_the_twins(name, seed):
    case = _case(seed)
    fused = _run(case, OPTIMIZERS[name](), "float32", traced=True)
    with without_kernels():
        plain = _run(case, OPTIMIZERS[name](), "float32", traced=False)
        expected = plain.state()
    for a, b in zip(fused.state(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "dtype"), [*((n, "float32") for n in OPTIMIZERS), ("adagrad", "bfloat16")])
def test_slots_beside_the_rows_or_apart_make_no_difference(name, dtype, monkeypatch):
    case = _case(len(name))
    apart = _run(case, OPTIMIZERS[name](), dtype, traced=True)
    monkeypatch.setattr(slots, "LEAST_BYTES", 0)
    beside = _run(case, OPTIMIZERS[name](), dtype, traced=True)
    for steps, some in ((apart, False), (beside, name != "sgd")):
        assert any(isinstance(v, SlotView) for v in steps.optimizer.inner_optimizer.variables) is some
    for a, b in zip(beside.state(), apart.state(), strict=True):
        assert (a == b).all()


def _bags_for(rows, rng, own):
    """Samples of some rows only; `own` of them are the samples whose rows are compared."""
    return rows[rng.integers(0, len(rows), (own, 2))]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rows_bits_do_not_depend_on_the_other_rows_of_the_step(name):
    """The same samples alone, and behind, before and among others of other rows, in another table's company."""
    rng = np.random.default_rng(1)
    mine, others = np.arange(0, 40, 2), np.arange(1, 40, 2)
    ids = _bags_for(mine, rng, 5000)
    tables = [(40, 20, "sum"), (7, 8, "sum")]

    def run(before, after):
        steps = Steps(tables, [0, 0, 1], OPTIMIZERS[name](), "float32")
        pad = _bags_for(others, rng, before + after)
        first = np.concatenate([pad[:before], ids, pad[before:]])
        size = len(first)
        second, third = _bags_for(others, rng, size), rng.integers(0, 7, (size, 2))
        steps.layer.build()
        table = steps.layer.trainable_variables[0]

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                outputs = steps.layer([tf.constant(first), tf.constant(second), tf.constant(third)])
                factors = fused_steps._factors(outputs[0][before : before + 5000])
                loss = tf.reduce_sum(outputs[0][before : before + 5000] * factors)
                loss += tf.add_n([tf.reduce_sum(o) for o in (*outputs[1:], outputs[0][:before])])
            variables = steps.layer.trainable_variables
            steps.optimizer.apply(tape.gradient(loss, variables), variables)

        step()
        return table.numpy()[mine]

    alone = run(0, 0)
    assert (run(3000, 1234) == alone).all()
    assert (run(17, 0) == alone).all()


def test_a_step_has_the_same_bits_on_one_two_and_three_threads():
    script = Path(__file__).with_name("fused_steps.py")
    runs = [
        subprocess.run(
            [sys.executable, str(script), str(threads)],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        for threads in (1, 2, 3)
    ]
    assert [run.returncode for run in runs] == [0, 0, 0], runs[0].stderr[-2000:]
    lines = [run.stdout.splitlines() for run in runs]
    assert len(lines[0]) == len(OPTIMIZERS) + 2
    assert lines[0] == lines[1] == lines[2]
    assert len({line.split()[-1] for line in lines[0]}) == len(lines[0]), "every rule does something else"
