"""Row rules by kernel equal their twins; the same bits however a step is run."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_row_rules import RULES

from distributed_embeddings import optimizers
from distributed_embeddings.ops.rounding import round_by_chance
from twins import DIMS, needs_kernels, without_kernels

pytestmark = needs_kernels

ROWS = 30
DECAYED = {f"{n}_decayed": dataclasses.replace(r, weight_decay=0.03, clipvalue=0.4) for n, r in RULES.items()}
ALL = {**RULES, **DECAYED}


def _steps(dim, seed):
    """Three steps of rows, none twice, and their gradients."""
    rng = np.random.default_rng(seed)
    return [
        (rng.permutation(ROWS)[: rng.integers(0, ROWS + 1)], rng.normal(size=(ROWS, dim)).astype(np.float32))
        for _ in range(3)
    ]


def _train(rule, dtype, steps, dim, learning_rate=0.1, statistics=None):
    """The table, float32, and the slots after the steps."""
    start = np.random.default_rng(dim).normal(size=(ROWS, dim)).astype(np.float32)
    table = tf.Variable(tf.cast(start, dtype))
    slots = rule.create_slots((ROWS, dim), "table")
    for k, (rows, grads) in enumerate(steps):
        grad = tf.IndexedSlices(tf.constant(grads[: len(rows)]), tf.constant(rows, tf.int64))
        statistic = None if statistics is None else tf.constant(statistics[k][: len(rows)])
        rule.apply(rule.target(table, slots), grad, learning_rate, k + 1, statistic)
    return tf.cast(table, tf.float32).numpy(), {n: np.asarray(s.value) for n, s in slots.items()}


def _both(*arguments, **options):
    found = _train(*arguments, **options)
    with without_kernels():
        expected = _train(*arguments, **options)
    return found, expected


def _same(found, expected, rtol=1e-6, atol=1e-6):
    np.testing.assert_allclose(found[0], expected[0], rtol=rtol, atol=atol)
    assert found[1].keys() == expected[1].keys()
    for name, slot in found[1].items():
        assert slot.dtype == np.float32
        np.testing.assert_allclose(slot, expected[1][name], rtol=max(rtol, 1e-6), atol=atol, err_msg=name)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=5, deadline=None)
@given(dim=st.sampled_from(DIMS), seed=st.integers(0, 2**31))
def test_float32_tables_equal_the_twin(name, dim, seed):
    # FTRL's linear term is a difference of large numbers, and its powers are not rounded alike.
    _same(*_both(ALL[name], tf.float32, _steps(dim, seed), dim), atol=1e-5 if "ftrl" in name else 1e-6)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
@settings(max_examples=2, deadline=None)
@given(dim=st.sampled_from(DIMS), seed=st.integers(0, 2**31))
def test_16_bit_tables_equal_the_twin(name, dtype, dim, seed):
    # One step: of equal rows the update differs in float32's last bit, the stored row in one of its own.
    unit = 2**-7 if dtype == tf.bfloat16 else 2**-10
    _same(*_both(RULES[name], dtype, _steps(dim, seed)[:1], dim), rtol=unit, atol=1e-5)


@settings(max_examples=10, deadline=None)
@given(dim=st.sampled_from(DIMS), seed=st.integers(0, 2**31))
def test_a_given_row_statistic_is_used_as_it_is(dim, seed):
    rng = np.random.default_rng(seed)
    statistics = [rng.uniform(0, 3, (ROWS, 1)).astype(np.float32) for _ in range(3)]
    rule = optimizers.RowwiseAdagradRule()
    found, expected = _both(rule, tf.float32, _steps(dim, seed), dim, statistics=statistics)
    _same(found, expected)
    total = np.full((ROWS, 1), 0.1)
    for (rows, _), statistic in zip(_steps(dim, seed), statistics, strict=True):
        total[rows] += statistic[: len(rows)]
    np.testing.assert_allclose(found[1]["accumulator"], total, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    dim=st.sampled_from(DIMS),
    draw=st.integers(0, 2**31),
    seed=st.integers(0, 2**62),
    step=st.integers(1, 2**40),
    first_row=st.integers(0, 2**40),
    row_step=st.integers(1, 9),
    first_column=st.integers(0, 200),
)
def test_rounding_by_chance_has_the_bits_of_the_twin(
    dim, draw, seed, step, first_row, row_step, first_column
):
    rng = np.random.default_rng(draw)
    rows = rng.permutation(ROWS)
    # Every exponent, both signs, numbers behind which infinity comes, and what is no number.
    values = rng.normal(size=(ROWS, dim)) * 2.0 ** rng.integers(-126, 128, (ROWS, dim))
    values = np.where(
        rng.random((ROWS, dim)) < 0.05, rng.choice([np.inf, -np.inf, np.nan, 0.0, 3.4e38]), values
    )
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    rule = optimizers.SGD(stochastic_rounding=True, seed=seed)
    # w -= -1 * g on a table of zeros: the table is g, rounded.
    table = tf.Variable(tf.zeros([ROWS, dim], tf.bfloat16))
    target = rule.target(table, {}, first_row=first_row, row_step=row_step, first_column=first_column)
    rule.apply(target, tf.IndexedSlices(tf.constant(values), tf.constant(rows, tf.int64)), -1.0, step)
    table_rows = tf.constant(first_row + rows * row_step, tf.int64)
    expected = round_by_chance(tf.constant(values), table_rows, first_column, step, seed)
    found = tf.gather(tf.convert_to_tensor(table), rows)
    numbers = ~np.isnan(values)
    bits, twin = tf.bitcast(found, tf.uint16).numpy(), tf.bitcast(expected, tf.uint16).numpy()
    # TensorFlow's threads flush subnormal numbers to zero.
    normal = np.abs(values) >= 2.0**-126
    assert (bits == twin)[numbers & normal].all()
    assert np.isnan(tf.cast(found, tf.float32).numpy())[~numbers].all()


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "rmsprop"])
def test_an_update_rounded_by_chance_has_the_bits_of_the_twin(name):
    rule = dataclasses.replace(RULES[name], stochastic_rounding=True, seed=7)
    found, expected = _both(rule, tf.bfloat16, _steps(33, 0), 33)
    assert (found[0] == expected[0]).mean() > 0.999  # Chance only differs where float32 does.
    plain, _ = _train(RULES[name], tf.bfloat16, _steps(33, 0), 33)
    assert (found[0] != plain).mean() > 0.1
