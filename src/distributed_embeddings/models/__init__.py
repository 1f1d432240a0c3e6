"""Example models in plain Keras: embeddings by feature name, no rank in sight."""

from .bags import BagModel as BagModel
from .dlrm import DLRM as DLRM
from .embedding_dict import EmbeddingDict as EmbeddingDict
from .interaction import DotInteraction as DotInteraction
from .synthetic import RepeatedUniform as RepeatedUniform
from .synthetic import SyntheticModel as SyntheticModel
from .synthetic import SyntheticSize as SyntheticSize
from .synthetic import synthetic_size as synthetic_size
from .synthetic import synthetic_sizes as synthetic_sizes
