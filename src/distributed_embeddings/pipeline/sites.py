"""One lookup of the model as the pipeline runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from distributed_embeddings.comm import Communicator
from distributed_embeddings.ops.block import Block
from distributed_embeddings.pipeline.recording import Site
from distributed_embeddings.pipeline.tensors import Form, any_batch, flatten
from distributed_embeddings.sharding import StagedLookup


@dataclass(frozen=True)
class PipelinedSite:
    """A lookup that both graphs know. form, specs: of its routed features' outputs, flat; splits are int64."""

    layer: Any
    lookup: StagedLookup
    form: Form
    specs: list[tf.TensorSpec]

    @classmethod
    def of(cls, site: Site, communicator: Communicator) -> PipelinedSite:
        lookup = StagedLookup(communicator, site.layer.plan, site.layer.lookup_settings)
        outputs = [_wide_splits(site.outputs[i]) for i in lookup.routed]
        specs = [any_batch(tf.TensorSpec(t.shape, t.dtype)) for t in flatten(outputs)]
        return cls(site.layer, lookup, Form(outputs), specs)

    @property
    def vectors(self) -> list[int]:
        """Which of the flat outputs are vectors, and not the splits of ragged ones."""
        return [i for i, spec in enumerate(self.specs) if spec.dtype == tf.float32]

    @property
    def blocks(self) -> list[Block]:
        """The blocks that this rank's lanes read."""
        return [v.block for v in self.variables]

    @property
    def variables(self) -> list[Any]:
        """The tables that this rank's lanes read."""
        return [self.layer.tables.variable(lane.shard) for lane in self.lookup.own_lanes]


def is_exchanged(site: Site) -> bool:
    """Whether the lookup has a feature whose table is not on every rank: else there is nothing to hide."""
    return any(p.sharding.value != "data_parallel" for p in site.layer.plan.placements)


def _wide_splits(output: Any) -> Any:
    return output.with_row_splits_dtype(tf.int64) if isinstance(output, tf.RaggedTensor) else output


def split_by_site(sites: Sequence[PipelinedSite], flat: Sequence[Any]) -> list[list[Any]]:
    """Flat outputs of all sites, site by site."""
    parts, start = [], 0
    for site in sites:
        parts.append(list(flat[start : start + len(site.specs)]))
        start += len(site.specs)
    return parts
