"""Zero-bubble strategies that do not fit in memory, with gradients of weights that wait for fewer passes.

What waits keeps the inputs of products and the gradients of their outputs. Stage s has s microbatches of them where it waits
to fill all of its bubble (ZB-H1; Qi et al. 2023, section 2.1); with a lag of 0 each comes behind its own backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autosbp.pipeline import ZERO_BUBBLE
from autosbp.plan import Costs, Strategy
from autosbp.search.space.candidate import Candidate


def with_earlier_weights(
    candidate: Candidate, costs: Callable[[Strategy], Costs], has_room: Callable[[Candidate], bool]
) -> Candidate:
    """The strategy with the longest lag with which it has room, by bisection; as it is where it has, or where none can make
    it."""
    pipeline = candidate.strategy.pipeline
    if pipeline is None or pipeline.schedule != ZERO_BUBBLE or pipeline.weights_lag is not None or has_room(candidate):
        return candidate

    def with_lag(lag: int) -> Candidate:
        changed = replace(candidate.strategy, pipeline=replace(pipeline, weights_lag=lag))
        return Candidate(changed, costs(changed))

    found = with_lag(0)
    if not has_room(found):
        return candidate
    fits, exceeds = 0, pipeline.num_stages - 1
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        tried = with_lag(middle)
        if has_room(tried):
            found, fits = tried, middle
        else:
            exceeds = middle
    return found
