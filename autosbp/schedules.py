"""Pipeline schedules: in which order stages work on microbatches, and what follows from that."""

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
    """What all stages wait: ``even`` times the seconds of one microbatch in all stages, and ``before`` times what those before,
    or those behind, each stage take, in sum over the stages."""

    even: float
    before: float

    def least_s(self, whole_s: float, parts_s: NDArray[np.float64]) -> float:
        """Given the least that all stages take, and that 1, 2, ... p - 1 stages do, whichever these are."""
        return self.even * whole_s + self.before * float(parts_s.sum())


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one kind of path: for ``forward`` and ``backward`` passes, the latter without what is put off for later; of how many
    microbatches that is left out (``put_off``); and whether what stages do ``once`` a step comes on top."""

    forward: Wait
    backward: Wait
    once: bool
    put_off: float = 0.0


NONE = Wait(0.0, 0.0)


def _usual(stages: int, virtual: int) -> tuple[Wait, Wait]:
    """For a pass through one chunk of each stage before, or behind; and for as many passes as there are other stages."""
    return Wait(0.0, 1.0 / virtual), Wait((stages - 1.0) / virtual, 0.0)


@dataclass(frozen=True)
class Schedule(ABC):
    """In which order a stage works on microbatches: forward passes until as many are ``in_flight`` as may be, then one
    backward and one forward in turn (``costmodel.pipeline_passes``).

    ``virtual`` are the chunks of one stage. Values have no state: two of one class are equal.
    """

    name: ClassVar[str]
    """As plans have it."""
    runs: ClassVar[bool] = True
    """Whether a runtime here runs it."""
    is_message_driven: ClassVar[bool] = False
    """Whether a pass begins as soon as its messages are there, in no fixed order (``costmodel.message_driven``)."""
    interleaves: ClassVar[bool] = False
    """Whether stages may have several chunks, ``fewest_chunks`` or more; others have one."""
    fewest_chunks: ClassVar[int] = 1
    splits_backward: ClassVar[bool] = False
    """Whether the gradients of weights are passes of their own."""
    overlaps_sends: ClassVar[bool] = False
    """Whether a stage goes on while it sends, where a pass of the same direction follows."""
    kept_sends: ClassVar[tuple[bool, bool]] = False, False
    """Whether values, and gradients, that were sent stay until the end of a step: ``torch.distributed.pipelining`` waits for
    them there."""
    warmup_per_stage: ClassVar[int] = 1
    """Forward passes of a stage before its first backward one, for each stage behind it."""
    is_lean: ClassVar[bool] = False
    """Whether no stage keeps more than 1F1B does."""
    chunks_text: ClassVar[str] = "one chunk a stage is expected"
    micro_text: ClassVar[str] = "at least one is expected"

    def takes_chunks(self, virtual: int) -> bool:
        return virtual >= self.fewest_chunks and (self.interleaves or virtual == 1)

    def takes_micro(self, num_micro: int, stages: int) -> bool:  # noqa: ARG002
        return num_micro >= 1

    def in_flight(self, stage: int, stages: int, num_micro: int, virtual: int = 1) -> int:
        """The most microbatches between their forward and backward on a stage at once, each counted once for every chunk
        that it is in."""
        warmup = self.warmup_per_stage * (stages - stage - 1) + (virtual - 1) * stages
        return min(warmup + 1, num_micro * virtual)

    def weights_owed(self, stage: int, stages: int, num_micro: int, virtual: int = 1) -> int:
        """How many have had their backward but not the gradients of their weights when most are in flight: of each, inputs
        of products with weights and gradients of their outputs are there still."""
        steady = num_micro * virtual - self.in_flight(stage, stages, num_micro, virtual)
        return min(stage, steady) if self.splits_backward else 0

    def sends_waited(self, stage: int, stages: int, num_micro: int) -> int:
        """For how many microbatches' messages in one direction a stage itself waits."""
        if self.overlaps_sends:
            return num_micro + 1 - self.in_flight(stage, stages, num_micro)
        return 0 if self.is_message_driven else num_micro

    @abstractmethod
    def waits(self, stages: int, virtual: int) -> tuple[Waits, ...]:
        """Of each kind of path through a step (``search.bounds.bubble``), none of which it is below."""


