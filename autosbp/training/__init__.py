"""Training with a plan: ``autosbp.parallelize`` for the user's own script, and a complete trainer."""

from __future__ import annotations

from autosbp.training.batch_rows import GlobalBatchSampler
from autosbp.training.checkpoint import Checkpoints
from autosbp.training.data import load_dataset
from autosbp.training.export import export_safetensors
from autosbp.training.parallel_module import ParallelModule, parallelize
from autosbp.training.trainer import Trainer, TrainerSettings

__all__ = [
    "Checkpoints",
    "GlobalBatchSampler",
    "ParallelModule",
    "Trainer",
    "TrainerSettings",
    "export_safetensors",
    "load_dataset",
    "parallelize",
]
