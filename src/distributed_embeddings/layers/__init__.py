"""The Keras face: layers, tape, optimizer wrapper, callbacks."""

from distributed_embeddings.layers.broadcast import (
    BroadcastGlobalVariablesCallback as BroadcastGlobalVariablesCallback,
)
from distributed_embeddings.layers.broadcast import MetricAverageCallback as MetricAverageCallback
from distributed_embeddings.layers.broadcast import allreduce as allreduce
from distributed_embeddings.layers.broadcast import broadcast_variables as broadcast_variables
from distributed_embeddings.layers.distributed_embedding import DistributedEmbedding as DistributedEmbedding
from distributed_embeddings.layers.embedding import Embedding as Embedding
from distributed_embeddings.layers.embedding import embedding_lookup as embedding_lookup
from distributed_embeddings.layers.even_batches import even_batches as even_batches
from distributed_embeddings.layers.optimizer import DistributedOptimizer as DistributedOptimizer
from distributed_embeddings.layers.save import save_model as save_model
from distributed_embeddings.layers.tape import DistributedGradientTape as DistributedGradientTape
