"""Strategies that constraints can express: stages x data x tensor x storage x recomputation x microbatch size.

Each has the cheapest layouts under one of two assumptions: communication overlaps computation, or it does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from autosbp.api import LogicalGraph, PlanOptions, load_cluster
from autosbp.errors import InfeasibleError
from autosbp.plan.plan import Strategy
from autosbp.search.branch_and_bound.best_first import BestFirstSearch
from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.search.branch_and_bound.context import SearchMode
from autosbp.search.branch_and_bound.search_stats import SearchStats
from autosbp.search.planner import Planner
from autosbp.search.problem.cost_weights import GATHER_PER_STEP, GATHER_PER_USE, UNSHARDED
from autosbp.search.problem.parallel_degrees import ParallelDegrees, constrained_views
from autosbp.search.stages.layout_problems import OverlapWeights, PipelineStructure, SubproblemKey
from benchmarks.regret._cases import Case

STAGES, TENSOR = (1, 2, 4, 8, 12), (1, 2, 4, 6, 8, 16)
MICRO_BATCHES = 3
"""Number of microbatch sizes per pipeline structure, largest first."""
FOREVER_S = 86_400.0


@dataclass(frozen=True)
class ConstrainedStrategy:
    """A strategy that fits in memory, named by its constraints."""

    name: str
    strategy: Strategy
    step_time_s: float


def constrained_strategies(case: Case, graph: LogicalGraph, limit_s: float) -> tuple[list[ConstrainedStrategy], int]:
    """Strategies that fit in memory, and the number of points tried within ``limit_s`` seconds.

    Points are tried in random order, seeded by the case's name.
    """
    cluster = load_cluster(case.cluster)
    options = PlanOptions(
        global_batch=case.batch, memory_limit_bytes=case.limit_bytes, baselines=(), time_limit_s=FOREVER_S
    )
    planner = Planner(graph, cluster, None, options, None)
    end, found, tried = time.monotonic() + limit_s, list[ConstrainedStrategy](), 0
    spaces = list(_spaces(planner))
    Random(case.name).shuffle(spaces)
    for name, space in spaces:
        if time.monotonic() > end:
            break
        exposures = (OverlapWeights(), OverlapWeights(whole=True))
        every = [_candidate(planner.search, replace(space, overlap_weights=exposure)) for exposure in exposures]
        tried += 1
        known = [each for each in every if each is not None]
        if known:
            candidate = min(known, key=lambda each: each.costs.step_time_s)
            found.append(ConstrainedStrategy(name, candidate.strategy, candidate.costs.step_time_s))
    return found, tried


def _spaces(planner: Planner) -> Iterator[tuple[str, SubproblemKey]]:
    for stages, mesh in planner.asked.meshes(planner.can_fill):
        if stages not in STAGES:
            continue
        for tensor in TENSOR:
            data, rest = divmod(mesh.size, tensor)
            ways = (
                []
                if rest
                else constrained_views(mesh, planner.asked.pins, ParallelDegrees(data, tensor), planner.roles)
            )
            for view, allowed in ways[-1:]:  # tensor-parallel groups inside a node
                for micro_batch in planner.search.context.micro_batches(stages)[:MICRO_BATCHES]:
                    for storage in (UNSHARDED, GATHER_PER_STEP, GATHER_PER_USE):
                        for again in (False, True) if planner.problems.blocks else (False,):
                            text = f"--stages {stages} --data-parallel {data} --tensor-parallel {tensor}"
                            text += f" --storage {storage} --recompute {int(again)} --micro-batch {micro_batch}"
                            yield (
                                text,
                                SubproblemKey(PipelineStructure(stages, view, allowed), micro_batch, storage, again),
                            )


def _candidate(search: BestFirstSearch, space: SubproblemKey) -> Candidate | None:
    """The fastest strategy that fits among the candidates of a space's problem; None if there is none."""
    search.context.begin(SearchMode("exact", (space.storage,), wants_bounds=False), SearchStats(), None)
    try:
        layouts = search.problems.build(space, None)
        result = search.solver.search(layouts.problem)
        return search.coster.fastest_fitting(search.coster.candidates(layouts, result))
    except InfeasibleError:
        return None
