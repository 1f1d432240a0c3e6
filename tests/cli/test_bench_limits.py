"""The machine's limits: what is measured for which row, and what is told where nothing can measure them."""

from __future__ import annotations

import pytest

from distributed_embeddings.cli.bench.limits import Limits, measure, table_bytes, whole_lines
from distributed_embeddings.ops import kernels


def test_rows_lie_on_whole_lines():
    assert [whole_lines(n) for n in (4, 64, 68, 512)] == [64, 64, 128, 512]


def test_table_leaves_memory_to_others():
    assert [table_bytes(gib * 2**30 + 5) // 2**30 for gib in (0, 1, 5, 24)] == [1, 1, 2, 4]


def test_without_kernels_it_says_so_once(monkeypatch):
    monkeypatch.setenv("DEMB_KERNELS", "off")
    with pytest.raises(NotImplementedError, match="without the kernels"):
        measure(64, 1)
    limits = Limits([{"row_bytes": 64, "threads": 1, "gather_gbps": 1.0, "modify_gbps": 1.0}])
    assert limits.find(64, 1) == limits.known[0]
    assert limits.find(128, 1) is None
    assert "without the kernels that measure" in limits.reason
    assert len(limits.known) == 1


@pytest.mark.slow  # 4 GiB
@pytest.mark.filterwarnings("ignore:distributed_embeddings runs WITHOUT its C:RuntimeWarning")
def test_limits_of_this_machine():
    if not kernels.available():
        pytest.skip("the kernels are not built")
    limits = Limits([])
    found = limits.find(68, 2)
    # Bounds of any machine, so wide that only a wrong unit crosses them.
    assert 0.01 < found["modify_gbps"] < 500
    assert 0.01 < found["gather_gbps"] < 500
    assert limits.find(68, 2) is found
