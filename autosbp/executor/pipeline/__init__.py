"""Pipeline training: each rank runs its stage's chunks, in the order of the schedule."""

from autosbp.executor.pipeline.training import PipelineTrainer, make_trainer

__all__ = ["PipelineTrainer", "make_trainer"]
