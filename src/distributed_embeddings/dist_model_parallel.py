"""The three lines: `import distributed_embeddings.dist_model_parallel as dmp`."""

from distributed_embeddings.comm import init as init
from distributed_embeddings.comm import local_rank as local_rank
from distributed_embeddings.comm import local_size as local_size
from distributed_embeddings.comm import rank as rank
from distributed_embeddings.comm import shutdown as shutdown
from distributed_embeddings.comm import size as size
from distributed_embeddings.layers import BroadcastGlobalVariablesCallback as BroadcastGlobalVariablesCallback
from distributed_embeddings.layers import DistributedEmbedding as DistributedEmbedding
from distributed_embeddings.layers import DistributedGradientTape as DistributedGradientTape
from distributed_embeddings.layers import DistributedOptimizer as DistributedOptimizer
from distributed_embeddings.layers import Embedding as Embedding
from distributed_embeddings.layers import MetricAverageCallback as MetricAverageCallback
from distributed_embeddings.layers import allreduce as allreduce
from distributed_embeddings.layers import broadcast_variables as broadcast_variables
from distributed_embeddings.layers import embedding_lookup as embedding_lookup
from distributed_embeddings.layers import even_batches as even_batches
from distributed_embeddings.layers import save_model as save_model
from distributed_embeddings.ops import kernels as _kernels
from distributed_embeddings.optimizers import RowwiseAdagrad as RowwiseAdagrad
from distributed_embeddings.pipeline import EmbeddingPipeline as EmbeddingPipeline
from distributed_embeddings.pipeline import ExchangeManager as ExchangeManager
from distributed_embeddings.pipeline import PipelineDataset as PipelineDataset
from distributed_embeddings.pipeline import pipeline as pipeline

_kernels.register()
