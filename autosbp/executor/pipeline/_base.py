"""What a pipeline runtime is given, and what it must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from autosbp.executor.pipeline._chunk import ChunkProgram
from autosbp.executor.runtime import Runtime
from autosbp.pipeline import Pipeline


class PipelineRuntime(Protocol):
    """Runs the chunks of one rank, and sends values to, and gradients from, the ranks in its place of other stages.

    Contract: every pass of ``costmodel.pipeline_passes`` runs, in that order. Around a backward pass stand the program's
    ``before_backward`` and ``after_backward``. Messages are recorded in ``runtime.issued`` as ``Issued("p2p", bytes,
    (from, to))``: what a pass waits for before it, what it sends behind it, each in the order of ``program.receives`` or
    ``program.sends``; of gradients, those that have one. Not safe across threads.
    """

    def build(self, programs: Sequence[ChunkProgram], pipeline: Pipeline, runtime: Runtime, group: Any) -> None:
        """Once: ``programs`` are this rank's in the model's order, ``group`` the ranks in its place of all stages."""

    def step(self, num_micro: int) -> None:
        """All passes of one step; the programs know the batch, and keep the losses."""


def example(shape: tuple[int, ...], dtype: torch.dtype, gradient: bool) -> torch.Tensor:
    """A tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=gradient)
