"""One worker alone: the pipeline's own graph learns what a step without it learns, and checks what it checks."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from exact_worker import difference, train
from pipeline_cases import Batches, Case, loss_fn, make_model, state_of

from distributed_embeddings.pipeline import EmbeddingPipeline
from distributed_embeddings.pipeline.embedding_pipeline import make_step
from distributed_embeddings.pipeline.local_graph import LocalGraph
from twins import needs_kernels, without_kernels

CASES = [
    Case("table_destination", "adagrad", "tiny", "uneven", 0),
    Case("row_cyclic_owner", "rowwise_adagrad", "zipf", "even", 1),
    Case("mixed", "adam", "zipf", "uneven", 0),
    Case("mixed", "momentum", "tiny", "even", 1, invalid_ids="zero"),
    Case("column_owner", "adam", "tiny", "even", 0, invalid_ids="clip"),
    Case("mixed", "adam", "zipf", "even", 1, loss_scale=True),
]
PATHS = [pytest.param(contextlib.nullcontext, marks=needs_kernels, id="kernel"), without_kernels]


def train_without(case: Case):
    """Losses, what was learnt, and counts of invalid ids of steps without a pipeline."""
    model, optimizer = make_model(case, 1)
    data = Batches(case, 0, 1)
    step = tf.function(make_step(model, loss_fn, optimizer), input_signature=data.element_spec)
    losses = [float(step(*batch)) for _ in range(2) for batch in data]
    return (losses, state_of(model, optimizer)), model.tables.invalid_id_counts()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_same_bits_as_without(path, case):
    with path():
        want, counts = train_without(case)
        assert difference(train(case, 0, 1, 0, 1), want, "0 alone") == ""
        assert difference(train(case, 0, 1, "exact", 1), want, "exact alone") == ""
        model, optimizer = make_model(case, 1)
        pipe = EmbeddingPipeline(model, loss_fn, optimizer, Batches(case, 0, 1), 1)
        assert isinstance(pipe.graphs.embedding, LocalGraph)
        for _ in range(2):
            list(pipe)
        assert model.tables.invalid_id_counts() == counts
        assert any(counts.values()) == (case.invalid_ids != "raise")


class Wrong(Batches):
    """One id of one feature lies behind its table's end."""

    def __init__(self, case: Case, feature: str) -> None:
        self._wrong = feature
        super().__init__(case, 0, 1)

    def _element(self, step, count):
        (inputs, labels) = super()._element(step, count)
        if step == 3:
            ids = inputs["ids"][self._wrong].numpy()
            ids.reshape(-1)[0] = 10**6
            inputs["ids"][self._wrong] = tf.constant(ids)
        return inputs, labels


@pytest.mark.parametrize("staleness", [0, 2, "exact"])
@pytest.mark.parametrize(("feature", "table"), [("f1_one", "t1"), ("f2_weighted_fixed", "t2")])
def test_an_invalid_id_is_named(staleness, feature, table):
    """Table t1 is data-parallel: the main graph looks it up, this one checks its ids."""
    case = Case("mixed", "adagrad", "zipf", "even", 0)
    model, optimizer = make_model(case, 1)
    pipe = EmbeddingPipeline(model, loss_fn, optimizer, Wrong(case, feature), staleness)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){feature}.*{table}.*1000000"):
        list(pipe)


def test_the_report_says_how_exact_runs():
    case = CASES[0]
    model, optimizer = make_model(case, 1)
    pipe = EmbeddingPipeline(model, loss_fn, optimizer, Batches(case, 0, 1), "exact")
    for _ in range(2):
        assert np.isfinite([done.result for done in pipe]).all()
    assert "staleness exact (run as 0: one worker)" in str(pipe.report())
