"""Readers and generators: the same rows in the same order for any number of shards.

TensorFlow is imported by `Batches.to_tf_dataset` only.
"""

from .batches import Batch as Batch
from .batches import Batches as Batches
from .criteo import CriteoTsv as CriteoTsv
from .criteo_writer import write_criteo_tsv as write_criteo_tsv
from .features import DENSE as DENSE
from .features import WEIGHTS_SUFFIX as WEIGHTS_SUFFIX
from .features import Columns as Columns
from .features import Feature as Feature
from .features import Ragged as Ragged
from .libfm import FRAPPE_FIELDS as FRAPPE_FIELDS
from .libfm import load_libfm as load_libfm
from .movielens import load_movielens as load_movielens
from .paths import expand_paths as expand_paths
from .random_ids import RandomIds as RandomIds
from .sources import InMemoryTable as InMemoryTable
from .sources import Stream as Stream
from .sources import Table as Table
from .sources import TableSlice as TableSlice
from .synthetic import DEFAULT_VOCABULARY_SIZES as DEFAULT_VOCABULARY_SIZES
from .synthetic import SyntheticClicks as SyntheticClicks
from .weighted import WeightedInteractions as WeightedInteractions
