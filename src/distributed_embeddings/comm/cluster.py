"""Which worker this process is and where the others are: the one reader of the launcher's environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .cluster_sources import Found, from_mpi, from_slurm, from_tf_config

_LOGGER = logging.getLogger("distributed_embeddings")

_DEFAULT_BACKENDS = {"MPI": "mpi", "TF_CONFIG": "tensorflow", "Slurm": "tensorflow", "explicit": "tensorflow"}


@dataclass(frozen=True)
class Cluster:
    """This worker among all: what `detect` found.

    source: "explicit", "TF_CONFIG", "Slurm", "MPI" or "single". backend: the one that suits it. addresses:
    "host:port" a rank, empty where the launcher gives none.
    """

    source: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    backend: str
    addresses: tuple[str, ...] = ()


def detect(
    rank: int | None = None,
    size: int | None = None,
    addresses: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Cluster:
    """Find this worker's place: arguments, TF_CONFIG, Slurm, MPI, else one worker. Logs one line.

    Raises ValueError naming the argument or variable, and its value, where it cannot be read.
    """
    env = os.environ if env is None else env
    found = _from_arguments(rank, size, addresses) or from_tf_config(env) or from_slurm(env) or from_mpi(env)
    cluster = _cluster(found or Found("single", 0, 1, 0, 1))
    _LOGGER.info(
        "rank %d of %d (local %d of %d), found by %s, backend %s",
        cluster.rank, cluster.size, cluster.local_rank, cluster.local_size, cluster.source, cluster.backend,
    )  # fmt: skip
    return cluster


def _cluster(found: Found) -> Cluster:
    backend = "local" if found.size == 1 else _DEFAULT_BACKENDS[found.source]
    if found.source == "explicit" and not found.addresses and found.size > 1:
        backend = "mpi"
    return Cluster(
        found.source, found.rank, found.size, found.local_rank, found.local_size, backend, found.addresses
    )


def _from_arguments(rank: int | None, size: int | None, addresses: Sequence[str]) -> Found | None:
    if rank is None and size is None and not addresses:
        return None
    if size is None and addresses:
        size = len(addresses)
    if rank is None or size is None or not 0 <= rank < size:
        raise ValueError(
            f"`rank` and `size` must be given together, 0 <= rank < size. Received: rank={rank}, size={size}"
        )
    if addresses and len(addresses) != size:
        raise ValueError(f"`addresses` must name {size} workers. Received: addresses={list(addresses)}")
    return Found.of_addresses("explicit", rank, tuple(addresses), size)
