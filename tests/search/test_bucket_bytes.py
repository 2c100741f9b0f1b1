"""Plans whose messages of gradients are of another size: charged as executed, more of them or fewer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autosbp.api import PlanOptions, load_cluster
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.costmodel.network import NetworkModel
from autosbp.errors import InputError
from autosbp.plan import BUCKET_BYTES
from autosbp.sbp.parameters import parameter_flow
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search._layouts import LayoutProblems, Space, Structure
from autosbp.search._weights import AS_USED, STEP
from autosbp.search.pinned import Pins
from tests.search.plans import graph_of, planned

SMALL, LARGE = 2**17, 2**30


def test_smaller_messages_are_more_and_take_longer() -> None:
    asked: dict[str, Any] = {"cluster": "local:4", "stages": 1, "data_parallel": 4, "storage": AS_USED}
    usual, small = planned(**asked), planned(**asked, bucket_bytes=SMALL)
    assert (usual.strategy.bucket_bytes, small.strategy.bucket_bytes) == (BUCKET_BYTES, SMALL)
    bound = graph_of("gpt2-demo").bind(batch=usual.strategy.micro_batch)
    fewer, more = (parameter_flow(bound, plan.strategy).buckets for plan in (usual, small))
    assert 1 <= len(fewer) < len(more)
    assert small.document["step_time_s"] > usual.document["step_time_s"]
    assert small.document["gap"] == usual.document["gap"] == 0.0
    assert "bucket_bytes" not in usual.document["strategy"]


@pytest.mark.parametrize("bucket_bytes", [SMALL, LARGE])
@pytest.mark.parametrize("storage", [AS_USED, STEP])
def test_what_search_charges_is_what_the_strategy_is_charged(storage: str, bucket_bytes: int) -> None:
    there = load_cluster("local:4")
    compute = ComputeModel(there.device)
    problems = LayoutProblems(
        graph_of("gpt2-demo"), NetworkModel(there), compute, global_batch=16, optimizer="adamw",
        pins=Pins({}, {}, {}), bucket_bytes=bucket_bytes,
    )  # fmt: skip
    layouts = problems.build(Space(Structure(1, there.mesh()), 8, storage), None)
    found = SEARCHERS["exact"](layouts.problem, SearchOptions())
    strategy = problems.strategy(layouts, found.assignment)
    costs = evaluate(problems.bound(8), strategy, problems.boxing(there.mesh()), compute)
    assert strategy.bucket_bytes == bucket_bytes
    assert costs.step_time_s == pytest.approx(found.cost_s, rel=1e-9)
    usual = evaluate(
        problems.bound(8), replace(strategy, bucket_bytes=BUCKET_BYTES), problems.boxing(there.mesh()), compute
    )
    assert (costs.step_time_s > usual.step_time_s) == (bucket_bytes == SMALL)


def test_bad_sizes_are_named() -> None:
    with pytest.raises(InputError, match="bucket_bytes"):
        PlanOptions.from_dict({"bucket_bytes": 0})
