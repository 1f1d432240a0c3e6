"""Cases of `demb bench train`: what is trained on how many workers, and who competes."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .competitors import PEERS
from .process import Worker

TITLES = {
    "ours": "ours",
    "keras": "plain Keras 3, Adagrad",
    "torchrec": "TorchRec on Gloo",
    "plain_tf": "ours on plain TF ops",
}
USUAL = ("ours", "keras", "torchrec")
AIMS = {("torchrec", 2): 2.5, ("torchrec", 1): 1.6, ("keras", 1): 3.5}
"""Times a competitor's samples/s that ours aims at, by competitor and workers, for dlrm."""

_TORCHREC = "torchrec_dlrm.py"
_FOREVER = str(24 * 3600)


@dataclass(frozen=True)
class TrainCase:
    """One model on `workers` processes of `threads` threads, `batch` samples a worker and step."""

    model: str
    workers: int
    batch: int
    threads: int
    # Of dlrm only; the sizes of the ladder bring their own tables and MLP.
    tables: int = 26
    rows: int = 100_000
    dim: int = 16
    numbers: int = 13
    bottom: tuple[int, ...] = (64,)
    top: tuple[int, ...] = (64, 32)
    distribution: str = "zipf1.05"
    rule: str = "adagrad"

    @property
    def key(self) -> str:
        """dlrm-2x2048-t1: workers × samples of each, threads of each."""
        return f"{self.model}-{self.workers}x{self.batch}-t{self.threads}"

    @property
    def samples(self) -> int:
        """Samples a step of all workers together."""
        return self.batch * self.workers

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainCase:
        fields = {**values, "bottom": tuple(values["bottom"]), "top": tuple(values["top"])}
        return cls(**fields)


def make_cases(model: str, workers: int | None, batch: int | None, **changes: Any) -> list[TrainCase]:
    """The cases of a command line: dlrm on 2 workers and on 1, the ladder on 2, unless `workers` says.

    batch: samples of all workers together; default 4,096 for dlrm, 65,536 for the ladder. The cores are shared out.
    Raises ValueError for a batch that the workers cannot share equally.
    """
    samples = batch or (4096 if model == "dlrm" else 65536)
    counts = [workers] if workers is not None else [2, 1] if model == "dlrm" else [2]
    cases = []
    for count in counts:
        if count < 1 or samples < count or samples % count:
            raise ValueError(
                f"`--batch` must be a multiple of `--workers`. Received: --batch {samples} --workers {count}"
            )
        threads = max(1, len(os.sched_getaffinity(0)) // count)
        cases.append(TrainCase(model, count, samples // count, threads, **changes))
    return cases


def refusal(name: str, case: TrainCase, peers: Path | None) -> str | None:
    """Why a competitor does not run a case; None when it does."""
    if name in ("ours", "plain_tf"):
        return None
    if case.model != "dlrm":
        return "competes in dlrm only"
    if name == "keras":
        return None if case.workers == 1 else "plain Keras is one process"
    if peers is None:
        return "no environment of the peers"
    return None if (PEERS / _TORCHREC).exists() else f"{_TORCHREC} is not there"


def start(name: str, case: TrainCase, peers: Path | None) -> Worker:
    """The competitor's process, started and waiting for its case."""
    threads = str(case.threads)
    env: dict[str, str | None] = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if name == "torchrec":
        return Worker(TITLES[name], [str(peers), str(PEERS / _TORCHREC)], env)
    command = [sys.executable, "-m", f"{__package__}.worker_train", "keras" if name == "keras" else "ours"]
    if case.workers > 1:
        command = [sys.executable, "-m", "distributed_embeddings.cli.main", "launch",
                   "-n", str(case.workers), "--", *command]  # fmt: skip
    env |= {
        "TF_NUM_INTRAOP_THREADS": threads,
        # Plain Keras gets what it would have without us; an exchange that waits for a peer holds a thread.
        "TF_NUM_INTEROP_THREADS": "2",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # Plain Keras has the same model, interaction by TensorFlow's own operations.
        "DEMB_KERNELS": None if name == "ours" else "off",
        # Ranks wait for the next request while other competitors have their turns.
        "DEMB_DEADLINE_SECONDS": _FOREVER,
        "DEMB_WATCHDOG_SECONDS": _FOREVER,
    }
    return Worker(TITLES[name], command, env)
