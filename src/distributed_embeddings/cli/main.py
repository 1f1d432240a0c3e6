"""The `demb` command: options to a dataclass, the dataclass to its command. Imports no TensorFlow by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from .bench.options import BenchOptions, run_bench
from .options import DoctorOptions, EvaluateOptions, LaunchOptions, TrainOptions
from .presets import PRESETS


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: ends the process with the command's status."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run a command line; returns its status. An error of a file or an argument is a line, not a trace."""
    # TensorFlow tells every process's start at length; its errors stay. Workers inherit it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    argv = list(argv)
    own, program = split_program(argv)
    options = parse(own)
    try:
        return _command(options, own[1:], program)
    except (ValueError, FileNotFoundError, FloatingPointError) as error:
        from distributed_embeddings import comm

        comm.fail(error)  # one of several workers: says its rank and ends the job
        print(f"demb: {error}", file=sys.stderr)
        return 1


def parse(argv: Sequence[str]) -> Any:
    """Options of the command that `argv` begins with."""
    train = Annotated[TrainOptions, tyro.conf.subcommand("train", default=_defaults(argv))]
    kinds = (
        train
        | Annotated[EvaluateOptions, tyro.conf.subcommand("evaluate")]
        | Annotated[LaunchOptions, tyro.conf.subcommand("launch")]
        | Annotated[DoctorOptions, tyro.conf.subcommand("doctor")]
        | Annotated[BenchOptions, tyro.conf.subcommand("bench")]
    )
    return tyro.cli(
        kinds,
        prog="demb",
        description="Hybrid-parallel embedding tables: train, evaluate, launch, check, measure.",
        args=list(argv),
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def split_program(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """`launch … -- program arguments` in two: the program's options are not ours to read."""
    if argv[:1] == ["launch"] and "--" in argv:
        at = list(argv).index("--")
        return list(argv[:at]), list(argv[at + 1 :])
    return list(argv), []


def _defaults(argv: Sequence[str]) -> TrainOptions:
    """What --preset names: read beforehand, so that other options count against it."""
    for i, word in enumerate(argv):
        name = word.partition("=")[2] if word.startswith("--preset=") else None
        if word == "--preset" and i + 1 < len(argv):
            name = argv[i + 1]
        if name in PRESETS:
            return PRESETS[name]
    return TrainOptions()


def _command(options: Any, argv: Sequence[str], program: Sequence[str]) -> int:
    if isinstance(options, TrainOptions):
        from .train import run_train

        return run_train(options, argv)
    if isinstance(options, EvaluateOptions):
        from .evaluate import run_evaluate

        return run_evaluate(options, argv)
    if isinstance(options, LaunchOptions):
        from .launch import run_launch

        return run_launch(options, program)
    if isinstance(options, BenchOptions):
        return run_bench(options)
    from .doctor import run_doctor

    return run_doctor(options)


if __name__ == "__main__":
    main()
