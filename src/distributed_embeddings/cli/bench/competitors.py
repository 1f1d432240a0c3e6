"""Who competes: how a competitor's process is started, and where it does not compete."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .cases import Case
from .process import Worker

PEERS = Path(__file__).with_name("peers")
MAKE_PEERS = "run `make bench-peers` in the library's source tree, or name another Python by --peers"


@dataclass(frozen=True)
class Competitor:
    """module: run by this Python. script: a file under peers/, run by the peers' Python."""

    title: str
    module: str | None = None
    script: str | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    phases: tuple[str, ...] = ("lookup", "both")

    @property
    def is_peer(self) -> bool:
        return self.script is not None


COMPETITORS = {
    # DEMB_KERNELS must be the library's own choice, whatever the shell says.
    "ours": Competitor("ours", "worker_ours", env={"DEMB_KERNELS": None}),
    "plain_tf": Competitor("ours on plain TF ops", "worker_ours", env={"DEMB_KERNELS": "off"}),
    "keras": Competitor("Keras 3", "worker_keras"),
    "fbgemm": Competitor("FBGEMM CPU", script="fbgemm_ops.py"),
    # PyTorch asks for transparent huge pages for its large tensors only when told so.
    "fbgemm_huge": Competitor(
        "FBGEMM CPU, huge pages", script="fbgemm_ops.py", env={"THP_MEM_ALLOC_ENABLE": "1"}
    ),
    "embedding_bag": Competitor("torch EmbeddingBag", script="embedding_bag_ops.py"),
    "limit": Competitor(
        "the machine's limit", "worker_limit", env={"DEMB_KERNELS": None}, phases=("gather", "modify")
    ),
}


def refusal(name: str, case: Case) -> str | None:
    """Why a competitor does not run a case; None when it does."""
    if name not in ("ours", "limit") and not name.startswith("fbgemm") and case.rule != "adagrad":
        return None if name == "plain_tf" else f"has no {case.rule}"
    if name == "keras" and case.tables > 1 and (case.rows > 10**6 or case.batch > 4096):
        return "sweeps whole tables: more than 26 × 1e6 rows or 4,096 samples take minutes a step"
    return None


def start(name: str, case: Case, peers: Path | None) -> Worker:
    """The competitor's process, started and waiting for its case."""
    competitor = COMPETITORS[name]
    if competitor.script is None:
        command = [sys.executable, "-m", f"distributed_embeddings.cli.bench.{competitor.module}"]
    else:
        command = [str(peers), str(PEERS / competitor.script)]
    threads = str(case.threads)
    # OpenMP reads its number of threads when it is loaded; torch.set_num_threads alone leaves MKL's.
    env = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **competitor.env}
    return Worker(competitor.title, command, env)


def find_peers(given: Path | None) -> Path | None:
    """The peers' Python. Raises FileNotFoundError when it was named and is not there; None when it was never made."""
    python = given or Path(".venv-peers/bin/python")
    if python.exists():
        return python.absolute()
    if given is not None:
        raise FileNotFoundError(
            f"`--peers` must be a Python with FBGEMM. Received: {given}, which is not there"
        )
    return None
