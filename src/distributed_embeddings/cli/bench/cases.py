"""A case of `demb bench ops`, and the memory it takes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .peers.made_ids import pool_size

FLOAT, ID = 4, 8
"""Bytes of a float32 and of an int64."""
LIMIT_TABLE = 4 * 2**30
"""Bytes of the table on which the machine's limit is measured: far beyond caches and TLB, as the aims mean it."""
_PROCESS = 700 * 2**20
"""Bytes of a framework's process before it holds anything of ours."""


@dataclass(frozen=True)
class Case:
    """One embedding step: `tables` tables of [rows, dim], `batch` samples of `hotness` ids each, sum pooling."""

    rows: int
    dim: int
    hotness: int
    batch: int
    distribution: str = "zipf1.05"
    """zipf<exponent>, uniform or spread; see `peers/made_ids.py`."""
    rule: str = "adagrad"
    """adagrad or rowwise_adagrad."""
    threads: int = 1
    tables: int = 26
    steps_per_call: int = 1
    """Steps inside one call of a tf.function, as Keras's steps_per_execution."""

    @property
    def key(self) -> str:
        """A name that tells the case apart: 26x1e5x16-h1-b4096-zipf1.05-adagrad-t1."""
        rows = f"{self.rows:.0e}".replace("e+0", "e") if _round(self.rows) else str(self.rows)
        calls = "" if self.steps_per_call == 1 else f"-s{self.steps_per_call}"
        shape = f"{self.tables}x{rows}x{self.dim}-h{self.hotness}-b{self.batch}"
        return f"{shape}-{self.distribution}-{self.rule}-t{self.threads}{calls}"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def ids(self) -> int:
        """Ids of a batch over all tables."""
        return self.tables * self.batch * self.hotness

    @property
    def slot_bytes(self) -> int:
        """Bytes of a row's optimizer state."""
        return self.dim * FLOAT if self.rule == "adagrad" else FLOAT

    @property
    def row_bytes(self) -> int:
        return self.dim * FLOAT

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables without slots."""
        return self.tables * self.rows * self.row_bytes


def _round(rows: int) -> bool:
    return rows >= 1000 and str(rows).rstrip("0") == str(rows)[0]


def bytes_needed(case: Case, competitor: str) -> int:
    """Resident bytes of one competitor's process at its peak, from above: tables, slots, prepared ids, outputs,
    gradients and what the step itself allocates."""
    if competitor == "limit":
        return _PROCESS + LIMIT_TABLE
    held = case.table_bytes + case.tables * case.rows * case.slot_bytes
    ids = 2 * pool_size(case.to_dict()) * case.ids * ID  # as prepared, and as the framework takes them
    outputs = case.tables * case.batch * case.row_bytes
    return _PROCESS + held + ids + 3 * outputs + _work(case, competitor)


def _work(case: Case, competitor: str) -> int:
    """What a step allocates beyond outputs and their gradients."""
    of_ids = 4 * case.ids * ID  # sorted copies, inverse index, offsets
    vectors = case.ids * case.row_bytes  # one vector an occurrence, where pooling is not fused
    if competitor in ("plain_tf", "keras", "embedding_bag"):
        of_ids += 3 * vectors
    if competitor == "keras":
        of_ids += 3 * case.table_bytes  # gradients become dense
    return of_ids
