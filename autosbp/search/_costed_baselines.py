"""A plan's baselines, one after the other: costed beside the winner, and what its search begins with.

Another process begins to cost them with the search. Where that has a strategy that fits at once, it goes on beside it, and is
asked what it found when search gets to what takes long; else it is ended, and both processes cost them before search goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

from autosbp.beside import Begun, begun
from autosbp.costmodel.boxing import BoxingModel
from autosbp.errors import InfeasibleError
from autosbp.graph.ir import LogicalGraph
from autosbp.handed import handed_over
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

handed_over(Baseline)
BASELINE_SHARE = 0.1
"""The part of a whole search that a baseline gets. Most are solved at once."""
ENDED = "the search was ended"


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

    def all(self, began: float, *, needed: bool = True) -> list[Baseline]:
        """All of them, of a plan whose work ``began`` then, by ``time.monotonic``; one at the least where it is ``needed`` to
        begin the search with."""
        search, found = self.search, list[Baseline]()
        search.end = began + self.options.time_limit_s
        for name in self.options.baselines:
            # As long as there is no strategy to begin the search with, this is the way to one.
            search.best, search.gives_up = None, not needed or not self._begins or self.start(found) is not None
            baseline = self._baseline(name)
            found.append(replace(baseline, free_of=self._free_of(baseline)))
        search.gives_up = False
        return found

    def _free_of(self, baseline: Baseline) -> tuple[str, ...]:
        """Constraints that a baseline does not obey: those of its own layouts, and what it does otherwise."""
        options, strategy = self.options, baseline.strategy
        if strategy is None:
            return ()
        apart = self._stores_apart(baseline.name)
        broken = {
            "pins": bool(options.pins),
            "data_parallel": options.data_parallel is not None,
            "tensor_parallel": options.tensor_parallel is not None,
            "stage_of": bool(options.stage_of),
            "stages": options.stages not in (None, strategy.num_stages),
            "micro_batch": options.micro_batch not in (None, strategy.micro_batch),
            "storage": options.storage is not None and (apart or options.storage != AS_USED),
            "recompute": bool(options.recompute) and not strategy.recompute,
        }
        return tuple(name for name, is_broken in broken.items() if is_broken)

    def unknown(self) -> list[Baseline]:
        """All of them, as they are where the search was ended before they were looked at."""
        return [Baseline(name, None, None, None, f"{ENDED} before it was found") for name in self.options.baselines]

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
            and not (self._stores_apart(baseline.name) and (options.storage or options.recompute))
        ]
        return min(found, key=lambda candidate: candidate.costs.step_time_s, default=None)

    def _stores_apart(self, name: str) -> bool:
        found = recipe(name, self.mesh, self.roles)
        return bool(found.gather) or found.storage != AS_USED

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
            kind = Kind(found.searcher, (found.storage,), proves=False)
            best = self.search.over(self._grids(name, found), kind, Tally(BASELINE_SHARE))
        except InfeasibleError as error:
            return Baseline(name, None, None, False, str(error))
        except OutOfTimeError:
            return Baseline(name, None, None, None, f"{self._why_ended()} before it was found")
        cut = f"{self._why_ended()} before all of its grids were looked at" if self.search.cut else ""
        return Baseline(name, best.costs, best.strategy, True, cut)

    def _why_ended(self) -> str:
        limit_s = self.options.time_limit_s
        return ENDED if self.search.stopped else f"the time limit of {limit_s:g} s was over"

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


class Offered:
    """What search may begin with: a ``known`` strategy, and the best baseline. To be closed.

    Args:
        began: when the work on the plan did, by ``time.monotonic``.
        search: which begins with it.
        leave: of the time limit, what it has left at the least, however long baselines took.
    """

    def __init__(self, baselines: Baselines, began: float, known: Candidate | None, search: Best, leave: float) -> None:
        self.baselines, self.began, self.known, self.search, self.leave = baselines, began, known, search, leave
        self._found: list[Baseline] | None = None
        self._begun: Begun[list[Baseline]] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Offered:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def begin(self) -> None:
        """Search has a strategy: have the baselines costed by another process, or now, where there is no room for one, or it
        is not worth its start."""
        self.begin_early()
        if self._found is None and self._begun is None and self.baselines.options.baselines:
            self._found = self._costed()
            self.search.extend(self.leave, self.began)

    def begin_early(self) -> None:
        """Search may have a strategy soon: have the baselines costed by another process, where there is room for one that is
        worth its start."""
        known = self._found is not None or self._begun is not None or not self.baselines.options.baselines
        if not known and self.baselines.problems.pays_to_share:
            self._begun = self._open.enter_context(begun(self._costed))
            if not self._begun.is_beside:
                self.drop()

    def drop(self) -> None:
        """Search has none: it needs them before it goes on, so that both processes had better cost them."""
        self._open.close()
        self._begun = None

    def _costed(self) -> list[Baseline]:
        return self.baselines.all(self.began, needed=False)

    def all(self, *, needed: bool = True) -> list[Baseline]:
        """The baselines, once they are costed; one at the least where it is ``needed`` to begin the search with."""
        if self._found is None:
            begun = self._begun
            self._found = self.baselines.all(self.began, needed=needed) if begun is None else self._result(begun)
            self.search.extend(self.leave, self.began)
        return self._found

    def _result(self, begun: Begun[list[Baseline]]) -> list[Baseline]:
        """Where a caller ended the search, of which the other process does not know, none is found."""
        try:
            return begun.result(self.search.wait)
        except OutOfTimeError:
            return self.baselines.unknown()

    def best(self) -> Candidate | None:
        """The best of all that search may begin with."""
        found = (self.known, self.baselines.start(self.all()))
        return min((each for each in found if each is not None), key=lambda each: each.costs.step_time_s, default=None)
