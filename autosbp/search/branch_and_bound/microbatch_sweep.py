"""Sweep over the microbatch sizes of a pipelined structure, from a size with a small bubble to smaller and larger ones.

With p stages and m microbatches, a step takes at least m / p times a microbatch on one stage's devices, plus 1 / p of
the work done once a step: the average work of a stage. Search problems also include the bubble
(``LayoutProblems.weights``), so their optimum times the fraction of work in it is a bound. Whether a subproblem is
searched further depends on its problem's cost, which assumes about the smallest bubble of the schedules.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autosbp.errors import InfeasibleError
from autosbp.search import SearchResult
from autosbp.search.branch_and_bound.candidate import INFINITE
from autosbp.search.branch_and_bound.overlap_multipliers import CostPlanes
from autosbp.search.branch_and_bound.root_relaxations import MIN_BOUND_GAIN, RootRelaxations
from autosbp.search.branch_and_bound.stage_pruning import StagePruning
from autosbp.search.branch_and_bound.strategy_coster import ESTIMATE_CUTOFF
from autosbp.search.branch_and_bound.subproblem_solver import SubproblemSolver
from autosbp.search.stages.layout_problems import OverlapWeights, PipelineStructure, Subproblem, SubproblemKey
from autosbp.utils.serialization import serializable

FIRST_BUBBLE = 0.1
"""Bubble relative to the work, at the microbatch size that is tried first."""
MAX_MULTIPLIERS = 2
"""Number of further multipliers tried for a subproblem."""
SWEEP_CUTOFF = 1.01
"""Step time relative to the best neighbour, above which the sweep ends in that direction."""
ASSUMED_LEAST = 0.85
"""Assumed least step time of all sizes, relative to that of the first, if no bound is wanted."""


@serializable
@dataclass(frozen=True)
class UnlimitedOptimum:
    """Optimum of a subproblem without the memory limit.

    ``layouts`` is None if another process built them, with this cutoff and these multipliers.
    """

    layouts: Subproblem | None
    result: SearchResult
    bound_s: float
    estimate_s: float
    cutoff_s: float
    overlap_weights: OverlapWeights = OverlapWeights()


SweepMessage = tuple[list[int], int, float, dict[int, UnlimitedOptimum]]


@dataclass
class SweepState:
    """State of a sweep. ``bound`` holds for all sizes; ``solved`` maps the index of a size to its optimum."""

    structure: PipelineStructure
    sizes: list[int]
    start: int = 0
    bound: float = 0.0
    solved: dict[int, UnlimitedOptimum] = field(default_factory=dict)

    def told(self) -> SweepMessage:
        """All but the structure, in a form that can be sent to another process."""
        plain = {
            at: replace(each, layouts=None, result=replace(each.result, certificate=None))
            for at, each in self.solved.items()
        }
        return self.sizes, self.start, self.bound, plain


class MicrobatchSweep:
    """Sweep over microbatch sizes, see the module's docstring."""

    def __init__(self, solver: SubproblemSolver, bounding: StagePruning, opening: RootRelaxations) -> None:
        self.solver, self.pruning, self.relaxations = solver, bounding, opening
        self.context, self.coster, self.problems = solver.context, solver.coster, solver.problems
        self.clock, self.incumbent = solver.clock, solver.incumbent

    def sort_key(self, walk: SweepState) -> tuple[bool, float]:
        """Sort key of sweeps: those that fit in memory first, then the fastest estimate."""
        found = walk.solved[walk.start]
        return found.result.memory_bytes > self.context.limit, found.estimate_s

    def start_sweep(self, structure: PipelineStructure) -> SweepState | None:
        """Start a sweep at a size with a small bubble, or the next larger one that splits evenly.

        If bounds are wanted, the repeated blocks at the largest size bound all sizes.

        Returns:
            None if the bound rules out the structure, or no size is possible.
        """
        self.clock.require_time()
        sizes, proves = self.context.micro_batches(structure.stages), self.context.kind.wants_bounds
        whole, waits = self.problems.global_batch, structure.stages - 1
        walk = SweepState(structure, sizes)
        if not proves and self.incumbent.cutoff_s < INFINITE and self.relaxations.is_out_of_reach(structure):
            return None
        walk.bound = max(0.0, self.relaxations.largest(structure)) if proves else 0.0
        if walk.bound >= self.incumbent.cutoff_s and self.solver.problems_are_lower_bounds():
            self.context.stats.bounds.append(walk.bound)
            return None
        start = next((at for at in range(len(sizes)) if waits * sizes[at] <= FIRST_BUBBLE * whole), len(sizes) - 1)
        for at in range(start, -1, -1):
            try:
                self._require_room(walk, at)
                self._unlimited_optimum(walk, at)
            except InfeasibleError as error:
                self.context.stats.fail(error)
                continue
            walk.start = at
            if not proves:
                walk.bound = ASSUMED_LEAST * walk.solved[at].estimate_s
            return walk
        return None

    def _require_room(self, walk: SweepState, at: int) -> None:
        """Reject a sweep that fits at no microbatch size.

        With one parameter sharding, lower bounds on memory tell this without a search.

        Raises:
            InfeasibleError: also for uneven splits.
        """
        if self.context.kind.wants_bounds or len(self.context.kind.parameter_shardings) > 1:
            return
        space = self.solver.subproblem_key(walk.structure, walk.sizes[at])
        again = self.context.checkpointing_choices[-1]
        # First the problem that is built anyway.
        if space.again != again and self.problems.least_memory(space) <= self.context.limit:
            return
        least = self.problems.least_memory(replace(space, again=again))
        for size in reversed(walk.sizes[at + 1 :] if least > self.context.limit else ()):
            try:
                least = self.problems.least_memory(
                    SubproblemKey(walk.structure, size, self.context.kind.parameter_shardings[0], again)
                )
                break  # no larger size has less
            except InfeasibleError:
                continue
        if least > self.context.limit:
            raise InfeasibleError(
                "memory_limit_bytes", self.context.limit, least, "even the minimum memory of every op does not fit"
            )

    def _unlimited_optimum(self, walk: SweepState, at: int) -> UnlimitedOptimum:
        """Optimum without the memory limit, computed once; raises ``InfeasibleError``."""
        if at not in walk.solved:
            space = self.solver.subproblem_key(walk.structure, walk.sizes[at])
            cutoff_s = self.solver.problem_cutoff_s(space) if self.context.kind.wants_bounds else INFINITE
            walk.solved[at] = self._solve(space, cutoff_s)
            if self.context.kind.wants_bounds and self.solver.problems_are_lower_bounds():
                walk.solved[at] = self._raise_bound(space, walk.solved[at])
        return walk.solved[at]

    def _solve(self, space: SubproblemKey, cutoff_s: float) -> UnlimitedOptimum:
        layouts = self.problems.build(space, None, cutoff_s=cutoff_s)
        result = self.solver.search(layouts.problem)
        blocks_s = self.solver.blocks_bound_s(layouts) if space.stages > 1 else -INFINITE
        bound = max(result.lower_bound_s, blocks_s) * self.solver.busy_fraction(space)
        bound = min(bound, self.incumbent.cutoff_s)  # pruned layouts cost at least the cutoff
        return UnlimitedOptimum(layouts, result, bound, max(result.cost_s, blocks_s), cutoff_s, space.overlap_weights)

    def _raise_bound(self, space: SubproblemKey, solved: UnlimitedOptimum) -> UnlimitedOptimum:
        """The optimum with other multipliers if they raise the bound, else ``solved``."""
        planes = CostPlanes(self.problems, space.view)
        for _ in range(MAX_MULTIPLIERS):
            if solved.bound_s >= self.incumbent.cutoff_s or solved.layouts is None or self.clock.out_of_time():
                break
            strategy = self.problems.strategy(solved.layouts, solved.result.assignment)
            planes.add(solved.layouts.key, strategy, solved.result.cost_s)
            exposure, height = planes.highest()
            if height <= solved.result.lower_bound_s * (1 + MIN_BOUND_GAIN):
                break
            raised = self._solve(replace(space, overlap_weights=exposure), solved.cutoff_s)
            if raised.bound_s <= solved.bound_s:
                break
            solved = raised
        return solved

    def pipelined_sizes(self, walk: SweepState) -> list[float]:
        """Sweep to smaller microbatches, then to larger ones, while they improve. Returns a bound for each size."""
        bounds = [walk.bound] * len(walk.sizes)
        shut = self.pruning.pruned_sizes(walk.structure)
        whole, least = self.problems.global_batch, INFINITE
        for at in range(walk.start, len(walk.sizes)):
            if bounds[at] >= self.incumbent.cutoff_s or self.clock.is_over():
                break
            if shut[at]:
                continue
            # Smaller microbatches have at least the work of this one.
            bound, estimate = self._pipelined(walk, at)
            bounds[at:] = [max(bound, walk.bound)] * (len(bounds) - at)
            if estimate > SWEEP_CUTOFF * least:
                break
            least = min(least, estimate)
        least = INFINITE
        for at in range(walk.start - 1, -1, -1):
            # The sweep's bound includes what larger microbatches save, and the bubble is known approximately.
            waited = self.problems.waits(walk.structure.stages, whole // walk.sizes[at])
            if walk.bound * (1 + waited * walk.sizes[at] / whole) >= self.incumbent.cutoff_s or self.clock.is_over():
                break
            if shut[at]:
                continue
            bounds[at], estimate = self._pipelined(walk, at)
            if estimate > SWEEP_CUTOFF * least:
                break
            least = min(least, estimate)
        return [max(bound, walk.bound) for bound in bounds]

    def _pipelined(self, walk: SweepState, at: int) -> tuple[float, float]:
        """A bound of a subproblem, and the approximate step time of its best strategy.

        If only the choice of cuts made a strategy fit, other parameter shardings are tried too.
        """
        self.coster.needed_tighter_cuts = False
        found = self._cost_size(walk, at)
        if self.coster.needed_tighter_cuts and not self.clock.out_of_time():
            self.solver.search_parameter_shardings(walk.structure, walk.sizes[at])
        return found

    def _cost_size(self, walk: SweepState, at: int) -> tuple[float, float]:
        try:
            solved = self._unlimited_optimum(walk, at)
        except InfeasibleError as error:
            self.context.stats.fail(error)
            return INFINITE, INFINITE
        result = solved.result
        bound, estimate = solved.bound_s, solved.estimate_s
        space = self.solver.subproblem_key(walk.structure, walk.sizes[at])
        if bound >= self.incumbent.cutoff_s or result.cost_s >= ESTIMATE_CUTOFF * self.incumbent.cutoff_s:
            return bound, estimate
        layouts = solved.layouts or self.problems.build(
            replace(space, overlap_weights=solved.overlap_weights), None, cutoff_s=solved.cutoff_s
        )
        limit = self.context.limit
        if result.memory_bytes <= self.context.limit:
            candidates = list(self.coster.candidates(layouts, result))
            fitting = self.coster.fastest_fitting(candidates)
            self.context.keep(fitting)
            if not candidates or not self.coster.is_oversized_but_faster(candidates, fitting):
                return bound, estimate
            self.coster.record_over_limit(space, candidates)
            leaner = self.solver.leaner(self.solver.build_pruned(space, limit), candidates[0])
            self.context.keep(leaner)
            if leaner is not None or fitting is not None:
                return bound, estimate
            limit = self.coster.tightened_limit(limit, result, candidates)
        self.solver.search_parameter_shardings(walk.structure, space.micro_batch, limit)
        return bound, estimate
