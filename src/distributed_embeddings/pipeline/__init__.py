"""The embedding graph beside the main graph: streams of batches, hand-over, staleness."""

from distributed_embeddings.pipeline.dataset import PipelineDataset as PipelineDataset
from distributed_embeddings.pipeline.embedding_pipeline import EmbeddingPipeline as EmbeddingPipeline
from distributed_embeddings.pipeline.embedding_pipeline import StepResult as StepResult
from distributed_embeddings.pipeline.exchange_manager import ExchangeManager as ExchangeManager
from distributed_embeddings.pipeline.exchange_manager import State as State
from distributed_embeddings.pipeline.failure import DirtyTablesError as DirtyTablesError
from distributed_embeddings.pipeline.keras_pipeline import KerasPipeline as KerasPipeline
from distributed_embeddings.pipeline.keras_pipeline import pipeline as pipeline
from distributed_embeddings.pipeline.report import Report as Report

__all__ = [
    "DirtyTablesError",
    "EmbeddingPipeline",
    "ExchangeManager",
    "KerasPipeline",
    "PipelineDataset",
    "Report",
    "State",
    "StepResult",
    "pipeline",
]
