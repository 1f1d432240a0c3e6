"""Who holds what: specs in, a frozen plan out. Pure Python, no TensorFlow, no communication."""

from distributed_embeddings.planner.layout import Lane as Lane
from distributed_embeddings.planner.layout import Layout as Layout
from distributed_embeddings.planner.layout import make_layout as make_layout
from distributed_embeddings.planner.partition import make_plan as make_plan
from distributed_embeddings.planner.plan import Placement as Placement
from distributed_embeddings.planner.plan import Pooling as Pooling
from distributed_embeddings.planner.plan import Shard as Shard
from distributed_embeddings.planner.plan import ShardingPlan as ShardingPlan
from distributed_embeddings.planner.plan import ShardingType as ShardingType
from distributed_embeddings.planner.replay import replay as replay
from distributed_embeddings.planner.specs import FeatureSpec as FeatureSpec
from distributed_embeddings.planner.specs import TableSpec as TableSpec
from distributed_embeddings.planner.specs import Topology as Topology
