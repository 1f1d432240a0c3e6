"""What each launcher puts into the environment of a worker."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Env = Mapping[str, str]

# Ports of the TensorFlow backend under Slurm, where nobody hands any out: one range a job step.
_FIRST_SLURM_PORT, _SLURM_PORTS = 20000, 10000


@dataclass(frozen=True)
class Found:
    """A worker's place as one source tells it."""

    source: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    addresses: tuple[str, ...] = ()

    @classmethod
    def of_addresses(cls, source: str, rank: int, addresses: tuple[str, ...], size: int) -> Found:
        """Workers that share a host in `addresses` are local to each other; without addresses all are."""
        hosts = [address.rpartition(":")[0] for address in addresses] or [""] * size
        same = [i for i, host in enumerate(hosts) if host == hosts[rank]]
        return cls(source, rank, size, same.index(rank), len(same), addresses)


def from_tf_config(env: Env) -> Found | None:
    """TF_CONFIG: ranks are `chief` first, then `worker`. Unset, empty and `{}` mean that there is none."""
    text = env.get("TF_CONFIG", "").strip()
    if text in ("", "{}"):
        return None
    try:
        config = json.loads(text)
        roles = config["cluster"]
        role, index = config["task"]["type"], int(config["task"]["index"])
        if not set(roles) <= {"chief", "worker"} or role not in roles:
            raise ValueError("roles other than chief and worker do not train")
        chiefs, workers = list(roles.get("chief", [])), list(roles.get("worker", []))
        if not all(isinstance(address, str) for address in chiefs + workers):
            raise ValueError("addresses must be strings")
        if not 0 <= index < len(roles[role]):
            raise ValueError(f"task index {index} of {len(roles[role])}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            'Environment variable `TF_CONFIG` must be {"cluster": {"worker": ["host:port", …]}, "task": '
            f'{{"type": "worker", "index": 0}}}}. Received: {text!r} ({error})'
        ) from error
    rank = index + (len(chiefs) if role == "worker" else 0)
    return Found.of_addresses("TF_CONFIG", rank, tuple(chiefs + workers), len(chiefs) + len(workers))


def from_slurm(env: Env) -> Found | None:
    """A task of `srun`.

    A batch script without srun has SLURM_PROCID but no SLURM_STEP_ID. `mpirun` inside an allocation starts
    its daemons with srun, and its workers inherit the daemon's SLURM_*: OMPI_COMM_WORLD_SIZE exists only
    there, and then MPI wins.
    """
    if "SLURM_PROCID" not in env or "OMPI_COMM_WORLD_SIZE" in env:
        return None
    rank = _integer(env, "SLURM_PROCID")
    if "SLURM_STEP_ID" not in env:
        return None
    size = _integer(env, "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS", 1)
    if rank >= size:
        raise ValueError(f"Environment variable `SLURM_PROCID` must be below {size}. Received: {rank}")
    local_rank = _integer(env, "SLURM_LOCALID")
    nodes = expand_nodes(_first(env, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    per_node = _tasks_per_node(_first(env, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if len(per_node) != len(nodes) or sum(per_node) != size:
        raise ValueError(
            f"Environment variable `SLURM_STEP_TASKS_PER_NODE` must give {size} tasks on {len(nodes)} nodes. "
            f"Received: {per_node}"
        )
    step = _integer(env, "SLURM_JOB_ID") if "SLURM_JOB_ID" in env else 0
    base = _FIRST_SLURM_PORT + step * 64 % _SLURM_PORTS
    # Ranks are laid out by blocks, srun's default; a cyclic layout shows in SLURM_LOCALID and is refused.
    places = [(node, i) for node, count in zip(nodes, per_node, strict=True) for i in range(count)]
    if places[rank][1] != local_rank:
        raise ValueError(
            f"Environment variable `SLURM_LOCALID` must be {places[rank][1]} for rank {rank} "
            f"(srun --distribution=block). Received: {local_rank}"
        )
    local_size = per_node[nodes.index(places[rank][0])]
    addresses = tuple(f"{node}:{base + i}" for node, i in places)
    return Found("Slurm", rank, size, local_rank, local_size, addresses)


def from_mpi(env: Env) -> Found | None:
    """Open MPI (OMPI_COMM_WORLD_*), MPICH and Intel (PMI_*), or a bare PMIx launcher: MPI knows the size."""
    if "OMPI_COMM_WORLD_SIZE" in env:
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        rank, size, local_rank, local_size = (
            _integer(env, f"OMPI_COMM_WORLD_{n}", n.endswith("SIZE")) for n in names
        )
    elif "PMI_RANK" in env and "PMI_SIZE" in env:
        rank, size = _integer(env, "PMI_RANK"), _integer(env, "PMI_SIZE", 1)
        local_rank = _integer(env, "MPI_LOCALRANKID") if "MPI_LOCALRANKID" in env else rank
        local_size = _integer(env, "MPI_LOCALNRANKS", 1) if "MPI_LOCALNRANKS" in env else size
    elif "PMIX_RANK" in env:
        return _ask_mpi()
    else:
        return None
    return Found("MPI", rank, size, local_rank, local_size)


def expand_nodes(text: str) -> list[str]:
    """`node[01-03,7],login` → node01, node02, node03, node7, login. Raises ValueError with the text."""
    nodes: list[str] = []
    for item in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        nodes += _expand(item)
    if not nodes or re.sub(r"\[[^\[\]]*\]", "", text).count("[") or "," in (text[:1], text[-1:]):
        raise ValueError(
            f"Environment variable `SLURM_STEP_NODELIST` must be a node list. Received: {text!r}"
        )
    return nodes


def _expand(item: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\](.*)", item)
    if match is None:
        return [item]
    prefix, ranges, rest = match.groups()
    names = []
    for part in ranges.split(","):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if span is None or int(span[2] or span[1]) < int(span[1]):
            raise ValueError(
                "Environment variable `SLURM_STEP_NODELIST` must hold ranges like [01-03,7]. "
                f"Received: {item!r}"
            )
        width = len(span[1])
        names += [f"{prefix}{i:0{width}d}" for i in range(int(span[1]), int(span[2] or span[1]) + 1)]
    return [name + tail for name in names for tail in _expand(rest)]


def _tasks_per_node(text: str) -> list[int]:
    """`2(x3),1` → 2, 2, 2, 1."""
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)
        if match is None:
            raise ValueError(
                f"Environment variable `SLURM_STEP_TASKS_PER_NODE` must be like 2(x3),1. Received: {text!r}"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _first(env: Env, *names: str) -> str:
    for name in names:
        if env.get(name):
            return env[name]
    raise ValueError(
        f"Environment variable `{names[0]}` must be set in a task of srun. Received: none of {names}"
    )


def _integer(env: Env, name: str, lowest: int = 0) -> int:
    text = env.get(name)
    if text is None or not re.fullmatch(r"\d+", text) or int(text) < lowest:
        raise ValueError(
            f"Environment variable `{name}` must be an integer >= {int(lowest)}. Received: {text!r}"
        )
    return int(text)


def _ask_mpi() -> Found:
    from mpi4py import MPI  # starts MPI: only where its launcher is seen

    world: Any = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    return Found("MPI", world.Get_rank(), world.Get_size(), node.Get_rank(), node.Get_size())
