"""`DistributedGradientTape`: a gradient tape whose gradients are those of the global batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distributed_embeddings import comm
from distributed_embeddings.layers.gradients import reduce_gradients


class DistributedGradientTape:
    """Wraps a tf.GradientTape, inside or outside its `with`.

    gradient(target, sources): as tf.GradientTape's, for the mean over all workers' samples: dense gradients averaged
    (weighted by batch size), table gradients as IndexedSlices with unique rows. Call it on every rank.
    """

    def __init__(self, tape: tf.GradientTape | None = None) -> None:
        self._tape = tf.GradientTape() if tape is None else tape

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Not reduced over workers: refused on several, rather than local."""
        if comm.size() > 1:
            raise NotImplementedError("jacobians over several workers are not supported: use gradient()")
        return self._tape.jacobian(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **kwargs: Any) -> Any:
        """Gradients of `target` with the structure of `sources`. Collective."""
        gradients = self._tape.gradient(target, sources, output_gradients, **kwargs)
        flat_sources = tf.nest.flatten(sources)
        if len(flat_sources) == 1 and not isinstance(sources, list | tuple | dict):
            return reduce_gradients([gradients], flat_sources)[0]
        # IndexedSlices are composites: flattened up to the sources' structure, never into their parts.
        flat = tf.__internal__.nest.flatten_up_to(sources, gradients) if flat_sources else []
        return tf.nest.pack_sequence_as(sources, reduce_gradients(flat, flat_sources))
