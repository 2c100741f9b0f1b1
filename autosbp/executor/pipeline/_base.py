"""Interface of pipeline runtimes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from autosbp.executor.pipeline._chunk import ChunkProgram
from autosbp.executor.runtime import Runtime
from autosbp.plan.pipeline import Pipeline


class PipelineRuntime(Protocol):
    """Runs one rank's chunks; exchanges values and gradients with the ranks of equal place in other stages.

    Contract: every pass of ``schedules.passes`` runs, in that order. Each backward pass is enclosed by the program's
    ``before_backward`` and ``after_backward``. Messages are recorded in ``runtime.issued`` as ``IssuedCollective("p2p",
    bytes, (from, to))``: receives before the pass that waits for them, sends after their pass, each in the order of
    ``program.receives`` or ``program.sends``; gradients only of values that have one. Not thread-safe.
    """

    def build(self, programs: Sequence[ChunkProgram], pipeline: Pipeline, runtime: Runtime, group: Any) -> None:
        """Called once: this rank's ``programs`` in model order; ``group``: the ranks in its place of all stages."""

    def step(self, num_micro: int) -> None:
        """Run all passes of one step; the programs hold the batch, and keep the losses."""


def meta_tensor(shape: tuple[int, ...], dtype: torch.dtype, gradient: bool) -> torch.Tensor:
    """A tensor without data (on the meta device)."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=gradient)
