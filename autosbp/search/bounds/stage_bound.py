"""Lower bound on the step time of a structure under the memory limit, per microbatch size.

It follows from the number of repeated blocks that each stage can hold (``bounds.memory_capacity_bound``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from autosbp.errors import InfeasibleError
from autosbp.search.bounds.memory_capacity_bound import BlockCapacity, BoundedStrategies, MultiplierHints, Parts
from autosbp.search.bounds.p2p_bound import P2PBound
from autosbp.search.bounds.stage_costs import StageSubproblem
from autosbp.search.problem.expand_repeats import part_variables
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure
from autosbp.utils.serialization import serializable

MAX_VARIABLES = 200
"""Most variables of a part; the part before or after the blocks may be most of a model."""


@serializable
@dataclass(frozen=True)
class MicrobatchLimits:
    """Results of a ``StageBounds``, to hand to another one.

    Per microbatch size: ``shut_s`` is the longest step that is known to be impossible, ``open_s`` the shortest that may
    be possible. ``is_silent``: parts are too large to bound. ``hints``: good Lagrange multipliers of memory."""

    infeasible_below_s: tuple[float, ...]
    feasible_from_s: tuple[float, ...]
    is_too_large: bool
    hints: MultiplierHints


class _TooLargeError(Exception):
    """A part takes too long to solve at many multipliers."""


class StageBounds:
    """Lower bounds of a structure per microbatch size, largest first. Parts that are too large get no bound."""

    def __init__(
        self,
        problems: LayoutProblems,
        structure: PipelineStructure,
        sizes: Sequence[int],
        wanted: BoundedStrategies,
        hints: MultiplierHints,
    ) -> None:
        self.problems, self.structure, self.sizes, self.strategies = problems, structure, sizes, wanted
        self.hints = hints
        self._is_too_large = False
        self._capacities: dict[int, BlockCapacity | None] = {}
        self._shut_s, self._open_s = [0.0] * len(sizes), [math.inf] * len(sizes)

    def export_limits(self) -> MicrobatchLimits:
        """The results so far, without the problems they come from."""
        return MicrobatchLimits(tuple(self._shut_s), tuple(self._open_s), self._is_too_large, dict(self.hints))

    def learn(self, learnt: MicrobatchLimits) -> None:
        """Take over the results of another object of the same structure."""
        self._shut_s, self._open_s = list(learnt.infeasible_below_s), list(learnt.feasible_from_s)
        self._is_too_large, self.hints = learnt.is_too_large, dict(learnt.hints)

    def is_decided(self, seconds: float) -> bool:
        """Whether ``shut`` can answer without new work."""
        return self._is_too_large or all(
            shut_s >= seconds or open_s <= seconds for shut_s, open_s in zip(self._shut_s, self._open_s, strict=True)
        )

    def infeasible_sizes(self, seconds: float, out_of_time: Callable[[], bool]) -> list[bool]:
        """For each size, whether no microbatch of that size allows a step of ``seconds``.

        The time of a large microbatch and the memory of a small one bound all sizes between them, so most sizes need no
        problem of their own."""
        at = 0
        while at < len(self.sizes):
            if self._shut_s[at] >= seconds or self._open_s[at] <= seconds:
                at += 1
                continue
            if self._is_too_large or out_of_time():
                break
            try:
                room = self._capacity(at)
                last = at if room is None else self._last_infeasible_size(room, at, seconds)  # None: uneven split
            except _TooLargeError:
                self._is_too_large = True
                break
            self._shut_s[at : last + 1] = [seconds] * (last + 1 - at)
            if last >= at:
                self._capacities.pop(at, None)  # shorter steps are impossible, too
            else:
                self._open_s[at] = seconds
            at = max(last, at) + 1
        return [each >= seconds for each in self._shut_s]

    def least(self, at: int, seconds: float) -> float:
        """Least step time that a size may allow, at most ``seconds``; call ``shut(seconds)`` before."""
        if self._shut_s[at] >= seconds or self._open_s[at] == math.inf:
            return min(self._shut_s[at], seconds)
        room = self._capacity(at)
        assert room is not None  # an uneven split would be shut
        try:
            return room.least(self._shut_s[at], seconds, self.sizes[at : at + 1])
        except _TooLargeError:
            return min(self._shut_s[at], seconds)

    def _last_infeasible_size(self, room: BlockCapacity, at: int, seconds: float) -> int:
        """Index of the last size, from ``at`` on, that the costs of ``at`` rule out; ``at - 1`` if none."""
        low, high = at - 1, len(self.sizes) - 1
        if not room.is_infeasible(seconds, self.sizes[at : at + 1]):
            return low
        low = at
        while low < high:
            middle = (low + high + 1) // 2
            if room.is_infeasible(seconds, self.sizes[at : middle + 1]):
                low = middle
            else:
                high = middle - 1
        return low

    def _capacity(self, at: int) -> BlockCapacity | None:
        if at not in self._capacities:
            room: BlockCapacity | None = None
            with suppress(InfeasibleError):
                room = _block_capacity(self.problems, self.structure, self.sizes[at], self.strategies, self.hints)
            self._capacities[at] = room
        return self._capacities[at]


def _block_capacity(
    problems: LayoutProblems,
    structure: PipelineStructure,
    micro_batch: int,
    wanted: BoundedStrategies,
    hints: MultiplierHints,
) -> BlockCapacity:
    """The capacity at a microbatch size.

    Raises:
        InfeasibleError: nothing splits evenly.
        _TooLargeError: a part is too large; the capacity raises it later, too, when it asks for checkpointed parts.
    """
    folding = problems.folding
    assert folding is not None
    count = problems.global_batch // micro_batch

    def made(again: bool) -> Parts:
        built = problems.stage_problem(structure, micro_batch, wanted.parameter_shardings, again=again)
        inner = part_variables(built, folding)
        if max(map(len, inner)) > MAX_VARIABLES:
            raise _TooLargeError
        before, block, behind = (StageSubproblem(built, each, count) for each in inner)
        if before.is_huge or block.is_huge or behind.is_huge:
            raise _TooLargeError
        return before, block, behind

    sends = P2PBound(problems, structure, micro_batch)
    room = BlockCapacity(
        made, folding.count, structure.stages, micro_batch, problems.global_batch, wanted, hints, sends
    )
    room.parts(again=False)
    return room
