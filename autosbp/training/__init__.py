"""Training with a plan in the user's own script: ``autosbp.parallelize`` and what goes with it."""

from __future__ import annotations

from autosbp.training.batch_rows import GlobalBatchSampler
from autosbp.training.checkpoint import Checkpoints
from autosbp.training.parallel_module import ParallelModule, parallelize

__all__ = ["Checkpoints", "GlobalBatchSampler", "ParallelModule", "parallelize"]
