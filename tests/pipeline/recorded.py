"""Steps recorded as the pipeline does, and their ids: extracted, and as the step itself looks them up."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.layers.hand_over import handed_over
from distributed_embeddings.pipeline.recording import Extraction, Recorder
from distributed_embeddings.pipeline.tensors import Form, any_batch, flatten

ROWS, DIM = 20, 4


def tables(name: str, *features: str, combiner: str | None = "sum", **options) -> dmp.DistributedEmbedding:
    embeddings = [dmp.Embedding(ROWS, DIM, combiner, name=f"table_{f}") for f in features]
    return dmp.DistributedEmbedding(embeddings, feature_names=features, name=name, **options)


def record(step, *features: Any, trainable=()):
    """Trace a step as the pipeline does. Returns the concrete function, the sites that can be cut off, and why others
    cannot. Warnings are errors in tests: where something is refused, the test must say so."""
    spec = tuple(tf.nest.map_structure(lambda f: any_batch(tf.type_spec_from_value(f)), f) for f in features)
    form, recorder = Form(spec), Recorder()
    concrete = recorder.trace(lambda *flat: step(*form.pack(flat)), flatten(spec))
    return concrete, recorder.usable(concrete.graph, trainable), recorder.refused


class Spy:
    """Notes what each lookup of an eager step is asked, and lets it be."""

    def __init__(self) -> None:
        self.asked: list[list[np.ndarray]] = []

    def on_lookup(self, layer, ids, weights):
        self.asked.append([t.numpy() for t in flatten([ids, weights])])

    def covers(self, plan):
        return False


def asked_by(step, *features: Any) -> list[list[np.ndarray]]:
    spy = Spy()
    with handed_over(spy):
        step(*features)
    return spy.asked


def extracted(extraction: Extraction, *features: Any) -> list[list[np.ndarray]]:
    """Made eagerly and, alike, inside a function, as the embedding graph does."""
    flat = flatten(features)
    part = [flat[i] for i in extraction.inputs]
    made = [[t.numpy() for t in flatten(site)] for site in extraction(part)]
    traced = tf.function(lambda *part: [flatten(site) for site in extraction(part)])(*part)
    check_alike([[t.numpy() for t in site] for site in traced], made)
    return made


def check_extraction(step, *batches: tuple[Any, ...], inputs: list[int] | None = None) -> Extraction:
    """The extraction recorded from the first batch gives every batch the ids that the step would look up."""
    concrete, sites, refused = record(step, *batches[0])
    assert not refused
    extraction = Extraction(concrete, sites)
    for batch in batches:
        check_alike(extracted(extraction, *batch), asked_by(step, *batch))
    if inputs is not None:
        assert extraction.inputs == inputs
    return extraction


def check_alike(found: list[list[np.ndarray]], wanted: list[list[np.ndarray]]) -> None:
    for site, asked in zip(found, wanted, strict=True):
        for mine, theirs in zip(site, asked, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)


def numbers(seed: int, *shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).integers(0, ROWS, shape))
