"""The training loop of `demb train`, the same on every rank."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from distributed_embeddings.pipeline import EmbeddingPipeline

from .build import build_model, build_optimizer
from .feeding import batches_of, dataset_of
from .metrics import NotFiniteError
from .options import TrainOptions, staleness_of
from .progress import Reporter, table_line
from .sources import Sources
from .steps import make_predict_step, train_step
from .validation import EVALUATION_BATCH, evaluate

# The loss is summed over ranks after this many steps; ranks would not agree on a number of seconds.
_LOSS_STEPS = 20


@dataclass
class History:
    """What came out: one dict an epoch, and the training's own counts."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0

    @property
    def best(self) -> dict[str, Any] | None:
        """The epoch of the highest validation AUC, the first of equals; the last one without validation."""
        scored = [e for e in self.epochs if e.get("auc") == e.get("auc") and "auc" in e]
        return max(scored, key=lambda e: e["auc"]) if scored else (self.epochs or [None])[-1]


class Trainer:
    """Model, optimizer and data of one run on one rank. Creating it is collective."""

    def __init__(
        self, options: TrainOptions, sources: Sources, communicator: Any, reporter: Reporter
    ) -> None:
        self._options, self._communicator, self._reporter = options, communicator, reporter
        self.model = build_model(options, sources.train)
        self.optimizer = build_optimizer(options)
        # Made before the step is traced: every rank makes its slots at the same place.
        self.optimizer.build(self.model.trainable_variables)
        self._train = batches_of(
            sources.train, options.batch_size, communicator, seed=options.seed, shuffle=True
        )
        self._valid: Any = None
        if sources.valid is not None:
            self._valid = batches_of(sources.valid, EVALUATION_BATCH, communicator)
        self._step: Any = None
        self.pipeline: Any = None
        self._predict: Any = None

    def run(self, on_best: Callable[[Any], None]) -> History:
        """All epochs; `on_best(model)` is called on every rank after each epoch that is the best so far. Collective.

        Raises FloatingPointError on every rank when training diverges: a loss or a prediction is no number.
        """
        history = History()
        for epoch in range(self._options.epochs):
            entry: dict[str, Any] = {"epoch": epoch + 1}
            entry |= self._train_epoch(epoch, history)
            if self._valid is not None:
                try:
                    entry |= self.validate()
                except NotFiniteError as error:
                    raise self._diverged(epoch, history.steps, "predictions are NaN or infinite") from error
            history.epochs.append(entry)
            shown = {k: v for k, v in entry.items() if k not in ("epoch", "samples", "base_rate")}
            self._reporter.say(f"epoch {epoch + 1}/{self._options.epochs}  {table_line(shown)}")
            if history.best is entry:
                on_best(self.model)
        return history

    def validate(self) -> dict[str, float]:
        """Metrics on the validation data, over all ranks. Collective."""
        dataset = dataset_of(self._valid)
        if self._predict is None:
            self._predict = make_predict_step(self.model, dataset.element_spec[0])
        return evaluate(self._communicator, self._predict, dataset)

    def _train_epoch(self, epoch: int, history: History) -> dict[str, float]:
        dataset = dataset_of(self._train, epoch)
        self._prepare(dataset)
        start = time.monotonic()
        total, pending, steps = LossSum(self._communicator), tf.zeros([2], tf.float64), 0
        title = f"epoch {epoch + 1}/{self._options.epochs}"
        with self._reporter.epoch(title, self._train.num_batches) as progress:
            for result in self._steps(dataset):
                pending += result
                steps += 1
                if steps % _LOSS_STEPS == 0:
                    loss = self._finite(total.add(pending), epoch, history.steps + steps)
                    pending = tf.zeros([2], tf.float64)
                    progress.update(steps, total.samples, loss)
        self._finite(total.add(pending), epoch, history.steps + steps)
        seconds = time.monotonic() - start
        history.steps += steps
        history.samples += total.samples
        history.seconds += seconds
        return {"train_loss": total.mean, "samples_per_second": total.samples / max(seconds, 1e-9)}

    def _prepare(self, dataset: Any) -> None:
        """Trace what a step needs, before the clock runs."""
        if self._step is not None:
            return
        step = train_step(self.model, self.optimizer)
        self._step = tf.function(step, input_signature=dataset.element_spec)
        if self._options.staleness is None:
            self._step.get_concrete_function()
        else:
            self.pipeline = EmbeddingPipeline(
                self.model, None, self.optimizer, dataset, staleness_of(self._options.staleness), step=step
            )

    def _steps(self, dataset: Any) -> Iterator[Any]:
        """Train on an epoch; what each step returns."""
        if self.pipeline is None:
            return (self._step(features, labels) for features, labels in dataset)
        return (done.result for done in self.pipeline.run(dataset))

    def _finite(self, loss: float, epoch: int, steps: int) -> float:
        """The mean loss over all ranks, the same on each, so that all of them go on or none."""
        if not math.isfinite(loss):
            raise self._diverged(epoch, steps, f"the training loss is {loss}")
        return loss

    def _diverged(self, epoch: int, steps: int, what: str) -> FloatingPointError:
        rate = self._options.learning_rate
        return FloatingPointError(
            f"training diverged in epoch {epoch + 1}, at step {steps} or shortly before: {what}. "
            f"Lower `--learning-rate`. Received: --learning-rate {rate} with {self._options.optimizer}"
        )


class LossSum:
    """The sum of losses over ranks and steps. Collective."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self._loss = 0.0
        self.samples = 0

    def add(self, local: Any) -> float:
        """Add [loss sum, samples] of this rank; return the mean of what all ranks added."""
        loss, samples = self._communicator.all_reduce(local, "sum", phase="training loss").numpy().tolist()
        self._loss += loss
        self.samples += round(samples)
        return loss / samples if samples else 0.0

    @property
    def mean(self) -> float:
        return self._loss / self.samples if self.samples else float("nan")
