"""Example models in plain Keras: embeddings by feature name, no rank in sight."""

from .bags import BagModel as BagModel
from .dlrm import DLRM as DLRM
from .embedding_dict import EmbeddingDict as EmbeddingDict
from .interaction import DotInteraction as DotInteraction
