"""Structures once more, with blocks that are recomputed: what memory kept from being quick without. Of what is found, stages
then recompute no more than each of them has to (``space.uneven``)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from autosbp.costmodel.pipelined import pipelined_step_s
from autosbp.errors import InfeasibleError
from autosbp.handed import handed_over
from autosbp.plan import Strategy
from autosbp.search._base import SearchResult
from autosbp.search.space.apart import AT_ONCE
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.costing import CERTAIN, INFINITE, UNEVEN_GAIN
from autosbp.search.space.space_solver import Kind
from autosbp.search.space.stage_limited import StageLimited
from autosbp.search.space.tally import Tally, nearer
from autosbp.search.space.uneven import Uneven
from autosbp.search.stages.layouts import Layouts, Space, SpaceKey, Structure

SHARE = 0.5
"""Of the time left, what may have passed while this still begins something."""
FAR = 1.1
"""Times the bound with all blocks recomputed: what is no slower is left as it is."""
WORSE = 1.01
"""A microbatch that takes so many times what the larger one before it does ends the walk."""
LATE = 0.25
"""Of the time limit, what may have passed behind it while this still makes a strategy uneven."""
SAME = 1e-9
"""Relative: seconds that differ by less are of the same layouts."""
COSTED_AT_ONCE = 4
"""Spaces whose strategies are costed without what the others find: memory, which takes most of that, differs much in length."""
UNEVEN = 2
"""Strategies whose stages are made to recompute what each has to."""


@handed_over
@dataclass(frozen=True)
class Estimated:
    """About what the best strategy of a space takes, whose layouts are those of ``result``."""

    estimate_s: float
    micro_batch: int
    storage: str
    result: SearchResult


@handed_over
@dataclass(frozen=True)
class Estimates:
    """Of a structure: spaces that have room once every block is recomputed, and those that have none even then, with the least
    that their problems cost."""

    found: tuple[Estimated, ...]
    pending: tuple[tuple[float, int, str], ...]


Entry = tuple[Estimated, Space]
Made = dict[SpaceKey, Layouts]


class Recomputing(StageLimited):
    """Recomputation makes a step slower, and room. So only structures whose bounds, which are without the memory limit, are
    below the best strategy so far are looked at; these bounds hold with recomputation, too. ``evens``: stages are alike, but
    those with more microbatches in flight have to recompute more."""

    evens = True
    _remembers = True
    """What is made uneven hides no strategy that it was not made of, and that may be better once it is uneven, too."""
    _even: dict[tuple[int, int], Candidate]
    _made_uneven: list[Strategy]
    _pending: list[tuple[float, Space]]
    _began: float

    def recompute(
        self, structures: Iterable[tuple[float, Structure]], kind: Kind, tally: Tally, spent: Callable[[], bool]
    ) -> None:
        """Keep the best strategy of these structures, given with their bounds, in which blocks are recomputed; without
        searches under the memory limit."""
        self._pending, self._began = [], time.monotonic()
        made: Made = {}
        ranked, found = deque(sorted(structures, key=lambda entry: entry[0])), list[Entry]()
        is_known = False
        while self.best is None and ranked:
            # Few, and of these no more than until one fits: that one made as good as can be cuts the others short.
            some = [ranked.popleft() for _ in range(min(AT_ONCE, len(ranked)))]
            more = self._estimated(some, kind, tally, spent, made, is_known=is_known)
            found, is_known = [*found, *more], is_known or bool(more)
            found = self._quickest_kept(found, kind, tally, spent, made, is_first=True)
            if kind.proves:
                self.recompute_unevenly(tally)
        found += self._estimated(ranked, kind, tally, spent, made, is_known=is_known)
        self._quickest_kept(found, kind, tally, spent, made)

    def _quickest_kept(
        self, found: Sequence[Entry], kind: Kind, tally: Tally, spent: Callable[[], bool], made: Made,
        *, is_first: bool = False,
    ) -> list[Entry]:  # fmt: skip
        """Cost these, the quickest by estimate first, and keep the best; or the first that fits: then the others are given
        back, not looked at."""
        left: list[Entry] = []

        def is_open(entry: Entry) -> bool:
            if is_first and self.best is not None:
                left.append(entry)
                return False
            late = self.best is not None and self._late(spent)
            return not late and entry[0].estimate_s < self._reach(kind, entry[1]) * self._cutoff

        def look(entry: Entry, _: Tally) -> None:
            each, space = entry
            layouts = made.get(space.key) or self.problems.build(space, None)
            self._keep(self._fitting(space, self._candidates(layouts, each.result)))

        most = AT_ONCE if is_first else COSTED_AT_ONCE
        for _ in self._in_rounds(_unlike(found), is_open, look, tally, most=most):
            pass
        return left

    def recompute_tightly(self, kind: Kind, tally: Tally, spent: Callable[[], bool]) -> None:
        """Where even all blocks were not enough, or what was found is far above the bounds: under the memory limit."""
        for bound, space in sorted(self._pending, key=lambda entry: entry[0]):
            if self.best is not None and (spent() or FAR * bound >= self._cutoff):
                continue
            try:
                self._keep(self._limited(space, kind, tally, self._cutoff))
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)

    def begin_even(self, best: Candidate | None) -> None:
        """Forget strategies of other structures."""
        self._even, self._made_uneven, self._remembers = {}, [], True
        self._remember(best)

    def recompute_unevenly(self, tally: Tally) -> None:
        """Of the best strategies with as much recomputed in every stage that are new, each stage keeps what it has room for."""

        def is_open(candidate: Candidate) -> bool:
            late = time.monotonic() > self.deadline + LATE * self.options.time_limit_s
            known = any(candidate.strategy == other for other in self._made_uneven)
            return not late and not known and _step_s(candidate) < UNEVEN_GAIN * self._cutoff

        def look(candidate: Candidate, _: Tally) -> Candidate:
            found = self._uneven(candidate)
            self._keep(found)
            return candidate if found is None else found

        evens = sorted(self._even.values(), key=_step_s)[: UNEVEN if self.evens else 0]
        self._remembers = False
        for candidate, found in self._in_rounds(evens, is_open, look, tally):
            self._made_uneven += [] if found is None else [candidate.strategy, found.strategy]
        self._remembers = True

    def _keep(self, candidate: Candidate | None) -> None:
        super()._keep(candidate)
        if self._remembers:
            self._remember(candidate)

    def _is_worth_keeping(self, candidate: Candidate) -> bool:
        return super()._is_worth_keeping(candidate) or any(candidate is each for each in self._even.values())

    def _remember(self, candidate: Candidate | None) -> None:
        if candidate is not None and candidate.strategy.pipeline and candidate.strategy.recompute:
            key = candidate.strategy.num_stages, candidate.strategy.micro_batch
            self._even[key] = min(self._even.get(key, candidate), candidate, key=_step_s)

    def _uneven(self, candidate: Candidate) -> Candidate | None:
        """None where that is nothing new, or fits no longer."""
        if self.options.recompute:
            return None
        strategy, problems = candidate.strategy, self.problems
        graph, boxing = problems.bound(strategy.micro_batch), problems.boxing(strategy.mesh)
        known = problems.known_chunks

        def step_s(each: Strategy) -> float:
            return pipelined_step_s(graph, each, boxing, problems.compute, known)

        found = Uneven(problems, self.links, self.limit, self._held, self.require_time).of(strategy, step_s)
        if found is strategy:
            return None
        return self._fits([Candidate(found, self._costs(graph, found, boxing))])

    def _reach(self, kind: Kind, space: Space) -> float:
        """How many times what the best strategy takes one may take by estimate that is costed."""
        return UNEVEN_GAIN if self.evens and kind.proves and space.stages > 1 else CERTAIN

    def _late(self, spent: Callable[[], bool]) -> bool:
        return spent() or time.monotonic() > self._began + SHARE * (self.deadline - self._began)

    def _estimated(
        self,
        structures: Collection[tuple[float, Structure]],
        kind: Kind,
        tally: Tally,
        spent: Callable[[], bool],
        made: Made,
        *,
        is_known: bool,
    ) -> list[Entry]:
        """Spaces of these structures that have room once every block is recomputed; layouts are ``made`` in this process alone.
        Time may end it once a space is known, of these structures or of earlier ones."""
        found: list[Entry] = []

        def is_open(_: tuple[float, Structure]) -> bool:
            return not ((found or is_known) and self._late(spent))

        def look(entry: tuple[float, Structure], tally: Tally) -> Estimates:
            return self._estimates(*entry, kind, tally, spent, made)

        def prepare(entries: Sequence[tuple[float, Structure]]) -> None:
            self.shut_at_once([structure for _, structure in entries], kind)

        at_once = AT_ONCE if self.best is None else max(len(structures), 1)
        for (_, structure), each in self._in_rounds(structures, is_open, look, tally, prepare, at_once):
            if each is not None:
                found += [(one, Space(structure, one.micro_batch, one.storage, True)) for one in each.found]
                self._pending += [
                    (bound, Space(structure, size, storage, True)) for bound, size, storage in each.pending
                ]
        return found

    def _estimates(
        self, bound: float, structure: Structure, kind: Kind, tally: Tally, spent: Callable[[], bool], made: Made
    ) -> Estimates:
        """Of a structure, from large microbatches to small ones: as long as they get better, and memory binds. Layouts are
        ``made``."""
        found: list[Estimated] = []
        pending: list[tuple[float, int, str]] = []
        least, batch = INFINITE, self.problems.global_batch
        sizes, shut = self.micro_batches(structure.stages), self.shut(structure, kind)
        for at, size in enumerate(sizes):
            if bound >= self._cutoff or (self.best is not None and self._late(spent)):
                break
            waited = self.problems.waits(structure.stages, batch // size)
            if shut[at] or bound * (1 + waited * size / batch) >= self._cutoff:
                continue  # or stages wait too long for each other
            try:
                each = self._quickest(structure, size, kind, tally, pending, made)
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)
                continue
            if each is None or (each and each[0].estimate_s > WORSE * least):
                break
            found += each
            least = min([least, *(one.estimate_s for one in each)])
        return Estimates(tuple(found), tuple(pending))

    def _quickest(
        self,
        structure: Structure,
        size: int,
        kind: Kind,
        tally: Tally,
        pending: list[tuple[float, int, str]],
        made: Made,
    ) -> list[Estimated] | None:
        """With parameters stored in the quickest way in which all fits once every block is recomputed; the others are
        leaner, and slower. None where memory does not bind."""
        for storage in kind.storages:
            space = Space(structure, size, storage, True)
            plain = replace(space, again=False)
            # Without recomputation first: where all fits, problems with it are not built.
            if all(self.problems.least_memory(each) > self.limit for each in (plain, space)):
                continue
            free = self._free.get(plain.key) or self._solve(self.problems.build(plain, None), kind, tally, INFINITE)
            if free.memory_bytes <= self.limit and not self._exceeds(structure, [size]):
                return [] if self._exceeds(structure, self.micro_batches(structure.stages)) else None
            excess = free.memory_bytes - self.limit
            if free.cost_s >= CERTAIN * self._cutoff:
                return []
            # With all recomputed an op takes no less than its least, and saves no more than all but that.
            part = max(excess, 0) / max(free.memory_bytes - self.problems.least_memory(space), 1)
            slower_s = max(0.0, self.problems.least_s(space) - free.cost_s)
            if free.cost_s + min(part, 1.0) * slower_s >= self._reach(kind, space) * self._cutoff:
                return []
            layouts = self.problems.build(space, None)
            result = self._solve(layouts, kind, tally, INFINITE)
            if result.memory_bytes > self.limit:
                pending.append((result.lower_bound_s, size, storage))
                continue
            # Between no block and all of them, as many are recomputed as do not fit.
            saved = free.memory_bytes - result.memory_bytes
            part = min(max(excess, 0) / max(saved, 1), 1.0)
            estimate_s = free.cost_s + part * max(result.cost_s - free.cost_s, 0.0)
            made[space.key] = layouts
            return [Estimated(estimate_s, size, storage, replace(result, certificate=None))]
        return []


def _unlike(found: Sequence[Entry]) -> list[Entry]:
    """The quickest first. Views that tell more axes apart than their optimum does have it once more, at the same seconds."""
    ranked = sorted(found, key=lambda entry: entry[0].estimate_s)
    unlike: list[Entry] = []
    for each, space in ranked:
        kind, least_s = (space.stages, space.micro_batch, space.storage), each.estimate_s * (1 - SAME)
        if not any(
            (other.stages, other.micro_batch, other.storage) == kind and one.estimate_s >= least_s
            for one, other in unlike
        ):
            unlike.append((each, space))
    return unlike


def _step_s(candidate: Candidate) -> float:
    return candidate.costs.step_time_s
