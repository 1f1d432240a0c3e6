"""What a step needs follows the batch, never the table's rows."""

import subprocess
import sys
from pathlib import Path

import pytest

from twins import needs_kernels

pytestmark = needs_kernels

MIB = 2**20


def _train(rows, dim, optimizer, steps, timeout):
    """Growth of memory by the slots, its peak meanwhile; where the slots are, and growth of the peak over the steps."""
    script = Path(__file__).with_name("step_memory.py")
    arguments = [str(a) for a in (rows, dim, optimizer, steps)]
    run = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    slots, steps = (line.split() for line in run.stdout.splitlines())
    return int(slots[1]), int(slots[2]), steps[0], int(steps[2])


@pytest.mark.parametrize(("optimizer", "place"), [("adagrad", "beside"), ("rowwise_adagrad", "apart")])
def test_fifty_steps_on_a_table_of_512_mib(optimizer, place):
    slots, peak, where, growth = _train(4 * MIB, 32, optimizer, 50, 120)
    assert where == place
    assert growth < 64 * MIB
    # The table is never there twice while the slots are laid: rows go as they are moved.
    assert peak < slots + 128 * MIB


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_thousand_steps_on_a_table_of_4_gib():
    _, _, where, growth = _train(64 * MIB, 16, "adagrad", 1000, 1100)
    assert where == "beside"
    assert growth < 64 * MIB
