"""Structures with a pipeline, one microbatch after another, from one with little waiting on to smaller and larger ones.

A pipeline of p stages and m microbatches takes no less than m / p times a microbatch on one stage's devices with 1 / p of
what happens once a step: the average of what each stage does itself. Problems count waiting, too (``LayoutProblems.weights``),
so that their optimum times the part of that which is work is a bound. Whether a space is looked into is asked of what its
problem costs, with as little waiting as schedules may leave, by about.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autosbp.errors import InfeasibleError
from autosbp.handed import handed_over
from autosbp.search import SearchResult
from autosbp.search.space.costing import CERTAIN, INFINITE
from autosbp.search.space.opening import RISES, Opening
from autosbp.search.space.space_solver import Kind
from autosbp.search.space.tally import Tally, nearer
from autosbp.search.stages.layouts import Exposure, Layouts, Space, Structure

WAITING = 0.1
"""The part of a step that stages may wait for others at the microbatch that is tried first."""
STEPS = 2
"""Multipliers that are tried of one space besides those that it begins with."""
WORSE = 1.01
"""A microbatch that takes so many times what a neighbour does ends the walk in its direction."""
HOPE = 0.85
"""Where no bound is wanted, no microbatch is expected to take less than so much of what the first one tried does."""


@handed_over
@dataclass(frozen=True)
class Solved:
    """A space without the memory limit; ``layouts`` are None where another process made them, with this cutoff and these
    multipliers."""

    layouts: Layouts | None
    result: SearchResult
    bound_s: float
    estimate_s: float
    cutoff_s: float
    exposure: Exposure = Exposure()


@dataclass
class Walk:
    """The microbatches of a pipelined structure. ``bound`` is of all of them, ``solved`` by index."""

    structure: Structure
    sizes: list[int]
    start: int = 0
    bound: float = 0.0
    solved: dict[int, Solved] = field(default_factory=dict)

    def told(self) -> Told:
        """What another process needs of it."""
        plain = {
            at: replace(each, layouts=None, result=replace(each.result, certificate=None))
            for at, each in self.solved.items()
        }
        return Told(self.sizes, self.start, self.bound, plain)


@handed_over
@dataclass(frozen=True)
class Told:
    """A walk without what cannot be handed from one process to another."""

    sizes: list[int]
    start: int
    bound: float
    solved: dict[int, Solved]


@handed_over
@dataclass(frozen=True)
class Walked:
    """A walk, where there is one, with the failures on its way and what its searches add up to."""

    walk: Told | None
    failures: tuple[InfeasibleError, ...]
    tally: Tally


class Walking(Opening):
    """See the module's docstring."""

    def _fail(self, error: InfeasibleError) -> None:
        self.problem = nearer(self.problem, error)
        self.failures.append(error)

    def _walked(self, structure: Structure, kind: Kind, tally: Tally) -> Walk | None:
        self.require_time()
        try:
            return self._walk(structure, kind, tally)
        except InfeasibleError as error:
            self._fail(error)
            return None

    def _promise(self, walk: Walk) -> tuple[bool, float]:
        """What fits in memory goes first, then what seems quickest."""
        found = walk.solved[walk.start]
        return found.result.memory_bytes > self.limit, found.estimate_s

    def _walk(self, structure: Structure, kind: Kind, tally: Tally) -> Walk | None:
        """Microbatches of a pipeline, solved at one with little waiting, or the next larger one that splits evenly; and,
        where bounds are wanted, its blocks at the largest, which bound all; None where these shut it. Raises
        ``InfeasibleError`` where there is none."""
        sizes, whole, waits = self.micro_batches(structure.stages), self.problems.global_batch, structure.stages - 1
        walk = Walk(structure, sizes)
        if not kind.proves and self._cutoff < INFINITE and self._is_out_of_reach(structure, kind):
            return None
        walk.bound = max(0.0, self._largest(structure, kind, tally)) if kind.proves else 0.0
        if walk.bound >= self._cutoff and self._is_charged(kind):
            tally.bounds.append(walk.bound)
            return None
        start = next((at for at in range(len(sizes)) if waits * sizes[at] <= WAITING * whole), len(sizes) - 1)
        for at in range(start, -1, -1):
            try:
                self._require_room(walk, at, kind)
                self._solved(walk, at, kind, tally)
            except InfeasibleError as error:
                self._fail(error)
                continue
            walk.start = at
            if not kind.proves:
                walk.bound = HOPE * walk.solved[at].estimate_s
            return walk
        raise self.problem or InfeasibleError("micro_batch", sizes[-1], None, "no microbatch splits evenly")

    def _require_room(self, walk: Walk, at: int, kind: Kind) -> None:
        """Refuses what fits at no microbatch: where parameters are stored in one way, least memories tell without a search.
        Raises ``InfeasibleError``, for uneven splits, too."""
        if kind.proves or len(kind.storages) > 1:
            return
        space = self._space(walk.structure, walk.sizes[at], kind.storages[0])
        again = self.recomputes[-1]
        # Of the problem that is built anyway first.
        if space.again != again and self.problems.least_memory(space) <= self.limit:
            return
        least = self.problems.least_memory(replace(space, again=again))
        for size in reversed(walk.sizes[at + 1 :] if least > self.limit else ()):
            try:
                least = self.problems.least_memory(Space(walk.structure, size, kind.storages[0], again))
                break  # less than at all larger ones
            except InfeasibleError:
                continue
        if least > self.limit:
            raise InfeasibleError(
                "memory_limit_bytes", self.limit, least, "even the least memory of every op does not fit"
            )

    def _solved(self, walk: Walk, at: int, kind: Kind, tally: Tally) -> Solved:
        """A space without the memory limit; raises ``InfeasibleError``."""
        if at not in walk.solved:
            space = self._space(walk.structure, walk.sizes[at], kind.storages[0])
            cutoff_s = self._cutoff_of(space, kind) if kind.proves else INFINITE
            walk.solved[at] = self._solved_at(space, cutoff_s, kind, tally)
            if kind.proves and self._is_charged(kind):
                walk.solved[at] = self._raised_solution(space, walk.solved[at], kind, tally)
        return walk.solved[at]

    def _solved_at(self, space: Space, cutoff_s: float, kind: Kind, tally: Tally) -> Solved:
        layouts = self.problems.build(space, None, cutoff_s=cutoff_s)
        result = self._solve(layouts, kind, tally, INFINITE)
        bound, blocks_s = self._bound(layouts, result, kind, tally)
        bound = min(bound, self._cutoff)  # of what was left out
        return Solved(layouts, result, bound, max(result.cost_s, blocks_s), cutoff_s, space.exposure)

    def _raised_solution(self, space: Space, solved: Solved, kind: Kind, tally: Tally) -> Solved:
        """The same with other multipliers, where these raise the bound."""
        planes = self._planes(space.structure)
        for _ in range(STEPS):
            if solved.bound_s >= self._cutoff or solved.layouts is None or self._out_of_time():
                break
            strategy = self.problems.strategy(solved.layouts, solved.result.assignment)
            planes.known.append(self._plane(solved.layouts.space, strategy, solved.result.cost_s))
            exposure, height = planes.highest()
            if height <= solved.result.lower_bound_s * (1 + RISES):
                break
            raised = self._solved_at(replace(space, exposure=exposure), solved.cutoff_s, kind, tally)
            if raised.bound_s <= solved.bound_s:
                break
            solved = raised
        return solved

    def _bound(self, layouts: Layouts, result: SearchResult, kind: Kind, tally: Tally) -> tuple[float, float]:
        """Of a space, from its problem without the memory limit; and what whole blocks a stage make of its cost."""
        blocks_s = self._blocks_s(layouts, kind, tally) if layouts.space.stages > 1 else -INFINITE
        return max(result.lower_bound_s, blocks_s) * self._working(layouts.space), blocks_s

    def _pipelined_sizes(self, walk: Walk, kind: Kind, tally: Tally) -> list[float]:
        """Smaller microbatches first, then larger ones, as long as they get better; a bound for each."""
        bounds = [walk.bound] * len(walk.sizes)
        shut = self.shut(walk.structure, kind)
        whole, least = self.problems.global_batch, INFINITE
        for at in range(walk.start, len(walk.sizes)):
            if bounds[at] >= self._cutoff or self._is_over():
                break
            if shut[at]:
                continue
            # Smaller microbatches have no less to do than this one.
            bound, estimate = self._pipelined(walk, at, kind, tally)
            bounds[at:] = [max(bound, walk.bound)] * (len(bounds) - at)
            if estimate > WORSE * least:
                break
            least = min(least, estimate)
        least = INFINITE
        for at in range(walk.start - 1, -1, -1):
            # What larger microbatches save is in the walk's bound; about how long stages wait is known.
            waited = self.problems.waits(walk.structure.stages, whole // walk.sizes[at])
            if walk.bound * (1 + waited * walk.sizes[at] / whole) >= self._cutoff or self._is_over():
                break
            if shut[at]:
                continue
            bounds[at], estimate = self._pipelined(walk, at, kind, tally)
            if estimate > WORSE * least:
                break
            least = min(least, estimate)
        return [max(bound, walk.bound) for bound in bounds]

    def _pipelined(self, walk: Walk, at: int, kind: Kind, tally: Tally) -> tuple[float, float]:
        """A bound of a space, and about what the best strategy in it takes."""
        try:
            solved = self._solved(walk, at, kind, tally)
        except InfeasibleError as error:
            self.problem = nearer(self.problem, error)
            return INFINITE, INFINITE
        result = solved.result
        bound, estimate = solved.bound_s, solved.estimate_s
        space = self._space(walk.structure, walk.sizes[at], kind.storages[0])
        if bound >= self._cutoff or result.cost_s >= CERTAIN * self._cutoff:
            return bound, estimate
        layouts = solved.layouts or self.problems.build(
            replace(space, exposure=solved.exposure), None, cutoff_s=solved.cutoff_s
        )
        limit = self.limit
        if result.memory_bytes <= self.limit:
            candidates = list(self._candidates(layouts, result))
            fitting = self._fits(candidates)
            self._keep(fitting)
            if not candidates or not self._promises(candidates, fitting):
                return bound, estimate
            self._exceed(space, candidates)
            leaner = self._leaner(self._built(space, kind, limit), candidates[0], kind, tally)
            self._keep(leaner)
            if leaner is not None or fitting is not None:
                return bound, estimate
            limit = self._tighter(limit, result, candidates)
        self._try(walk.structure, space.micro_batch, kind, tally, limit)
        return bound, estimate
