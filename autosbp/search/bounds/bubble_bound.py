"""Lower bound on the pipeline bubble: how long stages wait for each other in a step, wherever the chunks are cut.

A step takes at least as long as any path through its passes, each of which waits for the previous pass on its stage and
for its input. For each stage s of p, and each of its v chunks, paths go through everything that the stage does, except
for a part at either end:

- A path *begins* with the first microbatch's forward pass up to the chunk of s, and leaves out what s does until then:
  p forward passes through each of its earlier chunks. Or it *turns*: the first microbatch goes forward through all
  chunks and back to the chunk of s, which leaves out the passes that the schedule runs on s before that.
- A path *ends* with the stage's last pass and its once-a-step work. Or it *returns*: the last microbatch's backward
  pass through the chunk of s continues through all chunks that follow in backward order.

Summed over stages and averaged over chunks, the parts left out cancel against their counterparts on other stages,
except for multiples of one microbatch's forward and backward seconds on stage s. These multiples are the ``waits`` of a
schedule. Orders of passes: ``schedules.passes`` (Narayanan et al. 2021, section 2.2; Qi et al. 2023, section 2.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autosbp.plan.schedules import PathWaits

Floats = NDArray[np.float64]


def bubble_s(
    waits: PathWaits,
    work_s: float,
    passes_s: float,
    count: int,
    forward: tuple[float, Floats],
    backward: tuple[float, Floats],
) -> float:
    """Least seconds of work and waits, summed over all stages.

    Args:
        waits: multiples of one microbatch's passes that a schedule waits for.
        work_s: seconds of work of all stages.
        passes_s: the part of ``work_s`` in passes.
        count: microbatches of a step.
        forward: least forward seconds of one microbatch: of all stages, and [p - 1] of any 1, 2, ... p - 1 of them.
        backward: likewise, without weight gradients that may be deferred.
    """
    share = min(waits.put_off / count, 1.0)
    sure_s = share * count * (forward[0] + backward[0])
    waited_s = waits.forward.lower_bound_s(*forward) + waits.backward.lower_bound_s(*backward)
    return (1 - share) * (work_s if waits.once else passes_s) + sure_s + waited_s
