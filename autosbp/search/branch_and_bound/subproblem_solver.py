"""Builds and solves subproblems, with and without the memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from autosbp.errors import InfeasibleError
from autosbp.plan.plan import Strategy
from autosbp.search import SEARCHERS, SearchOptions, SearchProblem, SearchResult
from autosbp.search.branch_and_bound.candidate import INFINITE, Candidate, CostedStrategy
from autosbp.search.branch_and_bound.context import SearchContext, UnlimitedStep
from autosbp.search.branch_and_bound.memory_relaxation import fastest_that_fits
from autosbp.search.branch_and_bound.parallel_tasks import ParallelTasks
from autosbp.search.branch_and_bound.search_stats import more_useful_error
from autosbp.search.branch_and_bound.strategy_coster import ESTIMATE_CUTOFF, StrategyCoster
from autosbp.search.problem.cost_weights import CHEAPEST, GATHER_PER_USE
from autosbp.search.solvers.tied_layers import tied
from autosbp.search.stages.layout_problems import OverlapWeights, PipelineStructure, Subproblem, SubproblemKey

MAX_EVALUATIONS = 100_000_000
"""Limit of costed values of one exact search.

A count, unlike a clock, is the same on every machine, so plans are too.
"""
TIGHTENINGS = 4
"""Maximum searches of a subproblem, each under a lower limit, until the peak memory of a result fits."""
BASELINE_GAP = 0.02
"""Gap to which baselines are searched if memory binds."""
ROUGH_GAP, ROUGH_WORK = 0.05, 0.05
"""First pass if memory binds: the gap, and the fraction of the usual work spent on closing it.

All subproblems are searched roughly before any is searched to the requested gap.
"""
MIN_SHARDING_SAVING = 1e-3
"""Least saving of another parameter sharding that is worth its own search, relative to the memory limit."""
CLOSED_GAP = 1e-9
"""Relative distance between bound and incumbent, below which nothing is left to search."""
NUM_REFINED, REFINED_WORK = 2, 0.1
"""Second pass: the number of subproblems searched, and the fraction of the usual work for closing the gap."""
_SEARCHERS = {**SEARCHERS, "tied": tied}


@dataclass(frozen=True)
class UnlimitedStrategy:
    """The fastest layouts of a subproblem without the memory limit: the strategy and its problem's cost."""

    cost_s: float
    strategy: Strategy


