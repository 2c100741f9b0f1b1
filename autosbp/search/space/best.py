"""The best strategy over many structures (stages and views), with a bound that no strategy of theirs is below.

Each structure is first solved without the memory limit at the largest microbatch that can fit. That bounds it, smaller
microbatches included: they pay the same work and bytes with more latencies. Structures whose bound is below the best plan
so far are then searched under the memory limit, lowest bound first. Without a pipeline, an optimum that fits is the
structure's answer. With one, fewer samples a microbatch mean shorter waits and more latencies: microbatches are taken
from about a tenth of waiting on, as long as they get better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from autosbp.errors import InfeasibleError
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.costing import INFINITE, ROUNDING
from autosbp.search.space.opening import WHOLE, Look, Opened
from autosbp.search.space.space_solver import BOUNDED, Kind
from autosbp.search.space.tally import Tally, nearer
from autosbp.search.space.timed import OutOfTimeError
from autosbp.search.space.walking import Walk, Walked, Walking
from autosbp.search.stages.layouts import Structure

EXPOSED = 0.5
"""From this multiplier on, bounds of stages count all that moves once a step."""
ENOUGH_EVALUATIONS, USUAL_S = 40_000_000, 20.0
"""Costed values after which no further search begins, where the time limit is the usual one; in proportion to longer ones."""


class Offers(Protocol):
    """What a search may begin with besides, that takes a while to be known."""

    def begin_early(self) -> None:
        """It may be asked for: have another process find it out, where there is room for one."""

    def drop(self) -> None:
        """It is asked for now: whatever was begun, begin anew with both processes."""

    def begin(self) -> None:
        """It will be asked for: have another process find it out, where there is room for one."""

    def best(self) -> Candidate | None:
        """The best of it."""


class Best(Walking):
    """See the module's docstring."""

    def over(
        self,
        structures: Iterable[Structure],
        kind: Kind,
        tally: Tally,
        best: Candidate | None = None,
        offers: Offers | None = None,
    ) -> Candidate:
        """The best strategy over these structures, at least as good as ``best``; when time is over, of those looked at. Others
        that it may begin with are ``offers``, which are taken where nothing fits at once, or there is much to look for. Raises
        ``InfeasibleError``, and ``OutOfTimeError`` where it gives up without one."""
        self.best, self.problem, self.failures, self._floors = best, None, [], {}
        self.cut = self.late = False
        self._near = [] if best is None else [best]
        # Repeated layers are alike only where what they cost does not depend on where in the step they are.
        self.exposure = WHOLE if kind.searcher == "tied" else None
        try:
            found = self._over(structures, kind, tally, offers)
            tally.cut |= self.late
            return found
        except OutOfTimeError:
            self.cut = tally.cut = True
            floor = min(self._floors.values(), default=-INFINITE)
            tally.bounds.append(floor if floor < INFINITE else -INFINITE)
            if self.best is None:
                raise
            if kind.proves:
                self.choose_messages()
            return self.best

    def _over(self, structures: Iterable[Structure], kind: Kind, tally: Tally, offers: Offers | None) -> Candidate:
        self.begin()
        self.begin_even(self.best)
        if kind.relaxes:
            self.begin_roughly()
        every = list(structures)
        self._floors = dict.fromkeys((structure.key for structure in every), -INFINITE)
        single = [structure for structure in every if structure.stages == 1 or not kind.relaxes]
        piped = [structure for structure in every if structure.stages > 1 and kind.relaxes]
        begun, enough = tally.evaluations, ENOUGH_EVALUATIONS * max(1.0, self.options.time_limit_s / USUAL_S)

        def spent() -> bool:
            if self.best is not None and tally.evaluations - begun >= enough:
                self.late = True
                return True
            return self._is_over()

        # What is quick first: without stages, layouts that tell few axes apart. Where that fits in memory, it cuts all else
        # short. Pipelines then: where memory binds, they are the quickest to fit.
        least = min((structure.view.ndim for structure in single), default=0)
        early = [structure for structure in single if structure.view.ndim == least or not kind.proves]
        rest = [structure for structure in single if structure not in early]
        if offers is not None and self.best is None:
            offers.begin_early()
        opened = self._opened(early, kind, tally)
        if offers is not None and self.best is None:
            self._open_roomily(opened, kind, tally)
        if offers is not None and self.best is not None:
            offers.begin()
        elif offers is not None:
            offers.drop()
            self._keep(offers.best())
        if kind.relaxes and kind.proves:
            self.recompute_unevenly(tally)
        # Pipelines hardly cut others short where stages were needed for nothing so far.
        alone = self.best is not None and self.best.strategy.num_stages == 1
        ahead = rest if alone and kind.relaxes and kind.proves else []
        more, walks = self._opened_beside(ahead, piped, kind, tally)
        tight = [walk for walk in walks if self._promise(walk)[0]]
        self._look_into([walk for walk in walks if walk not in tight], kind, tally, spent)
        opened += more + self._opened([structure for structure in rest if structure not in ahead], kind, tally)
        bounded = [each.structure for each in opened if each.bound < self._cutoff * (1 - ROUNDING)]
        if offers is not None and (bounded or tight):
            self._keep(offers.best())
        self.shut_at_once([*bounded, *(walk.structure for walk in tight)], kind)
        left = [each for each in opened if self._is_open(each, kind, tally)]
        tight = [walk for walk in tight if self._has_room(walk.structure, kind, tally)]
        self._pending = []
        if len(self.recomputes) > 1 and kind.relaxes and kind.proves:
            # Quick to look at where a search under the memory limit is not, and cuts that short.
            open_structures = [(each.bound, each.structure) for each in left]
            binds = [walk for walk in walks if walk in tight or self._exceeds(walk.structure, walk.sizes)]
            self.recompute([*open_structures, *((walk.bound, walk.structure) for walk in binds)], kind, tally, spent)
        self._look_into(tight, kind, tally, spent)
        self._limit(left, kind, tally, spent)
        if len(self.recomputes) > 1 and kind.relaxes and self.best is None:
            open_structures = [(each.bound, each.structure) for each in left]
            self.recompute([*open_structures, *((walk.bound, walk.structure) for walk in tight)], kind, tally, spent)
        self.recompute_tightly(kind, tally, spent)
        self.refine(every, kind, tally, spent)
        if self.best is None:
            batch = self.problems.global_batch
            raise self.problem or InfeasibleError("global_batch", batch, None, "no microbatch splits evenly")
        if kind.relaxes and kind.proves:
            self.recompute_unevenly(tally)
        self.settle(kind, tally)
        if kind.proves:
            self.choose_messages()
        return self.best

    def _look_into(self, walks: Sequence[Walk], kind: Kind, tally: Tally, spent: Callable[[], bool]) -> None:
        """What promises most first; each is left open with the bounds of what was searched of it."""
        for walk, bounds in self._in_rounds(
            sorted(walks, key=self._promise),
            lambda walk: walk.bound < self._cutoff and not spent(),
            lambda walk, tally: self._pipelined_sizes(walk, kind, tally),
            tally,
            lambda walks: self.shut_at_once([walk.structure for walk in walks], kind),
        ):
            self.keep_open(walk.structure, walk.bound if bounds is None else bounds)

    def _limit(self, left: Sequence[Opened], kind: Kind, tally: Tally, spent: Callable[[], bool]) -> None:
        """Devices without a pipeline under the memory limit, the least bound first."""

        def is_open(each: Opened) -> bool:
            return each.first is not None and each.bound < self._cutoff and not spent()

        def look(each: Opened, tally: Tally) -> None:
            assert each.first is not None
            self._limited_sizes(each.structure, each.first, each.bound, kind, tally)

        for each, _ in self._in_rounds(sorted(left, key=lambda each: each.bound), is_open, look, tally):
            self.keep_open(each.structure, each.bound)

    def _is_open(self, opened: Opened, kind: Kind, tally: Tally) -> bool:
        """Whether a structure still may hold something better than the best known."""
        if opened.bound >= self._cutoff * (1 - ROUNDING):
            tally.bounds.append(opened.bound)
            return False
        return self._has_room(opened.structure, kind, tally)

    def _has_room(self, structure: Structure, kind: Kind, tally: Tally) -> bool:
        """Whether stages may have room for something better than the best known."""
        if not all(self.shut(structure, kind)):
            return True
        tally.bounds.append(self._cutoff)
        return False

    def _opened_beside(
        self, single: Sequence[Structure], piped: Sequence[Structure], kind: Kind, tally: Tally
    ) -> tuple[list[Opened], list[Walk]]:
        """What is left open of structures without a pipeline, and walks of those with one, where there is one. None needs
        another, so that two cores share them; each process keeps the problems that it built."""
        mine: dict[int, Walk] = {}

        def walked(at: int) -> Walked:
            before, self.problem, self.failures = self.problem, None, []
            own = Tally(tally.share)
            walk = self._walked(piped[at], kind, own)
            self.problem = before
            if walk is not None:
                mine[at] = walk
            return Walked(None if walk is None else walk.told(), tuple(self.failures), own)

        tasks: list[Callable[[], Look | Walked]] = [*self._looks(single, kind, tally)]
        tasks += [partial(walked, at) for at in range(len(piped))]
        found = self._spread(tasks)
        left = self._left_open(single, [each for each in found if isinstance(each, Look)], kind, tally)
        walks = []
        for at, each in enumerate(each for each in found if isinstance(each, Walked)):
            tally.add(each.tally)
            for error in each.failures:
                self.problem = nearer(self.problem, error)
            self._raise_floor(piped[at], INFINITE if each.walk is None else each.walk.bound)
            if each.walk is not None:
                if each.walk.solved[each.walk.start].exposure.reduce > EXPOSED:
                    self.problems.exposed.add(piped[at].key)
                walks.append(mine[at] if at in mine else Walk(piped[at], **vars(each.walk)))
        return left, walks

    def _limited_sizes(self, structure: Structure, first: int, bound: float, kind: Kind, tally: Tally) -> None:
        """One set of devices, under the memory limit: from a microbatch that leaves room to choose to smaller ones, then to
        larger ones, as long as they get better."""
        sizes = self.micro_batches(1)
        try:
            roomy = self._first(structure, kind, self.limit // 2)
        except InfeasibleError:
            roomy = first
        shut = self.shut(structure, kind)
        for direction in (range(roomy, len(sizes)), range(roomy - 1, first - 1, -1)):
            for at in direction:
                before = self._cutoff
                if bound >= before or self._is_over():
                    return
                if shut[at]:
                    continue
                self._try(structure, sizes[at], kind, tally)
                # Without the memory limit smaller microbatches take no less than this one.
                free_s = self._free_s(self._space(structure, sizes[at], kind.storages[0]))
                done = at >= roomy and self._is_charged(kind) and free_s >= self._cutoff * (1 - BOUNDED)
                if self.best is not None and (self._cutoff == before or done):
                    break
