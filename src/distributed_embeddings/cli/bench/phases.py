"""A training step's time by phase, from TensorFlow's own profiler.

While the step is traced, sections note which operations of the graph belong to them; the profiler then tells how long
each operation ran on which thread, under the operation's name.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

_BACKWARD = "gradient_tape/"
"""TensorFlow's prefix of gradients; those of custom gradients, such as the exchanges', have none."""
EMBEDDINGS = "embeddings"
"""Name of the embedding layer in every model here."""
_EXCHANGE = ("PyFunc", "EagerPyFunc")
_WHOLE = ("ExecutorState", "KernelAndDevice", "FunctionRun", "EagerKernelExecute")


class Sections:
    """Which operations a traced step made in which section; sections follow each other in the trace."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, str]] = []
        self.of_operation: dict[str, str] = {}

    def mark(self, name: str) -> None:
        """From here on operations belong to `name`. Counts only inside a traced function."""
        if not tf.executing_eagerly():
            self._marks.append((len(tf.compat.v1.get_default_graph().get_operations()), name))

    def end(self) -> None:
        operations = tf.compat.v1.get_default_graph().get_operations()
        ends = [at for at, _ in self._marks[1:]] + [len(operations)]
        self.of_operation = {
            op.name: name
            for (at, name), end in zip(self._marks, ends, strict=True)
            for op in operations[at:end]
        }
        self._marks = []

    def phase(self, name: str, kind: str) -> str:
        """The phase of a profiled operation."""
        # Grappler makes operations of its own in place of several.
        made = "backward" if name.startswith(_BACKWARD) else "other operations"
        section = self.of_operation.get(name, made)
        if kind in _EXCHANGE:
            exchanges = {"update": "exchange of dense gradients", "backward": "exchange of vector gradients"}
            return exchanges.get(section, "exchange of ids and vectors")
        if section == "backward":
            dense = name.startswith(_BACKWARD) and f"/{EMBEDDINGS}" not in name
            return "dense backward" if dense else "lookup backward"
        return section


def profiled(step: Callable[[], float], steps: int, sections: Sections) -> dict[str, Any]:
    """Profile some steps: {"step": seconds a step, "phases": {phase: seconds a step}, "operations": the slowest}.

    Seconds of a phase are those of its operations, summed over threads: with several threads they may add up to more
    than the step. An exchange's seconds include the wait for the other workers. Profiling itself slows the step down.
    """
    step()
    with tempfile.TemporaryDirectory() as directory:
        tf.profiler.experimental.start(directory)
        seconds = [step() for _ in range(steps)]
        tf.profiler.experimental.stop()
        events = list(_events(Path(directory)))
    phases: dict[str, float] = defaultdict(float)
    kinds: dict[str, float] = defaultdict(float)
    for name, kind, spent in events:
        phase = sections.phase(name, kind)
        phases[phase] += spent / steps
        kinds[f"{phase}: {kind}"] += spent / steps
    slowest = sorted(kinds.items(), key=lambda item: -item[1])[:25]
    return {
        "step": sum(seconds) / steps,
        "phases": dict(sorted(phases.items(), key=lambda item: -item[1])),
        "operations": dict(slowest),
    }


def _events(directory: Path) -> Iterator[tuple[str, str, float]]:
    """(operation's name, its type, seconds without what ran inside of it) of all host threads."""
    # Part of TensorFlow's wheel; TensorBoard's profiler plugin, which reads these files, is not.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for path in directory.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        for plane in space.planes:
            if plane.name.startswith("/host:CPU"):
                names = {number: entry.name for number, entry in plane.event_metadata.items()}
                for line in plane.lines:
                    yield from _operations(line, names)


def _operations(line: Any, names: dict[int, str]) -> Iterator[tuple[str, str, float]]:
    """A thread's operations: events named "name:Type", less the operations inside of them."""
    spent: list[list[Any]] = []
    running: list[tuple[int, int]] = []  # (end, index into spent)
    for event in sorted(line.events, key=lambda e: (e.offset_ps, -e.duration_ps)):
        name, _, kind = names[event.metadata_id].rpartition(":")
        if not name or not kind.isidentifier() or name.endswith(":") or name.startswith(_WHOLE):
            continue
        while running and running[-1][0] <= event.offset_ps:
            running.pop()
        if running:
            spent[running[-1][1]][2] -= event.duration_ps
        running.append((event.offset_ps + event.duration_ps, len(spent)))
        spent.append([name, kind, event.duration_ps])
    for name, kind, picoseconds in spent:
        yield name, kind, picoseconds / 1e12
