"""Layouts with which one op alone takes more than a known strategy leave no better one out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan, predict_costs
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.sbp.mesh import Axis, Mesh
from autosbp.search import SEARCHERS, SearchOptions, SearchProblem
from autosbp.search._base import Edge
from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.search.branch_and_bound.context import SearchContext
from autosbp.search.branch_and_bound.root_relaxations import RootRelaxations
from autosbp.search.branch_and_bound.strategy_coster import StrategyCoster
from autosbp.search.branch_and_bound.subproblem_solver import SubproblemSolver
from autosbp.search.problem.cost_weights import FASTEST, GATHER_PER_STEP, GATHER_PER_USE
from autosbp.search.problem.pins import Pins
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure, SubproblemKey
from tests.search.plans import graph_of, planned

pytestmark = pytest.mark.integration

CASES = [("gpt2-demo", "local:2x2", 1), ("gpt2-demo", "local:2x2", 2), ("vgg13", "local:2x2", 1),
         ("wide-deep-small", "local:2x2", 1), ("resnet50", "local:4", 1)]  # fmt: skip


def problems_of(model: str, cluster: str) -> tuple[LayoutProblems, Mesh]:
    found = load_cluster(cluster)
    problems = LayoutProblems(
        graph_of(model),
        NetworkModel(found),
        ComputeModel(found.device),
        global_batch=64,
        optimizer="adamw",
        pins=Pins({}, {}, {}),
    )
    return problems, found.mesh()


def solved(problem: SearchProblem) -> float:
    return SEARCHERS["exact"](problem, SearchOptions()).cost_s


@pytest.mark.parametrize(("model", "cluster", "stages"), CASES)
def test_the_optimum_is_left_by_any_cutoff_above_it(model: str, cluster: str, stages: int) -> None:
    problems, mesh = problems_of(model, cluster)
    view = Mesh(mesh.axes[stages - 1 :], (mesh.level_counts[0] // stages, *mesh.level_counts[1:]))
    space = SubproblemKey(PipelineStructure(stages, view), 32, FASTEST)
    whole = problems.build(space, None).problem
    best_s, least_s = solved(whole), problems.least_s(space)
    assert 0 < least_s <= best_s * (1 + 1e-9)
    sizes = [values(whole)]
    for above in (1e-12, 0.01, 0.3, 10.0):
        cut = problems.build(space, None, cutoff_s=best_s * (1 + above)).problem
        assert solved(cut) == pytest.approx(best_s, rel=1e-12)
        sizes.append(values(cut))
    assert sizes[1] < sizes[0], "next to the optimum some layouts are too slow by themselves"
    assert sizes[1:] == sorted(sizes[1:])


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("storage", [FASTEST, "as_used"])
def test_whole_blocks_take_no_less_than_is_known_without_edges(stages: int, storage: str) -> None:
    problems, _ = problems_of("bert-large", "dgx-a100-40g:1")
    view = load_cluster(f"local:{8 // stages}").mesh()
    view = Mesh((Axis("g", view.size, 0),), (view.size,))
    space = SubproblemKey(PipelineStructure(stages, view), 64 // stages, storage)
    layouts = problems.build(space, None)
    whole = problems.whole_blocks(layouts, lambda problem: SEARCHERS["exact"](problem, SearchOptions()).lower_bound_s)
    assert 0 < problems.least_blocks_s(space) <= whole * (1 + 1e-9)
    assert stages == 1 or problems.least_blocks_s(space) > problems.least_s(space), "the head is on one stage"
    without, mesh = problems_of("mlp-small", "local:2x2")
    assert without.least_blocks_s(SubproblemKey(PipelineStructure(1, mesh), 32, FASTEST)) == float("-inf")


@pytest.mark.some(2)
@pytest.mark.parametrize(("model", "batch"), [("bert-large", 256), ("gpt2-1.5b", 128)])
def test_baselines_are_those_of_all_grids_looked_into(model: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosbp.utils.parallel._can_fork", lambda: False)
    options, reach = PlanOptions(global_batch=batch, baselines=("megatron",)), RootRelaxations.is_out_of_reach
    told: list[bool] = []

    def baselines(is_out_of_reach: Callable[..., bool]) -> object:
        monkeypatch.setattr(RootRelaxations, "is_out_of_reach", is_out_of_reach)
        return make_plan(graph_of(model), load_cluster("dgx-a100-80g:1"), None, options).document["baselines"]

    def telling(*given: Any) -> bool:
        told.append(reach(*given))
        return told[-1]

    assert baselines(telling) == baselines(lambda *_: False)
    assert any(told)


@pytest.mark.parametrize("model", ["mlp-small", "wide-deep-small"])
def test_pruned_values_are_in_no_assignment_below_the_cutoff(model: str) -> None:
    problems, mesh = problems_of(model, "local:2x2")
    space = SubproblemKey(PipelineStructure(1, mesh), 32, FASTEST)
    whole = problems.build(space, None, dominated=True)
    cutoff_s = 1.05 * solved(whole.problem)
    cut = problems.build(space, None, dominated=True, cutoff_s=cutoff_s)
    left_out = 0
    for variable, (domain, kept) in enumerate(zip(whole.built.domains, cut.built.domains, strict=True)):
        rows = {tuple(row) for row in kept.rows}
        for value, row in enumerate(domain.rows):
            if tuple(row) not in rows:
                assert solved(fixed(whole.problem, variable, value)) > cutoff_s
                left_out += 1
    assert left_out


def test_below_what_ops_take_by_themselves_the_quickest_layouts_stay() -> None:
    problems, mesh = problems_of("mlp-small", "local:2x2")
    space = SubproblemKey(PipelineStructure(1, mesh), 32, FASTEST)
    cut = problems.build(space, None, cutoff_s=0.0).problem
    assert solved(cut) >= problems.least_s(space) > 0.0


def test_parameters_that_are_gathered_for_each_use_may_cost_less_than_problems_charge() -> None:
    problems, mesh = problems_of("mlp-small", "local:2x2")
    plan = planned("mlp-small", global_batch=64)
    context = SearchContext(problems, PlanOptions(global_batch=64), 2**40, float("inf"))
    solver = SubproblemSolver(context, StrategyCoster(context))
    context.incumbent.best = Candidate(plan.strategy, predict_costs(graph_of("mlp-small"), plan.strategy, plan.cluster))
    found = {
        storage: solver.problem_cutoff_s(SubproblemKey(PipelineStructure(1, mesh), 32, storage))
        for storage in (FASTEST, GATHER_PER_STEP, GATHER_PER_USE)
    }
    assert found[FASTEST] == found[GATHER_PER_STEP] == plan.document["step_time_s"] and found[GATHER_PER_USE] == float(
        "inf"
    )


def values(problem: SearchProblem) -> int:
    return sum(map(len, problem.unary_s))


def fixed(problem: SearchProblem, variable: int, value: int) -> SearchProblem:
    """The problem with one value of a variable alone."""
    at = slice(value, value + 1)
    return replace(
        problem,
        unary_s=tuple(own[at] if v == variable else own for v, own in enumerate(problem.unary_s)),
        memory_bytes=tuple(own[at] if v == variable else own for v, own in enumerate(problem.memory_bytes)),
        edges=tuple(
            Edge(e.u, e.v, e.table[at if e.u == variable else slice(None), at if e.v == variable else slice(None)])
            for e in problem.edges
        ),
    )