class SubproblemSolver:
    """Solves subproblems and turns the results into strategies.

    ``exposure``: overlap multipliers for structures without a pipeline; None for the defaults.
    """

    def __init__(self, context: SearchContext, coster: StrategyCoster) -> None:
        self.context, self.coster, self.problems = context, coster, context.problems
        self.clock, self.incumbent, self.learnt = context.clock, context.incumbent, context.findings
        self.processes = ParallelTasks(context)
        self.overlap_weights: OverlapWeights | None = None

    def subproblem_key(
        self, structure: PipelineStructure, micro_batch: int, storage: str | None = None
    ) -> SubproblemKey:
        """The subproblem of a structure, microbatch size and parameter sharding, with the least checkpointing allowed.

        With ZeRO-3, all communication counts in full. Overlapped communication happens for every use there and is what
        mostly distinguishes layouts, and the problems prove no bound (``is_charged``).
        """
        storage = storage or self.context.kind.parameter_shardings[0]
        own = (self.overlap_weights if structure.stages == 1 else None) or OverlapWeights()
        exposure = OverlapWeights(whole=True) if storage == GATHER_PER_USE else own
        return SubproblemKey(structure, micro_batch, storage, self.context.checkpointing_choices[0], exposure)

    def first(self, structure: PipelineStructure, limit: int | None = None) -> int:
        """Index of the largest microbatch size that could fit, by bisection.

        A smaller microbatch takes less memory and has fewer even splits.

        Raises:
            InfeasibleError: none could.
        """
        sizes, limit = self.context.micro_batches(structure.stages), limit or self.context.limit
        storage = (
            CHEAPEST if len(self.context.kind.parameter_shardings) > 1 else self.context.kind.parameter_shardings[0]
        )
        with suppress(InfeasibleError):  # with the first parameter sharding, whose problem is built anyway
            if self.problems.least_memory(self.subproblem_key(structure, sizes[0])) <= limit:
                return 0
        low, high, first = 0, len(sizes) - 1, -1
        problem: InfeasibleError | None = None
        while low <= high:
            middle = (low + high) // 2
            try:
                least = self.problems.least_memory(self.subproblem_key(structure, sizes[middle], storage))
            except InfeasibleError as error:
                problem, high = more_useful_error(problem, error), middle - 1
                continue
            if least > limit:
                detail = f"even the minimum memory of every op does not fit with a microbatch of {sizes[middle]}"
                problem = more_useful_error(problem, InfeasibleError("memory_limit_bytes", limit, least, detail))
                low = middle + 1
            else:
                first, high = middle, middle - 1
        if first < 0:
            batch = self.problems.global_batch
            raise problem or InfeasibleError("global_batch", batch, None, "no microbatch splits evenly")
        return first

    def search_parameter_shardings(self, structure: PipelineStructure, size: int, limit: int | None = None) -> None:
        """Search each parameter sharding that differs from the previous ones.

        ``limit``: initial memory limit of the first one, in bytes.
        """
        seen: list[tuple[Subproblem, bool]] = []  # with whether a strategy that fits was found
        for storage in self.context.kind.parameter_shardings:
            try:
                layouts = self.build_pruned(self.subproblem_key(structure, size, storage), limit or self.context.limit)
                if not any(self._is_no_better(layouts, *other) for other in seen):
                    seen.append((layouts, False))
                    self.context.keep(
                        self.solve_within_limit(layouts.key, self.incumbent.cutoff_s, limit, leans=len(seen) == 1)
                    )
                    seen[-1] = layouts, True
            except InfeasibleError as error:
                self.context.stats.fail(error)

    def _is_no_better(self, layouts: Subproblem, known: Subproblem, fits: bool) -> bool:
        """Whether another parameter sharding cannot improve on a known one.

        It takes no fewer seconds, and the bytes that it saves have no value: they are few and a known strategy fits, or
        even at the Lagrange multiplier of the known bound they do not beat the incumbent.
        """
        saved = _saved_bytes(layouts.problem, known.problem)
        if saved is None or saved <= (MIN_SHARDING_SAVING * self.context.limit if fits else 0.0):
            return saved is not None
        bound_s, price = self.learnt.relaxations.get(known.key.key, (-INFINITE, 0.0))
        cutoff_s = self.incumbent.cutoff_s * self.coster.checkpointing_slowdown(known.key)
        return bound_s - price * saved >= cutoff_s * (1 - CLOSED_GAP)

    def unlimited_bound_s(self, space: SubproblemKey) -> float:
        """A bound on the subproblem and on smaller microbatches; -inf unless known without the memory limit."""
        bound_s, price = self.learnt.relaxations.get(space.key, (-INFINITE, 0.0))
        # Pruned layouts cost at least the cutoff.
        return min(bound_s * self.busy_fraction(space), self.incumbent.cutoff_s) if price == 0.0 else -INFINITE

    def within_limit(self, space: SubproblemKey) -> Candidate:
        """The best strategy of a subproblem under the limit, with checkpointing only if none fits without."""
        for again in self.context.checkpointing_choices[:-1]:
            with suppress(InfeasibleError):
                return self.solve_within_limit(replace(space, again=again), INFINITE)
        return self.solve_within_limit(replace(space, again=self.context.checkpointing_choices[-1]), INFINITE)

    def blocks_bound_s(self, layouts: Subproblem) -> float:
        """Cost bound by the blocks of the fullest stage; -inf if a stage may be faster while others wait."""
        if self.problems.stages_share_hardware and layouts.key.stages > 1:
            return -INFINITE

        def least(problem: SearchProblem) -> float:
            return self.search(problem).lower_bound_s

        return self.problems.whole_blocks(layouts, least)

    def busy_fraction(self, space: SubproblemKey) -> float:
        """Fraction of a step outside of the pipeline bubble."""
        count = self.problems.num_micro(space)
        return count / (count + self.problems.waits(space.stages, count))

    def relax(self, space: SubproblemKey) -> tuple[float, UnlimitedStep | None, UnlimitedStrategy | None]:
        """Relax a subproblem without a pipeline.

        Returns:
            A bound, the optimum's cost and memory if it beats the incumbent, and its strategy if it may also fit.
        """
        layouts = self.build_pruned(space)
        result = self.search(layouts.problem)
        bound_s = min(result.lower_bound_s, self.incumbent.cutoff_s)  # pruned layouts cost at least the cutoff
        free = UnlimitedStep(result.cost_s, result.memory_bytes) if result.cost_s < self.incumbent.cutoff_s else None
        if result.memory_bytes > self.context.limit or (free is None and not self.context.kind.has_pinned_storage):
            return bound_s, free, None
        return bound_s, free, UnlimitedStrategy(result.cost_s, self.problems.strategy(layouts, result.assignment))

    def build_pruned(self, space: SubproblemKey, limit: int | None = None) -> Subproblem:
        """The problem of a subproblem, without layouts that no strategy better than the incumbent has."""
        return self.problems.build(space, limit, cutoff_s=self.problem_cutoff_s(space))

    def problem_cutoff_s(self, space: SubproblemKey) -> float:
        """Upper limit on the problem cost of strategies better than the incumbent."""
        if space.storage == GATHER_PER_USE or not self.problems_are_lower_bounds():
            return INFINITE
        return self.incumbent.cutoff_s * self.coster.checkpointing_slowdown(space) / self.busy_fraction(space)

    def problems_are_lower_bounds(self) -> bool:
        """Whether problems are lower bounds on the costs of strategies.

        With ZeRO-3, or with parameters pinned to a layout other than their ops', strategies share communication that
        problems do not model.
        """
        return (
            self.context.kind.searcher_proves_bounds
            and not self.context.kind.has_pinned_storage
            and self.context.kind.parameter_shardings[0] != GATHER_PER_USE
        )

    def solve_within_limit(
        self, space: SubproblemKey, cutoff_s: float, first: int | None = None, *, leans: bool = False
    ) -> Candidate:
        """The best strategy found under the memory limit.

        The search adds memory up by op; the peak memory is known only for a finished strategy. If it exceeds the limit,
        the search starts again with a limit that is lower by twice the excess, so that few repetitions are needed. If a
        slower schedule fits, the search also looks for smaller layouts with the fastest schedule.

        Args:
            space: the subproblem.
            cutoff_s: step time to beat, in seconds.
            first: initial memory limit in bytes; the device's by default.
            leans: for a pipeline, try ``leaner`` after the first search.

        Raises:
            InfeasibleError: no strategy found.
        """
        limit, needed = first or self.context.limit, 0
        best: Candidate | None = None
        cutoff_s *= self.coster.checkpointing_slowdown(space)
        for _ in range(TIGHTENINGS):
            try:
                layouts = self.build_pruned(space, limit)
                result = self.search(layouts.problem, cutoff_s)
            except InfeasibleError:
                if limit == self.context.limit and best is None:
                    raise
                break
            if limit == (first or self.context.limit) and result.certificate is not None:
                proof = result.certificate
                self.learnt.relaxations[space.key] = proof.relaxed_bound_s, proof.price_s_per_byte
            if self.learnt.rough is not None and result.gap > self.context.options.gap_tolerance:
                self.learnt.rough[space.key] = min(result.lower_bound_s, self.learnt.rough.get(space.key, INFINITE))
            if result.cost_s >= ESTIMATE_CUTOFF * cutoff_s:
                break
            candidates = list(self.coster.candidates(layouts, result))
            best = self.coster.fastest_fitting([*candidates, best])
            if best is not None:
                cutoff_s = min(cutoff_s, best.costs.step_time_s * self.coster.checkpointing_slowdown(space))
            if not candidates or not self.coster.is_oversized_but_faster(candidates, best):
                break
            leaner = self.leaner(layouts, candidates[0]) if leans else None
            leans = False
            if leaner is not None:
                return self.coster.fastest_fitting([leaner, best]) or leaner
            needed = min(candidate.memory_bytes for candidate in candidates)
            if self.clock.out_of_time() and cutoff_s < INFINITE:
                break
            limit = self.coster.tightened_limit(limit, result, candidates)
        if best is not None:
            return best
        detail = f"the strategies found with a microbatch of {space.micro_batch} exceed it at peak"
        raise InfeasibleError("memory_limit_bytes", self.context.limit, needed, detail)

    def start_rough_search(self) -> None:
        """Search to ``ROUGH_GAP`` under memory limits until ``refine`` is called."""
        self.learnt.rough = {}

    def refine(self, structures: Sequence[PipelineStructure]) -> None:
        """Search the most promising subproblems of these structures again, to the requested gap."""
        rough, self.learnt.rough = self.learnt.rough or {}, None
        of = {structure.key: structure for structure in structures}
        spaces = [(bound, SubproblemKey(of[key[0]], *key[1:])) for key, bound in rough.items()]

        def is_open(entry: tuple[float, SubproblemKey]) -> bool:
            return not self.context.is_budget_exhausted() and entry[
                0
            ] < self.incumbent.cutoff_s * self.coster.checkpointing_slowdown(entry[1])

        def look(entry: tuple[float, SubproblemKey]) -> None:
            try:
                self.context.keep(self.solve_within_limit(entry[1], self.incumbent.cutoff_s))
            except InfeasibleError as error:
                self.context.stats.fail(error)

        nearest = sorted(spaces, key=lambda entry: entry[0])[:NUM_REFINED]
        for _ in self.processes.in_rounds(nearest, is_open, look):
            pass

    def leaner(self, layouts: Subproblem, first: CostedStrategy) -> Candidate | None:
        """A pipeline with the same schedule as ``first``, which does not fit, and smaller layouts.

        None for baselines, and with checkpointing. See ``branch_and_bound.memory_relaxation``.
        """
        pipeline, found = first.strategy.pipeline, list[CostedStrategy | None]()
        if pipeline is None or layouts.key.again or not self.context.kind.wants_bounds:
            return None

        def is_too_large(result: SearchResult) -> bool:
            if self.clock.out_of_time():
                return False
            tried = next(iter(self.coster.candidates(layouts, result, (pipeline.schedule.name,))), None)
            found.append(tried)
            # A strategy that is too slow counts as not too large: all smaller ones are slower still.
            return isinstance(tried, Candidate) and not self.coster.has_room(tried)

        fastest_that_fits(layouts.problem, lambda problem: self.search(problem), is_too_large)
        return self.coster.fastest_fitting(found)

    def search(self, problem: SearchProblem, cutoff_s: float = INFINITE, *, roughly: bool = False) -> SearchResult:
        """Solve a problem with the mode's searcher; ``roughly``: a bound and a nearby assignment are enough."""
        self.clock.require_time()
        kind, tally = self.context.kind, self.context.stats
        rough = self.learnt.rough is not None and problem.memory_limit_bytes is not None
        least_gap = BASELINE_GAP if tally.share < 1.0 else 0.0
        options = SearchOptions(
            seed=self.context.options.seed,
            time_limit_s=self.clock.remaining_s(),
            gap_tolerance=max(self.context.options.gap_tolerance, least_gap, ROUGH_GAP if rough else 0.0),
            cutoff_s=cutoff_s,
            closing=ROUGH_WORK if rough else REFINED_WORK,
            max_evaluations=round(tally.share * MAX_EVALUATIONS) if kind.searcher_proves_bounds else None,
            rough=roughly,
            progress=None if self.clock.report is None else lambda _cost, _bound: self.clock.tell(),
        )
        result = _SEARCHERS[kind.searcher](problem, options)
        tally.evaluations += result.evaluations
        self.clock.tell()
        return result


def _saved_bytes(problem: SearchProblem, known: SearchProblem) -> float | None:
    """The most bytes that ``problem`` saves over ``known`` for any assignment.

    Both have the same layouts. None if they do not, or if some value takes fewer seconds in ``problem``.
    """
    if [len(costs) for costs in problem.unary_s] != [len(costs) for costs in known.unary_s]:
        return None
    most: dict[tuple[int, ...], float] = {}
    saved = 0.0
    for own, other, use, before in zip(
        problem.unary_s, known.unary_s, problem.memory_bytes, known.memory_bytes, strict=True
    ):
        key = id(own), id(other), id(use), id(before)
        if key not in most:
            if (own < other).any():
                return None
            most[key] = float(np.max(before - use, initial=0))
        saved += most[key]
    return saved
