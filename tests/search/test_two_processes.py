"""A plan whose work two processes share is the plan of one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from autosbp import beside, handed
from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.costmodel.alike import KnownChunks
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.graph.ir import LogicalGraph
from autosbp.jsonio import canonical
from autosbp.plan import Costs, Strategy
from autosbp.schedules import RUNNABLE
from autosbp.search._costed_baselines import Offered
from autosbp.search.space import costing
from autosbp.search.stages import layouts
from tests.search.plans import graph_of

CASES = [
    ("gpt2-demo", "local:2x2", {}),
    ("mlp-small", "local:4", {"memory_limit_bytes": 40_000_000}),
    ("mlp-small", "local:4", {"stages": 2}),
]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small models are shared, too; the pids of the other processes."""
    for name in ("FEW_OPS", "MANY_OPS"):
        monkeypatch.setattr(layouts, name, 1)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # no limit strikes, however slow this machine is
    pids, fork = [], os.fork

    def counted() -> int:
        pid = fork()
        pids.append(pid)
        return pid

    monkeypatch.setattr(beside.os, "fork", counted)
    return pids


@pytest.mark.parametrize(("model", "cluster", "asked"), CASES)
def test_two_processes_make_the_plan_of_one(
    shared: list[int], monkeypatch: pytest.MonkeyPatch, model: str, cluster: str, asked: dict[str, int]
) -> None:
    answers, loads, dropped, drop = [], handed.loads, list[bool](), Offered.drop

    def read(text: bytes) -> object:
        answers.append(text)
        return loads(text)

    def ended(offered: Offered) -> None:
        dropped.append(offered._begun is not None and offered._begun.is_beside)
        drop(offered)

    def planned() -> bytes:
        options = PlanOptions(global_batch=16, **asked)
        return canonical(make_plan(graph_of(model), load_cluster(cluster), None, options).document)

    monkeypatch.setattr(handed, "loads", read)
    monkeypatch.setattr(Offered, "drop", ended)
    together = planned()
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1:
        assert len(answers) + sum(dropped) == len(shared) > sum(dropped), "all that the others did can be handed over"
        assert all(answers)
    monkeypatch.setattr(beside, "_has_room", lambda: False)
    shared.clear()
    assert planned() == together
    assert not shared


def test_progress_is_told_by_one_process(shared: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "pids"
    monkeypatch.setattr("autosbp.search.searchers.run.PROGRESS_INTERVAL_S", 0.0)

    def progress(_stage: str, _best: float) -> bool:
        with told.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return True

    make_plan(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, PlanOptions(global_batch=16), progress)
    assert set(told.read_text().split()) == {str(os.getpid())}


def test_what_is_known_of_chunks_changes_no_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, costed = costing.evaluate, []

    def evaluate(
        graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, compute: ComputeModel, known: KnownChunks
    ) -> Costs:
        found = alone(graph, strategy, boxing, compute, known)
        assert found == alone(graph, strategy, boxing, compute)
        costed.append(strategy.pipeline is not None)
        return found

    monkeypatch.setattr(costing, "evaluate", evaluate)
    options = PlanOptions(
        global_batch=16, stages=2, memory_limit_bytes=60_000_000, schedules=(*RUNNABLE, "message_driven")
    )
    make_plan(graph_of("gpt2-demo"), load_cluster("local:2x2"), None, options)
    assert sum(costed) > 2
