"""Options of `demb bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class OpsOptions:
    """Lookup and update of embedding tables, against FBGEMM, torch, Keras and plain TensorFlow ops."""

    suite: Literal["issue", "quick", "large", "rows", "keras", "growth", "one"] = "quick"
    """issue: the whole grid, hours; quick: minutes; large: tables of 1e7 rows, fewer than 26; rows: 1e7 against 1e5
    rows; keras: 10M × 16; growth: memory over 1,000 steps; one: a tiny case."""
    filter: str | None = None
    """Only cases whose key matches this regular expression: 26x1e5x16-h1-b4096-zipf1.05-adagrad-t1."""
    competitors: tuple[str, ...] = ()
    """Who competes, instead of the suite's own choice: ours, fbgemm, fbgemm_huge, embedding_bag, plain_tf, keras,
    limit (the machine's memory)."""
    repeats: int = 7
    """Rounds: in each, every competitor has a turn of some steps in every phase."""
    max_seconds: float = 60.0
    """No further round of a case begins after so many seconds of rounds."""
    out: Path = Path("benchmarks/reports")
    """Directory of the report."""
    name: str | None = None
    """The report's name. Default: <date>-ops-<suite>."""
    peers: Path | None = None
    """The peers' Python. Default: .venv-peers/bin/python, which `make bench-peers` makes."""
    resume: bool = False
    """Go on with the newest report of the suite, or the one named: its cases are not measured again."""
    shuffle: bool = False
    """Take the cases, in groups of the same ids, in a random order, always the same: a run that is stopped holds a
    fair sample of the suite."""


@dataclass(frozen=True)
class TrainBenchOptions:
    """Whole training steps against plain Keras and TorchRec, with phases and memory."""

    model: Literal["dlrm", "criteo", "tiny", "small", "medium", "large", "jumbo", "colossal"] = "dlrm"
    """dlrm: 26 tables of 100k × 16; the others are the synthetic size ladder, ours alone."""
    workers: int | None = None
    """Processes. Default: dlrm on 2 and on 1, others on 2."""
    batch: int | None = None
    """Samples a step of all workers together. Default: 4,096 for dlrm, 65,536 for others."""
    competitors: tuple[str, ...] = ()
    """Who competes: ours, keras, torchrec, plain_tf (ours without kernels). Default: the first three."""
    repeats: int = 9
    """Rounds: in each, every competitor has a turn of some steps."""
    max_seconds: float = 120.0
    """No further round of a case begins after so many seconds of rounds."""
    out: Path = Path("benchmarks/reports")
    """Directory of the report."""
    name: str | None = None
    """The report's name. Default: <date>-train-<model>."""
    peers: Path | None = None
    """The peers' Python. Default: .venv-peers/bin/python, which `make bench-peers` makes."""


@dataclass(frozen=True)
class PipelineBenchOptions:
    """Steps with and without the pipeline: on this machine, and where the exchange waits on an emulated network."""

    rates: tuple[str, ...] = ("none", "1gbit")
    """Networks: none = this machine alone; else the rate between two emulated hosts, as `tc` writes it (needs root)."""
    modes: tuple[str, ...] = ("off", "0", "1", "exact")
    """off = without pipeline; else what --staleness takes."""
    workers: int = 2
    batch: int = 4096
    """Samples a step of all workers together."""
    dim: int = 64
    """Width of the 26 tables of 100,000 rows."""
    bottom: tuple[int, ...] = (64,)
    """Hidden layers of the bottom MLP."""
    top: tuple[int, ...] = (64, 32)
    """Hidden layers of the top MLP."""
    rounds: int = 5
    """In each, every mode has a turn."""
    steps: int = 30
    """Of a turn; the first three are not counted."""
    trace: Path | None = None
    """A directory for Chrome traces of all modes."""
    out: Path = Path("benchmarks/reports")
    """Directory of the report."""
    name: str | None = None
    """The report's name. Default: <date>-pipeline."""


@dataclass(frozen=True)
class QualityOptions:
    """AUC and log loss by staleness, over seeds."""

    data: str = "synthetic"
    """As `demb train` takes it."""
    valid: str | None = None
    """Alike."""
    staleness: tuple[str, ...] = ("0", "exact", "1", "2", "4")
    """What is compared; off = without pipeline."""
    seeds: int = 5
    workers: int = 2
    arguments: str = ""
    """Further options for `demb train`: --arguments="--epochs 1 --batch-size 512"."""
    out: Path = Path("benchmarks/reports")
    """Directory of the report."""
    name: str | None = None
    """The report's name. Default: <date>-quality."""


@dataclass(frozen=True)
class ReportOptions:
    """Write the Markdown of reports again from their JSON files."""

    files: tyro.conf.Positional[tuple[Path, ...]]


@dataclass(frozen=True)
class BenchOptions:
    """Benchmarks: interleaved runs, ratios, a report in JSON and Markdown."""

    bench: (
        Annotated[OpsOptions, tyro.conf.subcommand("ops")]
        | Annotated[TrainBenchOptions, tyro.conf.subcommand("train")]
        | Annotated[PipelineBenchOptions, tyro.conf.subcommand("pipeline")]
        | Annotated[QualityOptions, tyro.conf.subcommand("quality")]
        | Annotated[ReportOptions, tyro.conf.subcommand("report")]
    )


def run_bench(options: BenchOptions) -> int:
    """The command's status."""
    if isinstance(options.bench, ReportOptions):
        from .ops import run_report

        return run_report(options.bench.files)
    if isinstance(options.bench, PipelineBenchOptions):
        from .pipeline import run_pipeline_bench

        return run_pipeline_bench(options.bench)
    if isinstance(options.bench, QualityOptions):
        from .quality import run_quality

        return run_quality(options.bench)
    if isinstance(options.bench, TrainBenchOptions):
        from .train import run_train_bench

        return run_train_bench(options.bench)
    from .ops import run_ops

    return run_ops(options.bench)
