"""`demb evaluate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from .checks import require_positive
from .options import EvaluateOptions, TrainOptions
from .presets import resolve
from .run_dir import read_config, write_json
from .workers import in_job, relaunch, require_size


def run_evaluate(options: EvaluateOptions, argv: Sequence[str]) -> int:
    """Run the command; `argv` are its arguments, for workers started here. Returns the exit status."""
    require_positive(workers=options.workers)
    trained = resolve(read_config(options.run))
    weights = options.weights or trained.save
    if weights is None:
        raise ValueError(
            f"`--weights` must be given: the run {options.run} saved no model. Train with --save PATH."
        )
    workers = options.workers or trained.workers or 1
    if not in_job() and workers > 1:
        return relaunch("evaluate", argv, workers, options.backend or trained.backend)
    return _evaluate(options, trained, weights)


def _evaluate(options: EvaluateOptions, trained: TrainOptions, weights: Path) -> int:
    # TensorFlow is imported here and not before: the command line answers at once.
    from distributed_embeddings import comm

    from .build import build_model
    from .feeding import batches_of, dataset_of
    from .progress import Reporter, table_line
    from .saving import load
    from .sources import open_evaluation
    from .steps import make_predict_step
    from .validation import EVALUATION_BATCH, evaluate

    communicator = comm.init()
    require_size(communicator, options.workers)
    source, best_possible = open_evaluation(trained.inputs, options.data, trained.seed)
    model = build_model(dataclasses.replace(trained, workers=communicator.size), source)
    load(model, weights)
    dataset = dataset_of(batches_of(source, EVALUATION_BATCH, communicator))
    metrics = evaluate(communicator, make_predict_step(model, dataset.element_spec[0]), dataset)
    result = {**metrics, "best_possible_auc": best_possible, "workers": communicator.size}
    Reporter.of_rank(communicator.rank, communicator.size).say(
        table_line({k: v for k, v in result.items() if v is not None})
    )
    if communicator.rank == 0 and options.json is not None:
        write_json(options.json, result)
    return 0
