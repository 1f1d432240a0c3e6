"""How rows are updated: one row-sparse rule a file. Cost follows the ids, never the table."""

from distributed_embeddings.optimizers.adagrad import Adagrad as Adagrad
from distributed_embeddings.optimizers.adam import Adam as Adam
from distributed_embeddings.optimizers.convert import from_keras as from_keras
from distributed_embeddings.optimizers.ftrl import Ftrl as Ftrl
from distributed_embeddings.optimizers.registry import get as get
from distributed_embeddings.optimizers.rmsprop import RMSprop as RMSprop
from distributed_embeddings.optimizers.rowwise_adagrad import RowwiseAdagrad as RowwiseAdagrad
from distributed_embeddings.optimizers.rowwise_adagrad import RowwiseAdagradRule as RowwiseAdagradRule
from distributed_embeddings.optimizers.rule import RowOptimizer as RowOptimizer
from distributed_embeddings.optimizers.rule import SlotSpec as SlotSpec
from distributed_embeddings.optimizers.sgd import SGD as SGD
