"""A plan's baselines, one after the other: costed beside the winner, and what its search begins with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autosbp.costmodel.boxing import BoxingModel
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Baseline, Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.assembly import Allowed
from autosbp.search.problem.baselines import Recipe, Roles, recipe
from autosbp.search.problem.stored_apart import best_stored_apart
from autosbp.search.problem.weights import AS_USED
from autosbp.search.space.best import Best
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.space_solver import Kind
from autosbp.search.space.structures import Structures
from autosbp.search.space.tally import Tally
from autosbp.search.space.timed import OutOfTimeError
from autosbp.search.stages.layouts import Space, Structure

BASELINE_SHARE = 0.1
"""The part of a whole search that a baseline gets. Most are solved at once."""


class Baselines:
    """Those that are asked for. Once the time limit is over, and there is a strategy to begin the search with, no more is
    looked for: what there was no time for is neither feasible nor infeasible, and says so.

    Args:
        search: of the plan's problems.
        mesh: of prime axes.
        fills: whether the model's blocks, and the batch, fill so many stages.
    """

    def __init__(
        self,
        search: Best,
        options: PlanOptions,
        asked: Structures,
        roles: Roles,
        mesh: Mesh,
        fills: Callable[[int], bool],
    ) -> None:
        self.search, self.options, self.asked, self.roles, self.mesh = search, options, asked, roles, mesh
        self.problems, self.fills = search.problems, fills
        given = asked.pins or asked.degrees or options.stage_of or options.storage not in (None, AS_USED)
        self._begins = not given

    def all(self, began: float) -> list[Baseline]:
        """All of them, of a plan whose work ``began`` then, by ``time.monotonic``."""
        search, found = self.search, list[Baseline]()
        search.end = began + self.options.time_limit_s
        for name in self.options.baselines:
            # As long as there is no strategy to begin the search with, this is the way to one.
            search.best, search.gives_up = None, not self._begins or self.start(found) is not None
            found.append(self._baseline(name))
        search.gives_up = False
        return found

    def start(self, baselines: Sequence[Baseline]) -> Candidate | None:
        """The best baseline, where what is asked for leaves it in the space: the plan is never worse. Baselines have no
        pins, degrees or given stages, and store parameters as these are used."""
        options = self.options
        if not self._begins:
            return None
        found = [
            Candidate(baseline.strategy, baseline.costs)
            for baseline in baselines
            if baseline.strategy is not None
            and baseline.costs is not None
            and options.stages in (None, baseline.strategy.num_stages)
            # Those of ZeRO have a batch and storage of their own, and recompute nothing.
            and options.micro_batch in (None, baseline.strategy.micro_batch)
            and not (recipe(baseline.name, self.mesh, self.roles).gather and (options.storage or options.recompute))
        ]
        return min(found, key=lambda candidate: candidate.costs.step_time_s, default=None)

    def _baseline(self, name: str) -> Baseline:
        found = recipe(name, self.mesh, self.roles)
        try:
            self.search.require_time()
            if found.gather:
                sizes = [self.problems.global_batch] if found.whole_batch else self.search.micro_batches(1)
                strategy, costs = best_stored_apart(
                    found, sizes, self.search.limit, self._unlimited, self.problems.compute
                )
                return Baseline(name, costs, strategy, True)
            kind = Kind(found.searcher, (AS_USED,), proves=False)
            best = self.search.over(self._grids(name, found), kind, Tally(BASELINE_SHARE))
        except InfeasibleError as error:
            return Baseline(name, None, None, False, str(error))
        except OutOfTimeError:
            return Baseline(name, None, None, None, f"{self._why_ended()} before it was found")
        cut = f"{self._why_ended()} before all of its grids were looked at" if self.search.cut else ""
        return Baseline(name, best.costs, best.strategy, True, cut)

    def _why_ended(self) -> str:
        limit_s = self.options.time_limit_s
        return "the search was ended" if self.search.stopped else f"the time limit of {limit_s:g} s was over"

    def _grids(self, name: str, found: Recipe) -> list[Structure]:
        """The grids of a baseline, and those of stages where its users would take these, too."""
        structures = [Structure(1, view, allowed) for view, allowed in found.grids]
        if not found.pipelines or self.asked.pins:
            return structures
        # Tensor parallel groups stay in a node, as is usual, where nodes have several devices.
        inside = 1 + (len([axis for axis in self.mesh.axes if axis.level == 1]) or self.mesh.ndim)
        return [
            Structure(stages, view, allowed)
            for stages, mesh in self.asked.meshes(self.fills)
            for view, allowed in recipe(name, mesh, self.roles).grids[:inside]
        ]

    def _unlimited(self, view: Mesh, allowed: Allowed, micro_batch: int) -> tuple[LogicalGraph, Strategy, BoxingModel]:
        """The fastest strategy of a baseline's view, without a memory limit."""
        self.search.require_time()
        layouts = self.problems.build(Space(Structure(1, view, allowed), micro_batch, AS_USED), None)
        result = SEARCHERS["exact"](layouts.problem, SearchOptions(seed=self.options.seed))
        strategy = self.problems.strategy(layouts, result.assignment)
        return self.problems.bound(micro_batch), strategy, self.problems.boxing(view)
