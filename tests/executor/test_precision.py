"""On four real ranks: training in a precision equals one device's in the same precision, with the charged bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import Plan
from tests.executor.conftest import graph_of
from tests.tiers import form

pytestmark = [pytest.mark.slow, pytest.mark.integration]

CASES: dict[str, dict[str, Any]] = {
    "plan": {},
    "ZeRO-3": {"storage": "use", "micro_batch": 4},
    "ZeRO-2": {"storage": "step", "micro_batch": 4},
    "replicated": {"storage": "as_used", "micro_batch": 4, "tensor_parallel": 1},
    "tensor parallel": {"data_parallel": 1},
    "checkpointing": {"recompute": 1},
    "pipeline": {"stages": 2, "micro_batch": 4},
    "zero bubble": {"stages": 2, "micro_batch": 4, "schedules": ("zero_bubble",)},
}


def planned(precision: str, options: dict[str, Any]) -> Plan:
    asked = PlanOptions(global_batch=16, baselines=(), precision=precision, time_limit_s=10, **options)
    return make_plan(graph_of("llama"), load_cluster("local:4"), None, asked)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Plan, list[dict[str, Any]]]]:
    """Plans with the reports of all ranks."""
    folder = tmp_path_factory.mktemp("precision")
    labels = form(("plan", "ZeRO-3", "pipeline"), tuple(CASES))
    plans = {label: planned("bf16-mixed", CASES[label]) for label in labels}
    plans |= {precision: planned(precision, {"storage": "use"}) for precision in ("bf16", "fp16-mixed", "fp32")}
    graph = graph_of("llama").to_dict()
    cases = [
        {"label": label, "graph": graph, "precision": plan.precision, "strategy": plan.document["strategy"]}
        for label, plan in plans.items()
    ]
    (folder / "request.json").write_text(json.dumps({"cases": cases}))
    outcome = run_ranks(
        "tests.executor.precision_worker",
        [str(folder / "request.json"), str(folder / "result.json")],
        4,
        folder / "log",
        timeout_s=500,
    )
    assert outcome.reason == "", outcome.log_tail
    found = json.loads((folder / "result.json").read_text())
    return {entry["label"]: (plans[entry["label"]], entry["ranks"]) for entry in found}


def test_losses_and_gradients_equal_one_device_s_within_the_rounding_of_half_precision(runs: Any) -> None:
    for label, (plan, ranks) in runs.items():
        limit = {"fp32": 1e-5}.get(plan.precision, 5e-3)
        assert max(rank["loss"] for rank in ranks) <= limit, (label, ranks)
        assert max(rank["gradient"] for rank in ranks) <= 10 * limit, (label, ranks)
        assert all(rank["last_loss"] < rank["first_loss"] for rank in ranks), label


def test_issued_collectives_are_the_charged_ones_gradients_in_their_own_bytes(runs: Any) -> None:
    for label, (_, ranks) in runs.items():
        assert all(rank["collectives_match"] for rank in ranks), label


def test_gradients_are_accumulated_and_reduced_in_the_dtype_of_the_precision(runs: Any) -> None:
    for label, (plan, ranks) in runs.items():
        wanted = "bfloat16" if plan.precision == "bf16" else "float32"
        assert all(rank["dtypes"] == [wanted] for rank in ranks), (label, ranks)


def test_memory_is_predicted_with_the_bytes_of_each_dtype(runs: Any) -> None:
    for label, (plan, ranks) in runs.items():
        measured = max(rank["memory_bytes"] for rank in ranks)
        predicted = plan.document["memory_bytes_per_device"]
        assert measured <= 1.01 * predicted, (label, measured, predicted)
        if label != "zero bubble":
            assert measured >= 0.97 * predicted, (label, measured, predicted)
