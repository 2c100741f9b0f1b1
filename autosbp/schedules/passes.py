"""Order of a stage's passes for every schedule.

A stage runs forward passes until it has one less than the schedule's number in flight, then alternates one pass of each
kind. Weight gradients with passes of their own are deferred by as many backward passes as there are previous stages, or
by the pipeline's ``weights_lag`` if that is less.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autosbp.plan.pipeline import Pipeline
from autosbp.plan.schedules import Schedule

FORWARD, BACKWARD, WGRAD = "forward", "backward", "weights"
KINDS = (FORWARD, BACKWARD, WGRAD)
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pass:
    """One microbatch through one chunk; ``kind`` is ``forward``, ``backward`` or ``weights`` (deferred weight gradients)."""

    kind: str
    chunk: int
    micro: int


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The passes of one stage, in order: kind (index in ``KINDS``), chunk and microbatch of each."""

    kinds: Ints
    chunks: Ints
    micros: Ints

    def pass_numbers(self, num_chunks: int, num_micro: int) -> Ints:
        """A unique number for each pass of a pipeline."""
        found: Ints = (self.kinds * num_chunks + self.chunks) * num_micro + self.micros
        return found


def stage_passes(pipeline: Pipeline, stage: int, num_micro: int) -> tuple[Pass, ...]:
    """The passes of one stage, in order."""
    order = stage_order(pipeline, stage, num_micro)
    columns = (order.kinds.tolist(), order.chunks.tolist(), order.micros.tolist())
    return tuple(Pass(KINDS[kind], chunk, micro) for kind, chunk, micro in zip(*columns, strict=True))


def stage_order(pipeline: Pipeline, stage: int, num_micro: int) -> Order:
    """``stage_passes`` as arrays."""
    lag = stage if pipeline.weights_lag is None else min(stage, pipeline.weights_lag)
    return _order(pipeline.schedule, pipeline.num_stages, pipeline.num_virtual, stage, num_micro, lag)


@lru_cache(maxsize=256)
def _order(schedule: Schedule, stages: int, virtual: int, stage: int, num_micro: int, lag: int) -> Order:
    """Order of passes; cached without the cuts, which do not affect it."""
    index = np.arange(num_micro * virtual)
    ahead = schedule.in_flight(stage, stages, num_micro, virtual) - 1
    turns = np.stack([index - ahead, index, *([index + lag] if schedule.splits_backward else [])])
    kinds = np.arange(len(turns))[:, None]
    # Groups of ``stages`` microbatches go through each chunk in turn; backward starts at the last chunk.
    chunks = index // stages % virtual
    chunks = np.where(kinds == KINDS.index(FORWARD), chunks, virtual - 1 - chunks)
    micros = index // (stages * virtual) * stages + index % stages
    order = np.argsort((len(turns) * turns + kinds).ravel())
    every = (np.broadcast_to(column, turns.shape).ravel()[order] for column in (kinds, chunks * stages + stage, micros))
    return Order(*every)
