"""Options of the commands as dataclasses; None means "as the data suits", filled in by `presets.resolve`."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

Format = Literal["auto", "criteo", "synthetic", "libfm", "movielens", "weighted"]
Backend = Literal["mpi", "tensorflow"]


@dataclass(frozen=True)
class DataOptions:
    """What is read."""

    data: str = "synthetic"
    """Training data: a path, glob or brace pattern, or 'synthetic'. MovieLens: the directory."""
    valid: str | None = None
    """Validation data, alike. MovieLens and weighted interactions: a random tenth of the data."""
    format: Format = "auto"
    """criteo (TSV), synthetic, libfm (Frappe), movielens, weighted (user, item, weight)."""
    buckets: int = 1000
    """Criteo: ids of each categorical feature, one of them for missing values."""
    strict: bool = False
    """Criteo: a row with too few fields is bad, instead of padded."""
    bad_rows: Literal["raise", "skip"] = "raise"
    """Criteo: end with file:line, or skip and count."""
    stream: bool = False
    """Criteo: read the files in each epoch anew instead of holding the rows in memory."""
    rows: int = 600_000
    """Synthetic: training rows."""
    valid_rows: int = 50_000
    """Synthetic: validation rows."""


@dataclass(frozen=True)
class ModelOptions:
    """What is trained."""

    model: Literal["dlrm", "bags"] | None = None
    """dlrm: dot interaction; bags: pooled bags, second-order crosses, MLP."""
    embedding_dim: int | None = None
    """Width of every table."""
    bottom_mlp: tuple[int, ...] | None = None
    """dlrm: hidden layers over the numbers."""
    top_mlp: tuple[int, ...] | None = None
    """Hidden layers over the interactions."""
    wide: bool | None = None
    """dlrm: the top layers also see numbers and vectors as they are; helps with few samples."""
    dropout: float | None = None
    """Rate in the top layers. Masks differ with the number of workers."""
    embedding_l2: float | None = None
    """Penalty on the vectors a batch looked up."""
    mixed_precision: bool = False
    """Dense layers in bfloat16, tables and sums in float32."""


@dataclass(frozen=True)
class ShardingOptions:
    """Who holds what; see `DistributedEmbedding`. Thresholds count elements."""

    strategy: Literal["auto", "basic", "memory_balanced", "memory_optimized"] = "auto"
    column_slice_threshold: int | None = None
    row_slice_threshold: int | None = None
    data_parallel_threshold: int | None = None
    row_pooling: Literal["destination", "owner"] = "destination"
    wire_dtype: Literal["float32", "bfloat16", "float16"] = "float32"


@dataclass(frozen=True)
class TrainOptions:
    """Train on N workers; validate after each epoch."""

    inputs: Annotated[DataOptions, tyro.conf.arg(name="")] = DataOptions()
    network: Annotated[ModelOptions, tyro.conf.arg(name="")] = ModelOptions()
    sharding: Annotated[ShardingOptions, tyro.conf.arg(name="")] = ShardingOptions()
    workers: int | None = None
    """Worker processes, started here unless this process is one of them already. Default: 1, or the job's."""
    backend: Backend = "mpi"
    """How workers talk to each other."""
    batch_size: int | None = None
    """Samples a step of all workers together."""
    epochs: int | None = None
    optimizer: str | None = None
    """Keras name: adam, adagrad, sgd, …. Tables get the row rule of the same name."""
    learning_rate: float | None = None
    staleness: str | None = None
    """Embedding work beside dense work: 'exact' (the same bits), or k: lookups read all updates but the last k; 0:
    ids go ahead alone. Default: no pipeline."""
    trace: Path | None = None
    """With --staleness: write what ran when, on all workers, as a Chrome trace (chrome://tracing, Perfetto)."""
    seed: int = 1
    preset: Literal["demo", "demo-long"] | None = None
    """A set of defaults; options given beside it count."""
    run_dir: Path | None = None
    """Where config and result are kept. Default: runs/<format>-<time>."""
    save: Path | None = None
    """Write the best epoch's model here, a `.keras` file."""
    json: Path | None = None
    """Write the result here."""
    print_config: bool = False
    """Print the effective configuration as JSON and end."""


def staleness_of(text: str) -> Any:
    """What --staleness says: "exact" or a number. Raises ValueError."""
    if text != "exact" and not text.isdecimal():
        raise ValueError(
            f"`--staleness` must be 'exact' or a number of steps from 0 on. Received: --staleness {text}"
        )
    return text if text == "exact" else int(text)


@dataclass(frozen=True)
class EvaluateOptions:
    """Metrics of a trained model on data."""

    run: tyro.conf.Positional[Path]
    """Directory of the run, with its config.json."""
    weights: Path | None = None
    """The saved model. Default: what the run saved (--save)."""
    data: str | None = None
    """Data to evaluate on. Default: the run's validation data."""
    workers: int | None = None
    """Worker processes. Default: the run's."""
    backend: Backend | None = None
    json: Path | None = None
    """Write the result here."""


@dataclass(frozen=True)
class LaunchOptions:
    """Start workers: `demb launch -n 4 -- python script.py`. Ends with a failing worker's status."""

    workers: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 2
    """Number of processes."""
    backend: Backend = "mpi"
    """mpi: mpirun; tensorflow: local processes with TF_CONFIG."""
    hosts: str | None = None
    """mpi: "a:2,b:2", machines and their processes."""
    timeout: float | None = None
    """Seconds after which everything is ended, with status 124."""


@dataclass(frozen=True)
class DoctorOptions:
    """Check this installation: versions, devices, MPI, an exchange between two processes."""

    timeout: float = 90.0
    """Seconds an exchange may take."""


def to_dict(options: Any) -> dict[str, Any]:
    """A JSON-able dict; paths as text."""
    return {k: _plain(v) for k, v in dataclasses.asdict(options).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def train_options(config: dict[str, Any]) -> TrainOptions:
    """The inverse of `to_dict`. Raises ValueError naming what a config has that this version does not know."""
    groups = {"inputs": DataOptions, "network": ModelOptions, "sharding": ShardingOptions}
    values: dict[str, Any] = {}
    for name, value in config.items():
        values[name] = _fill(groups[name], value) if name in groups else value
    return _fill(TrainOptions, values)


def _fill(cls: type[Any], values: dict[str, Any]) -> Any:
    fields = {field.name for field in dataclasses.fields(cls)}
    unknown = sorted(set(values) - fields)
    if unknown:
        raise ValueError(
            f"a run's config must hold the fields of {cls.__name__}. Received: unknown {unknown}"
        )
    hints = typing.get_type_hints(cls)
    return cls(**{name: _typed(hints[name], value) for name, value in values.items()})


def _typed(hint: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return Path(value) if value is not None and Path in typing.get_args(hint) else value
