"""A bound on the steps of a structure under the memory limit, of a model without repeated blocks: all stages together.

In a step of T seconds p stages have p T seconds for what they do, and p times the memory of a device for the state and
gradients of all parameters, and for what one microbatch keeps, as each stage has one in flight at the least. By Lagrangian
duality, at any price of a byte,

    p T >= min over layouts of (seconds + price * (state + gradients + kept)) - price * p * limit

whatever each of them holds (``bounds.block_room`` has the same for repeated blocks, where it is known what a stage holds).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from autosbp.pipeline import ONE_F_ONE_B
from autosbp.search.bounds.mixtures import lower_edge
from autosbp.search.bounds.moments import Moment, moments, prices_of
from autosbp.search.bounds.stage_costs import Part
from autosbp.search.stages.pipelines import shapes

ROUNDING = 1e-9
MOST_PRICES = 8
FAR = 1e3
"""Times what a quick layout takes in seconds is what it pays for its bytes, where even small ones do not fit."""
NEAR = 1e-3
"""So near to a price that was tried none is tried again."""


class WholeRoom:
    """What stages have room for. ``part`` is all of the model, with the costs of microbatches of ``micro_batch`` samples, the
    largest that is asked for."""

    def __init__(
        self, part: Part, stages: int, micro_batch: int, batch: int, schedules: tuple[str, ...], limit: int
    ) -> None:
        self.part, self.stages, self.schedules = part, stages, schedules
        self.micro_batch, self.batch = micro_batch, batch
        self.budget = float(stages * limit)
        self._found: dict[tuple[Moment, float], float] = {}

    def is_shut(self, seconds: float, sizes: Sequence[int]) -> bool:
        """Whether no microbatch of these sizes allows for a step of so many seconds."""
        return self._least_s(sizes) >= seconds * (1 - ROUNDING)

    def least(self, low: float, high: float, sizes: Sequence[int]) -> float:
        """The least seconds that are not out of reach for microbatches of these sizes, between two."""
        return min(max(low, self._least_s(sizes)), high)

    def _least_s(self, sizes: Sequence[int]) -> float:
        share = sizes[-1] / self.micro_batch
        counts = [self.batch // size for size in sizes]
        schedules = {ONE_F_ONE_B}
        if self.stages > 1:
            schedules = {shape.schedule for count in counts for shape in shapes(self.stages, count, self.schedules)}
        # The last stage has the fewest in flight, and all others have as many.
        every = {tuple(moments(schedule, self.stages, self.stages - 1, min(counts))) for schedule in schedules}
        if not every:
            return inf
        return min(max(self._work_s(moment, share) for moment in each) for each in every) / self.stages

    def _work_s(self, moment: Moment, share: float) -> float:
        """Of all stages: the most of some prices. The next one is where a quick layout of those known, which is too large, and
        a small one, which is too slow, cost the same."""
        if (moment, share) not in self._found:
            self._found[moment, share] = self._most(moment, share)
        return self._found[moment, share]

    def _most(self, moment: Moment, share: float) -> float:
        tried: dict[float, float] = {}
        for _ in range(MOST_PRICES):
            known = [
                (each.seconds, each.stays + moment.gradients * each.gradients + moment.in_flight * share * each.kept)
                for each in self.part.known(once=True)
            ]
            price = self._next(lower_edge(known))
            if any(abs(price - other) <= NEAR * other for other in tried):
                break
            tried[price] = self.part.at(prices_of(price, moment, share)).least_s - price * self.budget
            if price == 0.0:
                break
        return max(tried.values())

    def _next(self, corners: Sequence[tuple[float, float]]) -> float:
        if corners[0][1] <= self.budget:
            return 0.0
        slow, small = corners[-1]
        if small > self.budget:
            return FAR * slow / small
        at = next(at for at, (_, size) in enumerate(corners) if size <= self.budget)
        (quick, large), (slow, small) = corners[at - 1 : at + 1]
        return (slow - quick) / (large - small)
