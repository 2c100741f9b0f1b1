"""In which order a stage passes microbatches through its chunks, for every schedule.

``gpipe``: all forward, then all backward (Huang et al. 2019). ``1f1b`` and its interleaved form: Narayanan et al. 2021,
section 2.2; Megatron-LM's ``forward_backward_pipelining_with_interleaving``.
``zero_bubble``: a backward pass leaves the gradients of weights to a pass of their own; stage s starts these when it has
done s backward passes, or as few as its lag allows, so that it keeps as many activations as 1F1B does (Qi et al. 2023,
section 2.1, ZB-H1).
``message_driven`` has no order; that of ``1f1b`` stands for all that its registers let happen: it fills all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autosbp.pipeline import GPIPE, INTERLEAVED, MESSAGE_DRIVEN, ONE_F_ONE_B, ZERO_BUBBLE, Pipeline

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"
KINDS = (FORWARD, BACKWARD, WEIGHTS)
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pass:
    """One microbatch through one chunk: ``forward``, ``backward``, or what backward left: ``weights``."""

    kind: str
    chunk: int
    micro: int


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The passes of one stage, in order: of each its kind, by its place in ``KINDS``, its chunk and its microbatch."""

    kinds: Ints
    chunks: Ints
    micros: Ints

    def numbers(self, num_chunks: int, num_micro: int) -> Ints:
        """One number for each pass of a pipeline."""
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
    return _order(pipeline.num_stages, pipeline.num_virtual, pipeline.schedule, stage, num_micro, lag)


@lru_cache(maxsize=256)
def _order(num_stages: int, num_virtual: int, schedule: str, stage: int, num_micro: int, lag: int) -> Order:
    """Where a pipeline is cut does not matter."""
    ranks, kinds, turns, micros = _ORDERS[schedule](_Stage(stage, num_stages, num_virtual, num_micro, lag))
    order = np.argsort(ranks, kind="stable")
    return Order(kinds[order], turns[order] * num_stages + stage, micros[order])


@dataclass(frozen=True, slots=True)
class _Stage:
    """Of the stages of a pipeline one, with as many chunks and microbatches. Gradients of weights wait ``lag`` backward passes,
    where they wait."""

    at: int
    stages: int
    virtual: int
    num_micro: int
    lag: int

    @property
    def total(self) -> int:
        """Passes of one kind."""
        return self.num_micro * self.virtual

    def taken(self, kind: int) -> tuple[Ints, Ints]:
        """Which of the stage's chunks, and which microbatch, the passes of a kind are of in the order in which they come:
        ``stages`` microbatches through each chunk in turn, backward from the last one on."""
        index = np.arange(self.total)
        if self.virtual == 1:
            return np.zeros_like(index), index
        turn = index // self.stages % self.virtual
        micro = index // (self.stages * self.virtual) * self.stages + index % self.stages
        return (turn if KINDS[kind] == FORWARD else self.virtual - 1 - turn), micro


_Ranked = tuple[Ints, Ints, Ints, Ints]
"""Of passes what they are ranked by, their kinds, which of their stage's chunks they are of, and their microbatches."""


def _ranked(stage: _Stage, *ranks: Ints) -> _Ranked:
    """Passes of the first kinds, given the ranks of each."""
    taken = [stage.taken(kind) for kind in range(len(ranks))]
    return (
        np.concatenate(ranks),
        np.repeat(np.arange(len(ranks)), stage.total),
        np.concatenate([turns for turns, _ in taken]),
        np.concatenate([micros for _, micros in taken]),
    )


def _gpipe(stage: _Stage) -> _Ranked:
    index = np.arange(2 * stage.total)
    within = index % stage.total
    return index, index // stage.total, within // stage.num_micro, within % stage.num_micro


def _one_f_one_b(stage: _Stage) -> _Ranked:
    """So many forward passes that the last stage has its first microbatch, then one of each kind in turn."""
    ahead = stage.stages - stage.at - 1
    warmup = ahead if stage.virtual == 1 else 2 * ahead + (stage.virtual - 1) * stage.stages
    index = np.arange(stage.total)
    return _ranked(stage, 2 * (index - min(stage.total, warmup)), 2 * index + 1)


def _zero_bubble(stage: _Stage) -> _Ranked:
    warmup = (stage.virtual - 1) * stage.stages + stage.stages - 1 - stage.at
    index = np.arange(stage.total)
    return _ranked(stage, 3 * (index - min(stage.total, warmup)), 3 * index + 1, 3 * (index + stage.lag) + 2)


_ORDERS: Mapping[str, Callable[[_Stage], _Ranked]] = {
    GPIPE: _gpipe,
    ONE_F_ONE_B: _one_f_one_b,
    INTERLEAVED: _one_f_one_b,
    ZERO_BUBBLE: _zero_bubble,
    MESSAGE_DRIVEN: _one_f_one_b,
}
