"""Strategies that constraints can name: stages x data x tensor x storage x recomputation x microbatch,
each with the layouts that take least where messages hide behind computation, and where none do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from autosbp.api import LogicalGraph, PlanOptions, load_cluster
from autosbp.errors import InfeasibleError
from autosbp.plan import Strategy
from autosbp.search.planner import Planner
from autosbp.search.problem.degrees import Degrees, constrained
from autosbp.search.problem.weights import AS_USED, STEP, USE
from autosbp.search.space.best import Best
from autosbp.search.space.candidate import Candidate
from autosbp.search.space.space_solver import Kind
from autosbp.search.space.tally import Tally
from autosbp.search.stages.layouts import Exposure, Space, Structure
from benchmarks.regret._cases import Case

STAGES, TENSOR = (1, 2, 4, 8, 12), (1, 2, 4, 6, 8, 16)
MICRO_BATCHES = 3
"""Of each structure, from the largest that splits evenly on."""
FOREVER_S = 86_400.0


@dataclass(frozen=True)
class Rival:
    """A strategy that fits, and how constraints name it."""

    name: str
    strategy: Strategy
    step_time_s: float


def rivals(case: Case, graph: LogicalGraph, limit_s: float) -> tuple[list[Rival], int]:
    """Those that fit in memory, and how many were tried, within so many seconds, in an order drawn by the case's name."""
    cluster = load_cluster(case.cluster)
    options = PlanOptions(
        global_batch=case.batch, memory_limit_bytes=case.limit_bytes, baselines=(), time_limit_s=FOREVER_S
    )
    planner = Planner(graph, cluster, None, options, None)
    end, found, tried = time.monotonic() + limit_s, list[Rival](), 0
    spaces = list(_spaces(planner))
    Random(case.name).shuffle(spaces)
    for name, space in spaces:
        if time.monotonic() > end:
            break
        exposures = (Exposure(), Exposure(whole=True))
        every = [_candidate(planner.search, replace(space, exposure=exposure)) for exposure in exposures]
        tried += 1
        known = [each for each in every if each is not None]
        if known:
            candidate = min(known, key=lambda each: each.costs.step_time_s)
            found.append(Rival(name, candidate.strategy, candidate.costs.step_time_s))
    return found, tried


def _spaces(planner: Planner) -> Iterator[tuple[str, Space]]:
    for stages, mesh in planner.asked.meshes(planner._fills):
        if stages not in STAGES:
            continue
        for tensor in TENSOR:
            data, rest = divmod(mesh.size, tensor)
            ways = [] if rest else constrained(mesh, planner.asked.pins, Degrees(data, tensor), planner.roles)
            for view, allowed in ways[-1:]:  # tensor parallel groups inside a node
                for micro_batch in planner.search.micro_batches(stages)[:MICRO_BATCHES]:
                    for storage in (AS_USED, STEP, USE):
                        for again in (False, True) if planner.problems.blocks else (False,):
                            text = f"--stages {stages} --data-parallel {data} --tensor-parallel {tensor}"
                            text += f" --storage {storage} --recompute {int(again)} --micro-batch {micro_batch}"
                            yield text, Space(Structure(stages, view, allowed), micro_batch, storage, again)


def _candidate(search: Best, space: Space) -> Candidate | None:
    """The quickest that fits of those that a space's problem leads to."""
    search.begin()
    search.best = None
    try:
        layouts = search.problems.build(space, None)
        result = search._solve(layouts, Kind("exact", (space.storage,), proves=False), Tally(), float("inf"))
        return search._fits(search._candidates(layouts, result))
    except InfeasibleError:
        return None
