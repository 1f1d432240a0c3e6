"""Rows a second of the Criteo text reader on one core, on a generated file.

Run: python benchmarks/bench_criteo.py [--rows 1000000] [--file FILE]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from distributed_embeddings.data import CriteoTsv, SyntheticClicks, write_criteo_tsv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--file", type=Path, help="read this file instead of generating one")
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as directory:
        path = arguments.file or Path(directory) / "clicks.tsv"
        if arguments.file is None:
            start = time.perf_counter()
            write_criteo_tsv(path, SyntheticClicks(arguments.rows))
            _report("generated and written", arguments.rows, start)
        reader = CriteoTsv(path)
        start, start_cpu = time.perf_counter(), time.process_time()
        rows = sum(len(raw.labels) for raw in reader.raw_blocks())
        _report("parsed", rows, start, start_cpu)
        start, start_cpu = time.perf_counter(), time.process_time()
        rows = sum(len(block) for block in reader.blocks())
        _report("parsed, hashed and log-transformed", rows, start, start_cpu)


def _report(what: str, rows: int, start: float, start_cpu: float | None = None) -> None:
    seconds = time.perf_counter() - start
    cpu = "" if start_cpu is None else f", {rows / (time.process_time() - start_cpu):,.0f} rows/CPU-second"
    print(f"{what}: {rows:,} rows in {seconds:.2f} s: {rows / seconds:,.0f} rows/s{cpu}", flush=True)


if __name__ == "__main__":
    main()
