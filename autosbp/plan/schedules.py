"""Pipeline schedules: the order in which stages process microbatches, and its consequences for memory and bubble."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from autosbp.errors import UnsupportedError

if TYPE_CHECKING:  # plans are read without numpy
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Wait:
    """Waiting time summed over all stages.

    It is ``even`` times the seconds of one microbatch in all stages, plus ``before`` times the sum, over the stages, of
    the seconds of all previous (or all following) stages.
    """

    all_stages: float
    before: float

    def lower_bound_s(self, whole_s: float, parts_s: NDArray[np.float64]) -> float:
        """Lower bound from the least seconds of all stages, and of any 1, 2, ... p - 1 stages."""
        return self.all_stages * whole_s + self.before * float(parts_s.sum())


@dataclass(frozen=True, slots=True)
class PathWaits:
    """Waiting time along one kind of critical path.

    Args:
        forward: wait in units of forward passes.
        backward: wait in units of backward passes, without deferred work.
        once: whether the work that stages do once a step adds to the path.
        put_off: number of microbatches whose deferred work the path excludes.
    """

    forward: Wait
    backward: Wait
    once: bool
    put_off: float = 0.0


NO_WAIT = Wait(0.0, 0.0)


def _standard_waits(stages: int, virtual: int) -> tuple[Wait, Wait]:
    """Waits for a pass through one chunk of each previous (or following) stage, and of each other stage."""
    return Wait(0.0, 1.0 / virtual), Wait((stages - 1.0) / virtual, 0.0)


@dataclass(frozen=True)
class Schedule(ABC):
    """Order in which a stage processes microbatches.

    A stage runs forward passes until ``in_flight`` is reached, then alternates backward and forward
    (``schedules.passes``). ``virtual`` is the number of chunks per stage. Instances have no state: two of one class are
    equal.
    """

    name: ClassVar[str]
    """Name in plans."""
    runs: ClassVar[bool] = True
    """Whether an included runtime executes it."""
    is_message_driven: ClassVar[bool] = False
    """Whether a pass starts as soon as its messages have arrived, in no fixed order (``schedules.message_driven``)."""
    interleaves: ClassVar[bool] = False
    """Whether stages may have several chunks, at least ``fewest_chunks``; other schedules have one."""
    fewest_chunks: ClassVar[int] = 1
    splits_backward: ClassVar[bool] = False
    """Whether weight gradients are passes of their own."""
    overlaps_sends: ClassVar[bool] = False
    """Whether a stage continues while it sends, if a pass of the same direction follows."""
    keeps_sent_tensors: ClassVar[tuple[bool, bool]] = False, False
    """Whether sent values, and sent gradients, stay in memory until the end of a step, where
    ``torch.distributed.pipelining`` waits for their sends.
    """
    warmup_per_stage: ClassVar[int] = 1
    """Forward passes of a stage before its first backward, per following stage."""
    has_1f1b_memory: ClassVar[bool] = False
    """Whether no stage keeps more activations than in 1F1B."""
    chunks_text: ClassVar[str] = "expected one chunk per stage"
    micro_text: ClassVar[str] = "expected at least one"

    def supports_chunks(self, virtual: int) -> bool:
        return virtual >= self.fewest_chunks and (self.interleaves or virtual == 1)

    def supports_microbatches(self, num_micro: int, stages: int) -> bool:  # noqa: ARG002
        return num_micro >= 1

    def in_flight(self, stage: int, stages: int, num_micro: int, virtual: int = 1) -> int:
        """Maximum number of microbatches between their forward and backward on a stage, counted once per chunk."""
        warmup = self.warmup_per_stage * (stages - stage - 1) + (virtual - 1) * stages
        return min(warmup + 1, num_micro * virtual)

    def deferred_wgrads(self, stage: int, stages: int, num_micro: int, virtual: int = 1) -> int:
        """Deferred weight gradients, in microbatches, when most microbatches are in flight.

        For each, the inputs of matmuls with weights and the gradients of their outputs are still in memory.
        """
        steady = num_micro * virtual - self.in_flight(stage, stages, num_micro, virtual)
        return min(stage, steady) if self.splits_backward else 0

    def blocking_sends(self, stage: int, stages: int, num_micro: int) -> int:
        """Number of microbatches whose messages in one direction block the stage itself."""
        if self.overlaps_sends:
            return num_micro + 1 - self.in_flight(stage, stages, num_micro)
        return 0 if self.is_message_driven else num_micro

    @abstractmethod
    def waits(self, stages: int, virtual: int) -> tuple[PathWaits, ...]:
        """Waits of each kind of path through a step (``search.bounds.bubble_bound``), each a lower bound."""


class GPipe(Schedule):
    """All forward, then all backward (Huang et al. 2019)."""

    name = "gpipe"
    overlaps_sends = True
    keeps_sent_tensors = False, True

    def in_flight(self, stage: int, stages: int, num_micro: int, virtual: int = 1) -> int:  # noqa: ARG002
        return num_micro * virtual

    def waits(self, stages: int, virtual: int) -> tuple[PathWaits, ...]:
        each, every = _standard_waits(stages, virtual)
        return PathWaits(every, each, once=True), PathWaits(every, every, once=False)


class OneFOneB(Schedule):
    """Alternating forward and backward (1F1B; Narayanan et al. 2021, section 2.2)."""

    name = "1f1b"
    overlaps_sends = has_1f1b_memory = True
    micro_text = "expected at least the {stages} stages"

    def supports_microbatches(self, num_micro: int, stages: int) -> bool:
        return num_micro >= stages

    def waits(self, stages: int, virtual: int) -> tuple[PathWaits, ...]:
        each, every = _standard_waits(stages, virtual)
        return PathWaits(each, each, once=True), PathWaits(each, every, once=False)


class MessageDriven(Schedule):
    """No fixed order; memory is counted as in 1F1B, which fills all of its registers."""

    name = "message_driven"
    runs = False
    is_message_driven = has_1f1b_memory = True

    def waits(self, stages: int, virtual: int) -> tuple[PathWaits, ...]:
        return (PathWaits(_standard_waits(stages, virtual)[0], NO_WAIT, once=True),)


class Interleaved(Schedule):
    """1F1B with several chunks per stage (Narayanan et al. 2021, section 2.2).

    As Megatron-LM's ``forward_backward_pipelining_with_interleaving``.
    """

    name = "interleaved_1f1b"
    interleaves = True
    fewest_chunks = warmup_per_stage = 2
    keeps_sent_tensors = True, True
    chunks_text = "expected at least two chunks per stage"
    micro_text = "expected a multiple of the {stages} stages"

    def supports_microbatches(self, num_micro: int, stages: int) -> bool:
        return num_micro % stages == 0

    def waits(self, stages: int, virtual: int) -> tuple[PathWaits, ...]:
        # Turning counts 2 s - p + 1 forward passes of stage s, beginning p - 1 - s: their average is nowhere negative.
        each, half = _standard_waits(stages, virtual)[0], Wait(0.0, 0.5 / virtual)
        most = Wait((stages - 1.0) / 2 / virtual, 0.5 / virtual)
        begins, turns = PathWaits(each, NO_WAIT, once=True), PathWaits(half, half, once=True)
        return begins, turns, PathWaits(each, each, once=False), PathWaits(half, most, once=False)


class ZeroBubble(Interleaved):
    """Weight gradients separate from input gradients, and deferred to where a stage would wait.

    Stage s starts them after s backward passes, so that it keeps as many activations as 1F1B (ZB-H1; Qi et al. 2023,
    section 2.1).
    """

    name = "zero_bubble"
    splits_backward = True
    fewest_chunks = warmup_per_stage = 1
    chunks_text = "expected at least one chunk per stage"

    def waits(self, stages: int, virtual: int) -> tuple[PathWaits, ...]:
        # Weight-gradient passes before the turn belong to following chunks; after the return, to previous ones and some
        # of its own.
        each, every = _standard_waits(stages, virtual)
        turns = PathWaits(each, each, once=True, put_off=stages * (virtual - 1) / virtual)
        return PathWaits(each, NO_WAIT, once=True), turns, PathWaits(each, every, once=False, put_off=stages)


GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = GPipe(), OneFOneB(), Interleaved(), ZeroBubble()
MESSAGE_DRIVEN = MessageDriven()
SCHEDULES: Mapping[str, Schedule] = {
    each.name: each for each in (GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, MESSAGE_DRIVEN)
}
RUNNABLE = tuple(name for name, schedule in SCHEDULES.items() if schedule.runs)
"""Schedules that are searched unless others are requested."""


def require_runtime(name: str) -> None:
    """Raise ``UnsupportedError`` if no included runtime executes a schedule."""
    if name not in RUNNABLE:
        raise UnsupportedError(f"no runtime supports the schedule {name}; supported: {', '.join(RUNNABLE)}")
