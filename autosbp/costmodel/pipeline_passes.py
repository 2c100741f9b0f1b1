"""In which order a stage passes microbatches through its chunks, for every schedule.

``gpipe``: all forward, then all backward (Huang et al. 2019). ``1f1b`` and its interleaved form: Narayanan et al. 2021,
section 2.2; Megatron-LM's ``forward_backward_pipelining_with_interleaving``.
``zero_bubble``: a backward pass leaves the gradients of weights to a pass of their own; stage s starts these when it has
done s backward passes, so that it keeps as many activations as 1F1B does (Qi et al. 2023, section 2.1, ZB-H1).
``message_driven`` has no order; that of ``1f1b`` stands for all that its registers let happen: it fills all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from autosbp.pipeline import GPIPE, INTERLEAVED, MESSAGE_DRIVEN, ONE_F_ONE_B, ZERO_BUBBLE, Pipeline

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"


@dataclass(frozen=True, slots=True)
class Pass:
    """One microbatch through one chunk: ``forward``, ``backward``, or what backward left: ``weights``."""

    kind: str
    chunk: int
    micro: int


Task = tuple[bool, int, int]
"""(backward, chunk of the model, microbatch)."""


def stage_order(stage: int, num_stages: int, num_virtual: int, num_micro: int) -> list[Task]:
    """The tasks of one stage in the order of the schedule; chunk c of the model lies on stage c mod p."""
    total, group = num_micro * num_virtual, num_stages * num_virtual

    def task(backward: bool, index: int) -> Task:
        virtual = index % group // num_stages if num_virtual > 1 else 0
        micro = index // group * num_stages + index % num_stages if num_virtual > 1 else index
        chunk = num_virtual - 1 - virtual if backward else virtual
        return (backward, chunk * num_stages + stage, micro)

    if num_virtual > 1:
        warmup = min(total, 2 * (num_stages - stage - 1) + (num_virtual - 1) * num_stages)
    else:
        warmup = min(total, num_stages - stage - 1)
    order = [task(False, index) for index in range(warmup)]
    for index in range(total - warmup):
        order += [task(False, warmup + index), task(True, index)]
    return order + [task(True, index) for index in range(total - warmup, total)]


def stage_passes(pipeline: Pipeline, stage: int, num_micro: int) -> tuple[Pass, ...]:
    """The passes of one stage, in order."""
    return _passes(pipeline.num_stages, pipeline.num_virtual, pipeline.schedule, stage, num_micro)


@lru_cache(maxsize=256)
def _passes(num_stages: int, num_virtual: int, schedule: str, stage: int, num_micro: int) -> tuple[Pass, ...]:
    """Where a pipeline is cut does not matter."""
    pipeline = Pipeline(num_stages, tuple(map(str, range(1, num_stages * num_virtual))), schedule)
    return tuple(_ORDERS[schedule](pipeline, stage, num_micro))


def _gpipe(pipeline: Pipeline, stage: int, num_micro: int) -> list[Pass]:
    forward = [Pass(FORWARD, chunk, micro) for chunk in pipeline.chunks_of(stage) for micro in range(num_micro)]
    return forward + [Pass(BACKWARD, one.chunk, one.micro) for one in forward]


def _one_f_one_b(pipeline: Pipeline, stage: int, num_micro: int) -> list[Pass]:
    order = stage_order(stage, pipeline.num_stages, pipeline.num_virtual, num_micro)
    return [Pass(BACKWARD if backward else FORWARD, chunk, micro) for backward, chunk, micro in order]


def _zero_bubble(pipeline: Pipeline, stage: int, num_micro: int) -> list[Pass]:
    stages, virtual = pipeline.num_stages, pipeline.num_virtual
    total = num_micro * virtual

    def one(kind: str, index: int) -> Pass:
        """As ``stage_order`` numbers them: ``stages`` microbatches through each chunk in turn."""
        turn, micro = index // stages % virtual, index // (stages * virtual) * stages + index % stages
        chunk = turn if kind == FORWARD else virtual - 1 - turn
        return Pass(kind, chunk * stages + stage, micro)

    warmup = min(total, (virtual - 1) * stages + stages - 1 - stage)
    order = [one(FORWARD, index) for index in range(warmup)]
    for index in range(total):
        order += [one(FORWARD, warmup + index)] if warmup + index < total else []
        order.append(one(BACKWARD, index))
        order += [one(WEIGHTS, index - stage)] if index >= stage else []
    return order + [one(WEIGHTS, index) for index in range(total - min(stage, total), total)]


_ORDERS: Mapping[str, Callable[[Pipeline, int, int], list[Pass]]] = {
    GPIPE: _gpipe,
    ONE_F_ONE_B: _one_f_one_b,
    INTERLEAVED: _one_f_one_b,
    ZERO_BUBBLE: _zero_bubble,
    MESSAGE_DRIVEN: _one_f_one_b,
}
