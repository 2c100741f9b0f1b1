"""Other ways to store parameters are searched only where they may save what counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.search.branch_and_bound import subproblem_solver
from autosbp.search.branch_and_bound.subproblem_solver import _saved_bytes
from autosbp.testing.searcher_conformance import random_problem
from tests.search.plans import graph_of

pytestmark = pytest.mark.integration


def test_saved_bytes_are_the_most_of_all_assignments_and_asked_of_slower_ones_alone() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        known = random_problem(
            rng, num_variables=5, max_domain=4, edge_probability=0.5, forbidden_probability=0.0, memory_share=0.5
        )
        less = [rng.integers(0, 50, len(use)) for use in known.memory_bytes]
        lean = replace(
            known,
            unary_s=tuple(costs + rng.random(len(costs)) for costs in known.unary_s),
            memory_bytes=tuple(use - saved for use, saved in zip(known.memory_bytes, less, strict=True)),
        )
        assert _saved_bytes(lean, known) == sum(int(saved.max()) for saved in less)
        assert _saved_bytes(known, lean) is None
        assert _saved_bytes(replace(known, unary_s=(known.unary_s[0][:1], *known.unary_s[1:])), lean) is None


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
@pytest.mark.some(3)
def test_plans_are_those_of_a_search_of_all_ways(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    graph, cluster = graph_of("gpt2-demo"), load_cluster("local:2x2")
    free = make_plan(graph, cluster, options=PlanOptions(global_batch=16))
    options = PlanOptions(
        global_batch=16, memory_limit_bytes=int(share * free.document["memory_bytes_per_device"]), baselines=()
    )
    plan = make_plan(graph, cluster, options=options)
    searched = []
    monkeypatch.setattr(
        subproblem_solver.SubproblemSolver, "_is_no_better", lambda *_: bool(searched.append(1))
    )  # every way is searched
    every = make_plan(graph, cluster, options=options)
    assert searched
    assert math.isclose(plan.document["step_time_s"], every.document["step_time_s"], rel_tol=2e-3)
