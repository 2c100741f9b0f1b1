"""Trainer: a complete training run under a plan (``autosbp train``).

It is the usual loop around a parallel module: data, forward and backward, gradient clipping, AdamW or SGD, a learning rate
schedule, evaluation, checkpoints, metrics, profile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from autosbp.errors import InputError
from autosbp.training.batch_rows import GlobalBatchSampler
from autosbp.training.batches import Batch, TrainingBatches, data_loader
from autosbp.training.checkpoint import Checkpoints
from autosbp.training.learning_rate import COURSES, learning_rate
from autosbp.training.metrics import ConsoleWriter, JsonLinesWriter, StepMeter, TensorBoardWriter, Writer
from autosbp.training.parallel_module import ParallelModule
from autosbp.training.profile import StepProfile

METRICS_FILE, TENSORBOARD_FOLDER, PROFILE_FOLDER = "metrics.jsonl", "tensorboard", "profile"


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """Settings of a run.

    Args:
        steps: number of optimizer steps of the whole run, including those before it was resumed.
        learning_rate: peak learning rate.
        schedule: ``cosine``, ``linear`` or ``constant`` after the warm-up (``training.learning_rate``).
        warmup: number of linear warm-up steps.
        weight_decay: weight decay of matrices; biases and norms have none.
        clip: maximum norm of the gradient; ``inf`` disables clipping.
        checkpoint_every: steps between checkpoints; there is always one after the last step.
        keep: number of newest checkpoints to keep.
        eval_every: steps between evaluations, if there is evaluation data; there is always one after the last step.
        log_every: steps between reports.
        tensorboard: whether to also write metrics for TensorBoard.
        profile: first step to profile; None for no profile.
        seed: seed of initial weights, order of samples and dropout.
        workers: number of data loading processes per rank.
    """

    steps: int = 1000
    learning_rate: float = 3e-4
    schedule: str = "cosine"
    warmup: int = 0
    weight_decay: float = 0.1
    clip: float = 1.0
    checkpoint_every: int = 500
    keep: int = 3
    eval_every: int = 500
    log_every: int = 10
    tensorboard: bool = False
    profile: int | None = None
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "checkpoint_every", "keep", "eval_every", "log_every"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "expected at least 1")
        for name in ("warmup", "weight_decay", "workers"):
            if not 0 <= getattr(self, name) < inf:
                raise InputError(name, getattr(self, name), "expected at least 0")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise InputError(name, getattr(self, name), "expected more than 0")
        if self.schedule not in COURSES:
            raise InputError("schedule", self.schedule, f"expected one of {', '.join(COURSES)}")
        if self.warmup > self.steps:
            raise InputError("warmup", self.warmup, f"expected at most the {self.steps} steps")
        if self.profile is not None and not 1 <= self.profile <= self.steps:
            raise InputError("profile", self.profile, f"expected a step, 1 to {self.steps}")

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1."""
        return learning_rate(step, peak=self.learning_rate, course=self.schedule, warmup=self.warmup, steps=self.steps)


