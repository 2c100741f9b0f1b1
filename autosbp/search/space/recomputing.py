"""Structures once more, with blocks that are recomputed: what memory kept from being quick without. Of what is found, stages
then recompute no more than each of them has to (``space.uneven``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from autosbp.costmodel.pipelined import pipelined_step_s
from autosbp.errors import InfeasibleError
from autosbp.plan import Strategy
from autosbp.search._base import SearchResult
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.costing import CERTAIN, INFINITE
from autosbp.search.space.space_solver import Kind, Tally, nearer
from autosbp.search.space.stage_limited import StageLimited
from autosbp.search.space.uneven import Uneven
from autosbp.search.stages.layouts import Layouts, Space, Structure

SHARE = 0.5
"""Of the time left, what may have passed while this still begins something."""
FAR = 1.1
"""Times the bound with all blocks recomputed: what is no slower is left as it is."""
WORSE = 1.01
"""A microbatch that takes so many times what the larger one before it does ends the walk."""
LATE = 0.25
"""Of the time limit, what may have passed behind it while this still makes a strategy uneven."""
UNEVEN, UNEVEN_GAIN = 2, 1.1
"""Strategies whose stages are made to recompute what each has to, and how many times what the best takes they may take."""


@dataclass(frozen=True)
class Estimated:
    """About what the best strategy of a space takes, whose layouts are those of ``result``."""

    estimate_s: float
    layouts: Layouts
    result: SearchResult


class Recomputing(StageLimited):
    """Recomputation makes a step slower, and room. So only structures whose bounds, which are without the memory limit, are
    below the best strategy so far are looked at; these bounds hold with recomputation, too. ``evens``: stages are alike, but
    those with more microbatches in flight have to recompute more."""

    evens = True
    _even: dict[tuple[int, int], Candidate]
    _made_uneven: list[Candidate]
    _pending: list[tuple[float, Space]]
    _began: float

    def recompute(
        self, structures: Iterable[tuple[float, Structure]], kind: Kind, tally: Tally, spent: Callable[[], bool]
    ) -> None:
        """Keep the best strategy of these structures, given with their bounds, in which blocks are recomputed; without
        searches under the memory limit."""
        self._pending, self._began = [], time.monotonic()
        found: list[Estimated] = []
        for bound, structure in sorted(structures, key=lambda entry: entry[0]):
            if found and self._late(spent):
                break
            found += self._estimates(bound, structure, kind, tally, spent)
        for each in sorted(found, key=lambda each: each.estimate_s):
            reach = UNEVEN_GAIN if self.evens and each.layouts.space.stages > 1 else CERTAIN
            if self.best is not None and self._late(spent):
                break
            if each.estimate_s < reach * self._cutoff:
                self._keep(self._fitting(each.layouts.space, self._candidates(each.layouts, each.result)))

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
        self._even, self._made_uneven = {}, []
        self._remember(best)

    def recompute_unevenly(self) -> None:
        """Of the best strategies with as much recomputed in every stage that are new, each stage keeps what it has room for."""
        for candidate in sorted(self._even.values(), key=_step_s)[: UNEVEN if self.evens else 0]:
            late = time.monotonic() > self.deadline + LATE * self.options.time_limit_s
            known = any(candidate is other for other in self._made_uneven)
            if not late and not known and _step_s(candidate) < UNEVEN_GAIN * self._cutoff:
                self._made_uneven.append(candidate)
                self._keep(self._uneven(candidate))

    def _keep(self, candidate: Candidate | None) -> None:
        super()._keep(candidate)
        self._remember(candidate)

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
        fitting = self._fits([Candidate(found, self._costs(graph, found, boxing))])
        self._made_uneven += [] if fitting is None else [fitting]
        return fitting

    def _late(self, spent: Callable[[], bool]) -> bool:
        return spent() or time.monotonic() > self._began + SHARE * (self.deadline - self._began)

    def _estimates(
        self, bound: float, structure: Structure, kind: Kind, tally: Tally, spent: Callable[[], bool]
    ) -> Iterable[Estimated]:
        """Of a structure, from large microbatches to small ones: as long as they get better, and memory binds."""
        least, batch = INFINITE, self.problems.global_batch
        sizes, shut = self.micro_batches(structure.stages), self.shut(structure, kind)
        for at, size in enumerate(sizes):
            if bound >= self._cutoff or (self.best is not None and self._late(spent)):
                return
            waited = self._least_waits(structure.stages, batch // size)
            if shut[at] or bound * (1 + waited * size / batch) >= self._cutoff:
                continue  # or stages wait too long for each other
            try:
                found = self._quickest(structure, size, kind, tally)
            except InfeasibleError as error:
                self.problem = nearer(self.problem, error)
                continue
            if found is None:
                return
            for each in found:
                if each.estimate_s > WORSE * least:
                    return
                least = min(least, each.estimate_s)
                yield each

    def _quickest(self, structure: Structure, size: int, kind: Kind, tally: Tally) -> list[Estimated] | None:
        """With parameters stored in the quickest way in which all fits once every block is recomputed; the others are
        leaner, and slower. None where memory does not bind."""
        for storage in kind.storages:
            space = Space(structure, size, storage, True)
            if self.problems.least_memory(space) > self.limit:
                continue
            free = self._solve(self.problems.build(replace(space, again=False), None), kind, tally, INFINITE)
            if free.memory_bytes <= self.limit and not self._exceeds(structure, [size]):
                return [] if self._exceeds(structure, self.micro_batches(structure.stages)) else None
            short = self._short(space)
            if short * free.cost_s >= CERTAIN * self._cutoff:
                return []
            layouts = self.problems.build(space, None)
            result = self._solve(layouts, kind, tally, INFINITE)
            if result.memory_bytes > self.limit:
                self._pending.append((short * result.lower_bound_s, space))
                continue
            # Between no block and all of them, as many are recomputed as do not fit.
            saved = free.memory_bytes - result.memory_bytes
            part = min((free.memory_bytes - self.limit) / max(saved, 1), 1.0)
            estimate_s = free.cost_s + part * max(result.cost_s - free.cost_s, 0.0)
            return [Estimated(short * estimate_s, layouts, result)]
        return []


def _step_s(candidate: Candidate) -> float:
    return candidate.costs.step_time_s
