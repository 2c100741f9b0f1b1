"""A bound on the steps of a structure under the memory limit, of each size of its microbatches.

It is asked what each stage has room for of the blocks that a model repeats (``bounds.block_room``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from autosbp.errors import InfeasibleError
from autosbp.handed import handed_over
from autosbp.search.bounds.block_room import BlockRoom, Hints, Parts, Wanted
from autosbp.search.bounds.sends import Sends
from autosbp.search.bounds.stage_costs import Part
from autosbp.search.problem.unfold import part_variables
from autosbp.search.stages.layouts import LayoutProblems, Structure

MOST_VARIABLES = 200
"""Of a part: what lies before or behind the blocks may be most of a model."""


@handed_over
@dataclass(frozen=True)
class Learnt:
    """Of each size the most seconds that it is known not to allow for, and the least that it may; and prices."""

    shut_s: tuple[float, ...]
    open_s: tuple[float, ...]
    is_silent: bool
    hints: Hints


class _TooLargeError(Exception):
    """A part takes too long to be priced often."""


class StageBounds:
    """Bounds of a structure by the sizes of its microbatches, largest first. Nothing is said where parts are too large."""

    def __init__(
        self, problems: LayoutProblems, structure: Structure, sizes: Sequence[int], wanted: Wanted, hints: Hints
    ) -> None:
        self.problems, self.structure, self.sizes, self.wanted = problems, structure, sizes, wanted
        self.hints = hints
        self._is_silent = False
        self._rooms: dict[int, BlockRoom | None] = {}
        self._shut_s, self._open_s = [0.0] * len(sizes), [math.inf] * len(sizes)

    def learnt(self) -> Learnt:
        """What is known, but for what it is known from."""
        return Learnt(tuple(self._shut_s), tuple(self._open_s), self._is_silent, dict(self.hints))

    def learn(self, learnt: Learnt) -> None:
        """Know as much as another one of the same structure."""
        self._shut_s, self._open_s = list(learnt.shut_s), list(learnt.open_s)
        self._is_silent, self.hints = learnt.is_silent, dict(learnt.hints)

    def knows(self, seconds: float) -> bool:
        """Whether nothing has to be worked out for ``shut``."""
        return self._is_silent or all(
            shut_s >= seconds or open_s <= seconds for shut_s, open_s in zip(self._shut_s, self._open_s, strict=True)
        )

    def shut(self, seconds: float, out_of_time: Callable[[], bool]) -> list[bool]:
        """Of each size, whether no microbatch of it allows for a step of so many seconds.

        What a large microbatch takes and a small one keeps bounds all between them: most sizes need no problem of their own.
        """
        at = 0
        while at < len(self.sizes):
            if self._shut_s[at] >= seconds or self._open_s[at] <= seconds:
                at += 1
                continue
            if self._is_silent or out_of_time():
                break
            try:
                room = self._room(at)
                last = at if room is None else self._last_shut(room, at, seconds)  # None: no even split
            except _TooLargeError:
                self._is_silent = True
                break
            self._shut_s[at : last + 1] = [seconds] * (last + 1 - at)
            if last >= at:
                self._rooms.pop(at, None)  # a better step is out of reach, too
            else:
                self._open_s[at] = seconds
            at = max(last, at) + 1
        return [each >= seconds for each in self._shut_s]

    def least(self, at: int, seconds: float) -> float:
        """The least step that a size may allow for, not above ``seconds``, for which ``shut`` was asked."""
        if self._shut_s[at] >= seconds or self._open_s[at] == math.inf:
            return min(self._shut_s[at], seconds)
        room = self._room(at)
        assert room is not None  # it splits evenly: otherwise it would be shut
        try:
            return room.least(self._shut_s[at], seconds, self.sizes[at : at + 1])
        except _TooLargeError:
            return min(self._shut_s[at], seconds)

    def _last_shut(self, room: BlockRoom, at: int, seconds: float) -> int:
        """The last of the sizes from one on that its costs show to be shut; the one before it where that is not."""
        low, high = at - 1, len(self.sizes) - 1
        if not room.is_shut(seconds, self.sizes[at : at + 1]):
            return low
        low = at
        while low < high:
            middle = (low + high + 1) // 2
            if room.is_shut(seconds, self.sizes[at : middle + 1]):
                low = middle
            else:
                high = middle - 1
        return low

    def _room(self, at: int) -> BlockRoom | None:
        if at not in self._rooms:
            room: BlockRoom | None = None
            with suppress(InfeasibleError):
                room = _block_room(self.problems, self.structure, self.sizes[at], self.wanted, self.hints)
            self._rooms[at] = room
        return self._rooms[at]


def _block_room(
    problems: LayoutProblems, structure: Structure, micro_batch: int, wanted: Wanted, hints: Hints
) -> BlockRoom:
    """Raises ``InfeasibleError`` where nothing splits evenly, and ``_TooLargeError``, as the room does where it asks for parts
    that recompute."""
    folding = problems.folding
    assert folding is not None
    count = problems.global_batch // micro_batch

    def made(again: bool) -> Parts:
        built = problems.stage_problem(structure, micro_batch, wanted.storages, again=again)
        inner = part_variables(built, folding)
        if max(map(len, inner)) > MOST_VARIABLES:
            raise _TooLargeError
        before, block, behind = (Part(built, each, count) for each in inner)
        if before.is_huge or block.is_huge or behind.is_huge:
            raise _TooLargeError
        return before, block, behind

    sends = Sends(problems, structure, micro_batch)
    room = BlockRoom(made, folding.count, structure.stages, micro_batch, problems.global_batch, wanted, hints, sends)
    room.parts(again=False)
    return room
