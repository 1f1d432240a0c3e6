"""`demb train`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .checks import require_positive
from .options import TrainOptions, staleness_of, to_dict
from .presets import resolve
from .run_dir import config_text, create_run_dir, write_json
from .saving import check_path, save
from .workers import in_job, relaunch, require_size

if TYPE_CHECKING:
    from .training import History


def run_train(options: TrainOptions, argv: Sequence[str]) -> int:
    """Run the command; `argv` are its arguments, for workers started here. Returns the exit status."""
    options = resolve(options)
    if options.staleness is not None:
        staleness_of(options.staleness)
    elif options.trace is not None:
        raise ValueError(
            f"`--trace` must come with --staleness: it shows two graphs. Received: --trace {options.trace}"
        )
    require_positive(workers=options.workers, batch_size=options.batch_size, epochs=options.epochs)
    if options.print_config:
        print(config_text(options))
        return 0
    if options.save is not None:
        check_path(options.save)
    if not in_job() and (options.workers or 1) > 1:
        return relaunch("train", argv, options.workers, options.backend)
    return _train(options)


def _train(options: TrainOptions) -> int:
    # TensorFlow is imported here and not before: the command line answers at once.
    from distributed_embeddings import comm

    from .progress import Reporter, table_line
    from .sources import open_sources
    from .training import Trainer

    communicator = comm.init()
    require_size(communicator, options.workers)
    options = dataclasses.replace(options, workers=communicator.size)
    reporter = Reporter.of_rank(communicator.rank, communicator.size)
    sources = open_sources(options.inputs, options.seed)
    trainer = Trainer(options, sources, communicator, reporter)
    plan = trainer.model.embeddings.plan
    reporter.say(f"{plan}\n")
    run_dir = None
    if communicator.rank == 0:  # the only one that writes, and so the one that names the run
        run_dir = options.run_dir or create_run_dir(options.inputs.format)
        options = dataclasses.replace(options, run_dir=run_dir)
        write_json(run_dir / "config.json", to_dict(options))

    def on_best(model: Any) -> None:
        if options.save is not None:
            save(model, options.save)

    history = trainer.run(on_best)
    if trainer.pipeline is not None:
        reporter.say(str(trainer.pipeline.report()))
        if options.trace is not None:
            trainer.pipeline.write_trace(options.trace)
            reporter.say(f"trace: {options.trace}")
    result = _result(history, options, communicator.size, sources.best_possible_auc, plan.digest)
    best = history.best or {}
    if "auc" in best:
        known = sources.best_possible_auc
        beside = f"  best possible auc {known:.4f}  gap {known - best['auc']:.4f}" if known else ""
        reporter.say(f"best epoch {best['epoch']}: auc {best['auc']:.4f}{beside}")
    shown = (
        "log_loss",
        "normalised_entropy",
        "base_rate",
        "samples",
        "samples_per_second",
        "steps",
        "workers",
    )
    reporter.say(table_line({k: result[k] for k in shown if k in result}))
    if run_dir is not None:
        write_json(run_dir / "result.json", result)
        if options.json is not None:
            write_json(options.json, result)
    reporter.say(f"config and result: {run_dir}")
    return 0


def _result(
    history: History, options: TrainOptions, workers: int, best_possible: float | None, digest: str
) -> dict[str, Any]:
    """Metrics are the best epoch's; counts are the whole training's."""
    best = history.best or {}
    metrics = {k: best.get(k) for k in ("auc", "log_loss", "base_rate", "normalised_entropy")}
    return {
        **metrics,
        "best_epoch": best.get("epoch"),
        "best_possible_auc": best_possible,
        "valid_samples": best.get("samples"),
        "samples": history.samples,
        "samples_per_second": history.samples / max(history.seconds, 1e-9),
        "steps": history.steps,
        "workers": workers,
        "batch_size": options.batch_size,
        "seed": options.seed,
        "plan_digest": digest,
        "epochs": history.epochs,
    }
