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
multiples of the forward and backward seconds of one microbatch on stage s: those are the ``waits`` of a schedule.
Orders of passes: ``costmodel.pipeline_passes`` (Narayanan et al. 2021, section 2.2; Qi et al. 2023, section 2.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autosbp.schedules import Waits

Floats = NDArray[np.float64]


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