class GPipe(Schedule):
    """All forward, then all backward (Huang et al. 2019)."""

    name = "gpipe"
    overlaps_sends = True
    kept_sends = False, True

    def in_flight(self, stage: int, stages: int, num_micro: int, virtual: int = 1) -> int:  # noqa: ARG002
        return num_micro * virtual

    def waits(self, stages: int, virtual: int) -> tuple[Waits, ...]:
        each, every = _usual(stages, virtual)
        return Waits(every, each, once=True), Waits(every, every, once=False)


class OneFOneB(Schedule):
    """One forward and one backward in turn (Narayanan et al. 2021, section 2.2)."""

    name = "1f1b"
    overlaps_sends = is_lean = True
    micro_text = "at least the {stages} stages are expected"

    def takes_micro(self, num_micro: int, stages: int) -> bool:
        return num_micro >= stages

    def waits(self, stages: int, virtual: int) -> tuple[Waits, ...]:
        each, every = _usual(stages, virtual)
        return Waits(each, each, once=True), Waits(each, every, once=False)


class MessageDriven(Schedule):
    """No fixed order; that of 1F1B stands for all that its registers let happen: it fills all of them."""

    name = "message_driven"
    runs = False
    is_message_driven = is_lean = True

    def waits(self, stages: int, virtual: int) -> tuple[Waits, ...]:
        return (Waits(_usual(stages, virtual)[0], NONE, once=True),)


class Interleaved(Schedule):
    """1F1B with several chunks a stage (Narayanan et al. 2021, section 2.2; Megatron-LM's
    ``forward_backward_pipelining_with_interleaving``)."""

    name = "interleaved_1f1b"
    interleaves = True
    fewest_chunks = warmup_per_stage = 2
    kept_sends = True, True
    chunks_text = "at least two chunks a stage are expected"
    micro_text = "a multiple of the {stages} stages is expected"

    def takes_micro(self, num_micro: int, stages: int) -> bool:
        return num_micro % stages == 0

    def waits(self, stages: int, virtual: int) -> tuple[Waits, ...]:
        # Turning counts 2 s - p + 1 forward passes of stage s, beginning p - 1 - s: their average is nowhere negative.
        each, half = _usual(stages, virtual)[0], Wait(0.0, 0.5 / virtual)
        most = Wait((stages - 1.0) / 2 / virtual, 0.5 / virtual)
        begins, turns = Waits(each, NONE, once=True), Waits(half, half, once=True)
        return begins, turns, Waits(each, each, once=False), Waits(half, most, once=False)


class ZeroBubble(Interleaved):
    """The gradients of weights apart from those of inputs, and later, where a stage would wait: stage s starts these when it
    has done s backward passes, so that it keeps as many activations as 1F1B does (ZB-H1; Qi et al. 2023, section 2.1)."""

    name = "zero_bubble"
    splits_backward = True
    fewest_chunks = warmup_per_stage = 1
    chunks_text = "at least one chunk a stage is expected"

    def waits(self, stages: int, virtual: int) -> tuple[Waits, ...]:
        # Passes for weights before the turn are of the chunks behind; behind the return, of those before, and some of its own.
        each, every = _usual(stages, virtual)
        turns = Waits(each, each, once=True, put_off=stages * (virtual - 1) / virtual)
        return Waits(each, NONE, once=True), turns, Waits(each, every, once=False, put_off=stages)


GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = GPipe(), OneFOneB(), Interleaved(), ZeroBubble()
MESSAGE_DRIVEN = MessageDriven()
SCHEDULES: Mapping[str, Schedule] = {
    each.name: each for each in (GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, MESSAGE_DRIVEN)
}
RUNNABLE = tuple(name for name, schedule in SCHEDULES.items() if schedule.runs)
"""Schedules that are searched unless others are asked for."""


def require_runtime(name: str) -> None:
    """``UnsupportedError`` where nothing here runs a schedule."""
    if name not in RUNNABLE:
        raise UnsupportedError(f"no runtime here runs the schedule {name} yet; those that run: {', '.join(RUNNABLE)}")
