"""Table gradients that need not be written down: an IndexedSlices whose sums only run when somebody reads them.

The gradient of a grouped lookup is, for every table, an IndexedSlices with unique rows and their sums. What it is made
of, the features' ids and the gradients of their vectors, hangs on its values. In a tf.function the update takes that
instead, sums and updates each row in one kernel, and the op that would have written the sums down is pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from distributed_embeddings.ops import kernels
from distributed_embeddings.ops.features import features_of
from distributed_embeddings.ops.rows import is_unique, mark_unique

_PENDING = "_distributed_embeddings_pending"


class PendingGradients(Protocol):
    """Gradients of several tables of one op. num_rows, dims: by table. divisible: some tables can be updated without
    the others."""

    num_rows: tuple[int, ...]
    dims: tuple[int, ...]
    divisible: bool

    def sums(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Unique rows int64 [u] and their sums float32 [u, dim], by table."""

    def update(self, which: Sequence[int], handles: Sequence[tf.Tensor], rule: dict[str, Any]) -> None:
        """Update tables `which`, whose variables are `handles`; rule: the kernels' arguments for it."""


@dataclass(frozen=True)
class Pending:
    """One table's part."""

    gradients: PendingGradients
    table: int


def slices(gradients: PendingGradients) -> list[tf.IndexedSlices]:
    """The gradients of all tables."""
    rows, sums = gradients.sums()
    result = []
    for t, (r, s) in enumerate(zip(rows, sums, strict=True)):
        mark_unique(s, r)
        setattr(s, _PENDING, Pending(gradients, t))
        shape = tf.constant([gradients.num_rows[t], gradients.dims[t]], tf.int64)
        result.append(tf.IndexedSlices(s, r, dense_shape=shape))
    return result


def pending(gradient: tf.IndexedSlices) -> Pending | None:
    """What the gradient is made of; None when it is not of a grouped lookup or has been through other hands.

    None outside of a tf.function too: there the sums have run already.
    """
    if tf.executing_eagerly() or not is_unique(gradient):
        return None
    return getattr(gradient.values, _PENDING, None)


@dataclass(frozen=True, eq=False)
class FeatureGradients:
    """Gradients of a lookup by features. features: the kernels' arguments for them. grads: of their vectors."""

    num_rows: tuple[int, ...]
    dims: tuple[int, ...]
    features: dict[str, Any]
    grads: tuple[tf.Tensor, ...]
    divisible = True

    @classmethod
    def of_lookup(cls, op: Any, upstream: Sequence[Any]) -> FeatureGradients:
        """From the op DembLookup and the gradients of its vectors (in eager mode: from the tape's record of it)."""
        features = features_of(op, op.get_attr("num_tables"))
        return cls(tuple(op.get_attr("num_rows")), tuple(op.get_attr("dims")), features, tuple(upstream))

    def sums(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        return kernels.library().demb_sum_gradients(
            **self.features,
            grads=self.grads,
            num_tables=len(self.dims),
            num_rows=list(self.num_rows),
            dims=list(self.dims),
        )

    def update(self, which: Sequence[int], handles: Sequence[tf.Tensor], rule: dict[str, Any]) -> None:
        kept = [f for f, table in enumerate(self.features["table_of"]) if table in which]
        kernels.library().demb_update(
            handles,
            **rule,
            **_of_features(self.features, kept, {table: t for t, table in enumerate(which)}),
            grads=[self.grads[f] for f in kept],
            dims=[self.dims[t] for t in which],
        )

    def weights_gradients(self, handles: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Gradients of the per-id weights, in their order."""
        if not self.features["weights"]:
            return []
        return kernels.library().demb_weights_gradient(
            handles, **self.features, grads=self.grads, dims=list(self.dims)
        )


def _of_features(features: dict[str, Any], kept: Sequence[int], table: dict[int, int]) -> dict[str, Any]:
    """The arguments for some of the features, with tables renumbered."""
    if len(kept) == len(features["table_of"]):
        return {**features, "table_of": [table[t] for t in features["table_of"]]}
    splits = [features["splits_of"][f] for f in kept]
    weights = [features["weights_of"][f] for f in kept]
    some_splits = [s for s in splits if s >= 0]
    some_weights = [w for w in weights if w >= 0]
    return {
        "ids": [features["ids"][f] for f in kept],
        "splits": [features["splits"][s] for s in some_splits],
        "weights": [features["weights"][w] for w in some_weights],
        "table_of": [table[features["table_of"][f]] for f in kept],
        "splits_of": [some_splits.index(s) if s >= 0 else -1 for s in splits],
        "weights_of": [some_weights.index(w) if w >= 0 else -1 for w in weights],
        "combiners": [features["combiners"][f] for f in kept],
        "invalid_ids": features["invalid_ids"],
    }