class Trainer:
    """One rank of a run. All ranks have to create it and call its methods.

    Args:
        model: the parallel module, made by ``parallelize``.
        plan: the plan's document, from which model FLOPs and tokens per step are taken.
        dataset: dataset whose samples are dicts with the model's inputs; equal on all ranks.
        folder: folder for checkpoints and metrics, which all ranks can access.
        evaluation: evaluation dataset.
        resume: whether to resume from the newest checkpoint in the folder; if not, the folder must have none.
        say: prints a line for users; called on rank 0.

    Raises:
        InputError: a setting is invalid, a dataset is smaller than a global batch, or the folder has checkpoints but
            ``resume`` is not set.
    """

    def __init__(
        self,
        model: ParallelModule,
        plan: Mapping[str, Any],
        dataset: Dataset[Any],
        folder: str | Path,
        settings: TrainerSettings,
        *,
        evaluation: Dataset[Any] | None = None,
        resume: bool = True,
        say: Callable[[str], None] = print,
    ) -> None:
        self.model, self.settings, self.folder = model, settings, Path(folder)
        self._batches = TrainingBatches(model, dataset, seed=settings.seed, workers=settings.workers)
        self._evaluation = self._evaluation_loader(evaluation)
        self.optimizer = _optimizer(model, settings)
        self._checkpoints = Checkpoints(self.folder, model, self.optimizer, keep=settings.keep, batches=self._batches)
        if not resume and self._checkpoints.steps:
            limit = f"it has checkpoints of steps {self._checkpoints.steps}: give another folder, or resume"
            raise InputError("folder", str(self.folder), limit)
        self.step = self._checkpoints.load()
        self._meter = StepMeter(model.device, plan)
        self._writers = self._make_writers(say) if dist.get_rank() == 0 else []
        if self.step and dist.get_rank() == 0:
            say(f"resumed from step {self.step} in {self.folder}")

    def run(self) -> dict[str, float]:
        """Train until the last step; returns its metrics."""
        settings, metrics = self.settings, dict[str, float]()
        profile = StepProfile(self.folder / PROFILE_FOLDER, settings.profile)
        self._meter.begin()
        for batch in self._batches if self.step < settings.steps else ():
            with profile.of(self.step + 1):
                numbers = self._train_step(batch)
            self._meter.count()
            is_last = self.step == settings.steps
            if self.step % settings.log_every == 0 or is_last:
                metrics = {**_floats(numbers), **self._meter.report()}
                self._write(metrics)
                self._meter.begin()
            if self._evaluation is not None and (self.step % settings.eval_every == 0 or is_last):
                metrics |= {"evaluation_loss": self.evaluate()}
                self._write({"evaluation_loss": metrics["evaluation_loss"]})
                self._meter.begin()
            if self.step % settings.checkpoint_every == 0 or is_last:
                self._checkpoints.save(self.step)
            if is_last:
                break
        self._checkpoints.wait()
        profile.stop()
        self._meter.stop()
        for writer in self._writers:
            writer.close()
        return metrics

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss over the evaluation data."""
        assert self._evaluation is not None
        self.model.eval()
        losses = [self.model(**batch).double() for batch in self._evaluation]
        self.model.train()
        return float(torch.stack(losses).mean())

    def _train_step(self, batch: Batch) -> dict[str, torch.Tensor | float]:
        """Run one optimizer step; the returned loss and gradient norm stay on the device."""
        self.step += 1
        rate = self.settings.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, scaler = self.model(**batch), self.model.grad_scaler
        scaler.scale(loss).backward()
        scaler.unscale_(self.optimizer)
        norm = self.model.clip_grad_norm_(self.settings.clip)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()
        scale = {"loss_scale": scaler.get_scale()} if scaler.is_enabled() else {}
        return {"loss": loss.detach(), "gradient_norm": norm, "learning_rate": rate, **scale}

    def _evaluation_loader(self, dataset: Dataset[Any] | None) -> Any:
        if dataset is None:
            return None
        sampler: GlobalBatchSampler = self.model.batch_sampler(dataset, shuffle=False)
        return data_loader(dataset, sampler, self.model.device, self.settings.workers)

    def _make_writers(self, say: Callable[[str], None]) -> list[Writer]:
        writers: list[Writer] = [
            ConsoleWriter(say, self.settings.steps),
            JsonLinesWriter(self.folder / METRICS_FILE, self.step),
        ]
        if self.settings.tensorboard:
            writers.append(TensorBoardWriter(self.folder / TENSORBOARD_FOLDER, self.step))
        return writers

    def _write(self, metrics: Mapping[str, float]) -> None:
        for writer in self._writers:
            writer.write(self.step, metrics)


def _optimizer(model: ParallelModule, settings: TrainerSettings) -> torch.optim.Optimizer:
    """The plan's optimizer; only parameters with two or more dims decay. A stage may have no parameters."""
    trained = [each for each in model.parameters() if each.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [each for each in trained if each.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [each for each in trained if each.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]] or groups[:1]
    kinds: Mapping[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    made: torch.optim.Optimizer = kinds[model.strategy.optimizer](groups, lr=settings.learning_rate)
    return made


def _floats(numbers: Mapping[str, torch.Tensor | float]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items()}
