"""A plan whose work two processes share is the plan of one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.chunk_cache import ChunkCostCache
from autosbp.costmodel.compute import ComputeModel
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Costs, Strategy
from autosbp.plan.schedules import RUNNABLE
from autosbp.search.baseline_costs import CostedBaselines
from autosbp.search.branch_and_bound import strategy_coster
from autosbp.search.stages import layout_problems
from autosbp.utils import parallel, serialization
from autosbp.utils.json_io import canonical
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration

CASES = [
    ("gpt2-demo", "local:2x2", {}),
    ("mlp-small", "local:4", {"memory_limit_bytes": 40_000_000}),
    ("mlp-small", "local:4", {"stages": 2}),
]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small models are shared, too; the pids of the other processes."""
    for name in ("MIN_OPS_TO_SOLVE_IN_PARALLEL", "MIN_OPS_TO_COST_IN_PARALLEL"):
        monkeypatch.setattr(layout_problems, name, 1)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # no limit strikes, however slow this machine is
    pids, fork = [], os.fork

    def counted() -> int:
        pid = fork()
        pids.append(pid)
        return pid

    monkeypatch.setattr(parallel.os, "fork", counted)
    return pids


@pytest.mark.some(2)
@pytest.mark.parametrize(("model", "cluster", "asked"), CASES)
def test_two_processes_make_the_plan_of_one(
    shared: list[int], monkeypatch: pytest.MonkeyPatch, model: str, cluster: str, asked: dict[str, int]
) -> None:
    answers, loads, dropped, drop = [], serialization.loads, list[bool](), CostedBaselines.drop

    def read(text: bytes) -> object:
        answers.append(text)
        return loads(text)

    def ended(offered: CostedBaselines) -> None:
        dropped.append(offered._task is not None and offered._task.in_background)
        drop(offered)

    def planned() -> bytes:
        options = PlanOptions(global_batch=16, **asked)
        return canonical(make_plan(graph_of(model), load_cluster(cluster), None, options).document)

    monkeypatch.setattr(serialization, "loads", read)
    monkeypatch.setattr(CostedBaselines, "drop", ended)
    together = planned()
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1:
        assert len(answers) + sum(dropped) == len(shared) > sum(dropped), "all that the others did can be handed over"
        assert all(answers)
    monkeypatch.setattr(parallel, "_can_fork", lambda: False)
    shared.clear()
    assert planned() == together
    assert not shared


def test_only_one_process_reports_progress(shared: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "pids"
    monkeypatch.setattr("autosbp.search.solvers.solver_state.PROGRESS_INTERVAL_S", 0.0)

    def progress(_stage: str, _best: float) -> bool:
        with told.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return True

    make_plan(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, PlanOptions(global_batch=16), progress)
    assert set(told.read_text().split()) == {str(os.getpid())}


def test_cached_chunk_costs_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, costed = strategy_coster.evaluate, []

    def evaluate(
        graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, compute: ComputeModel, known: ChunkCostCache
    ) -> Costs:
        found = alone(graph, strategy, boxing, compute, known)
        assert found == alone(graph, strategy, boxing, compute)
        costed.append(strategy.pipeline is not None)
        return found

    monkeypatch.setattr(strategy_coster, "evaluate", evaluate)
    options = PlanOptions(
        global_batch=16, stages=2, memory_limit_bytes=60_000_000, schedules=(*RUNNABLE, "message_driven")
    )
    make_plan(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, options)
    assert sum(costed) > 2
