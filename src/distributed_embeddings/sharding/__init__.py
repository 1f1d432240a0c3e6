"""Executes a plan: ids to the owners of rows, vectors back, gradients the same way in reverse."""

from distributed_embeddings.sharding.agreement import require_equal_text as require_equal_text
from distributed_embeddings.sharding.agreement import signature as signature
from distributed_embeddings.sharding.batch_weight import variable as batch_weight_variable
from distributed_embeddings.sharding.model_parallel_input import local_features as local_features
from distributed_embeddings.sharding.model_parallel_input import (
    model_parallel_lookup as model_parallel_lookup,
)
from distributed_embeddings.sharding.model_parallel_input import owner_pooled_layout as owner_pooled_layout
from distributed_embeddings.sharding.sharded_lookup import LookupSettings as LookupSettings
from distributed_embeddings.sharding.sharded_lookup import Tables as Tables
from distributed_embeddings.sharding.sharded_lookup import add_replicated as add_replicated
from distributed_embeddings.sharding.sharded_lookup import sharded_lookup as sharded_lookup
from distributed_embeddings.sharding.staged import LookupPlan as LookupPlan
from distributed_embeddings.sharding.staged import StagedLookup as StagedLookup

__all__ = [
    "LookupPlan",
    "LookupSettings",
    "StagedLookup",
    "Tables",
    "add_replicated",
    "batch_weight_variable",
    "local_features",
    "model_parallel_lookup",
    "owner_pooled_layout",
    "require_equal_text",
    "sharded_lookup",
    "signature",
]
