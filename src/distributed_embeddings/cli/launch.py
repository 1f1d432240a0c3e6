"""`demb launch`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .options import LaunchOptions


def run_launch(options: LaunchOptions, command: Sequence[str]) -> int:
    """Start `command` on the workers; returns the job's status. Imports no TensorFlow."""
    from distributed_embeddings.comm import launch

    if not command:
        print(
            "demb launch: the program goes behind --: demb launch -n 2 -- python script.py", file=sys.stderr
        )
        return 2
    return launch(
        command, options.workers, backend=options.backend, hosts=options.hosts, timeout=options.timeout
    )
