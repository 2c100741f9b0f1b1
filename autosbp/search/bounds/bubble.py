"""What the stages of a pipeline wait for each other in a step, at the least, however its chunks are cut.

A step takes no less than any path through its passes, each of which waits for the one before it on its stage, and for what it
is handed. For each stage s of p, and each of its v chunks, one path goes through everything that the stage does, but for what
comes before and behind the path's bends:

- it *begins* with the first microbatch's forward pass as far as the chunk of s, and leaves out what s does until then: p
  forward passes through each of its chunks before; or it *turns*: the first microbatch goes forward through all chunks, and
  back as far as the chunk of s, which leaves out the passes that the schedule has there before it;
- it *ends* with the stage's last pass, and what that does once a step; or it *returns*: the last microbatch's backward pass
  through the chunk of s goes on through all that comes behind it.

In sum over stages, and on average over chunks, what is left out cancels with what stands for it on other stages, but for
multiples of the forward and backward seconds of one microbatch on stage s: those are here. Orders of passes:
``costmodel.pipeline_passes`` (Narayanan et al. 2021, section 2.2; Qi et al. 2023, section 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosbp.pipeline import GPIPE, INTERLEAVED, MESSAGE_DRIVEN, ONE_F_ONE_B
from autosbp.search.stages.pipelines import Shape

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Wait:
    """What all stages wait: ``even`` times the seconds of one microbatch in all stages, and ``before`` times what those before,
    or those behind, each stage take, in sum over the stages."""

    even: float
    before: float

    def least_s(self, whole_s: float, parts_s: Floats) -> float:
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


def waits_of(shape: Shape, stages: int) -> tuple[Waits, ...]:
    """Of each kind of path, none of which a step is below."""
    virtual, ahead = shape.virtual, stages - 1.0
    none, each, all_ = Wait(0.0, 0.0), Wait(0.0, 1.0 / virtual), Wait(ahead / virtual, 0.0)
    begins = Waits(each, none, once=True)
    if shape.schedule == MESSAGE_DRIVEN:
        return (begins,)  # in no fixed order
    if shape.schedule == GPIPE:
        return Waits(all_, each, once=True), Waits(all_, all_, once=False)
    if shape.schedule == ONE_F_ONE_B:
        return Waits(each, each, once=True), Waits(each, all_, once=False)
    if shape.schedule == INTERLEAVED:
        # Turning counts 2 s - p + 1 forward passes of stage s, beginning p - 1 - s: their average is nowhere negative.
        half, most = Wait(0.0, 0.5 / virtual), Wait(ahead / 2 / virtual, 0.5 / virtual)
        return begins, Waits(half, half, once=True), Waits(each, each, once=False), Waits(half, most, once=False)
    # Passes for weights before the turn are of the chunks behind; behind the return, of those before, and some of its own.
    return begins, Waits(each, each, True, stages * (virtual - 1) / virtual), Waits(each, all_, False, stages)


def bubble_s(
    waits: Waits,
    work_s: float,
    passes_s: float,
    count: int,
    forward: tuple[float, Floats],
    backward: tuple[float, Floats],
) -> float:
    """What all stages work and wait, at the least.

    Args:
        work_s: what they work; ``passes_s``: in passes alone.
        count: microbatches.
        forward: of one of them, the least seconds of all stages, and of any 1, 2, ... p - 1 of them.
        backward: likewise, without what may be put off.
    """
    share = min(waits.put_off / count, 1.0)
    sure_s = share * count * (forward[0] + backward[0])
    waited_s = waits.forward.least_s(*forward) + waits.backward.least_s(*backward)
    return (1 - share) * (work_s if waits.once else passes_s) + sure_s + waited_s
