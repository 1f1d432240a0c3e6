"""Each graph on its own, while the other stands still: what a pipeline's bound is made of."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median
from typing import Any

import tensorflow as tf

from distributed_embeddings.pipeline.dataset import PipelineDataset
from distributed_embeddings.pipeline.embedding_graph import ExactGraph
from distributed_embeddings.pipeline.embedding_pipeline import EmbeddingPipeline

_SETTLING = 3


def graphs_alone(pipe: EmbeddingPipeline, source: Iterable[Any], steps: int) -> dict[str, float]:
    """Median milliseconds of a batch in the embedding graph and of a step of the main graph; in exact mode also of what
    comes behind the gradient.

    The pipeline's stream must have ended or stand still; tables and dense weights are trained on. Collective.
    """
    pipe.close()
    graphs = pipe.graphs
    graph, main = graphs.embedding, graphs.main
    data = PipelineDataset(
        source,
        lambda e: [graphs.parts(e)[i] for i in graphs.embedding_inputs],
        lambda e: [graphs.parts(e)[i] for i in main.inputs],
        graphs.empty,
    )
    found: dict[str, list[float]] = {"embedding": [], "main": [], "gradient": [], "critical": []}
    before: tuple[Any, ...] | None = None
    for number in range(steps + _SETTLING):
        sample, begin = data.next_embedding(), time.perf_counter()
        plan = list(graph.plan(tf.constant(True), *sample.part))
        weight, *vectors = graph.look_up(*plan)
        spent = time.perf_counter() - begin
        batch = graphs.next_batch + number
        graphs.vectors.put([tf.constant(batch, tf.int64), weight, *vectors])
        begin = time.perf_counter()
        main(data.next_main().part)
        whole = time.perf_counter() - begin
        _, *gradient = graphs.gradients.take()
        rate, step, _, scale, *upstream = gradient
        begin = time.perf_counter()
        graph.update(*plan, rate, step, scale, *upstream)
        found["embedding"].append(spent + time.perf_counter() - begin)
        found["main"].append(whole)
        if isinstance(graph, ExactGraph):
            before = _turn(graph, plan, gradient, before, found["critical"])
    graphs.next_batch += steps + _SETTLING
    return {name: median(v[_SETTLING:]) * 1e3 for name, v in found.items() if len(v) > _SETTLING}


def _turn(
    graph: ExactGraph, plan: Any, gradient: Any, before: tuple[Any, ...] | None, seconds: list[float]
) -> tuple[Any, ...]:
    """Time the stage that exact mode has behind the gradient, of the batch before and this one."""
    if before is None:
        graph.begin()
    earlier = None if before is None else before[0]
    forward, backward = graph.announce(plan, earlier)
    merged = graph.look_up_free(*plan, *forward)
    if before is not None:
        old_plan, (rate, step, _, scale, *upstream) = before
        begin = time.perf_counter()
        graph.turn(*old_plan, *backward, rate, step, scale, *upstream, *plan, *forward, *merged)
        seconds.append(time.perf_counter() - begin)
    return plan, gradient
