"""One run of four real ranks trains every model of the table under several strategies; the tests read its report."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, capture_hf_config, load_cluster, make_plan
from autosbp.costmodel.recompute import with_full_checkpointing
from autosbp.launch.local import run_ranks
from autosbp.plan.plan import Strategy
from autosbp.testing.strategy_samples import sample_strategies
from tests.models.configs import CONFIGS, SIZES, ZOO
from tests.tiers import form

GLOBAL_BATCH = 8
MODELS = (*CONFIGS, *ZOO)


@cache
def graph_of(name: str) -> LogicalGraph:
    if name in CONFIGS:
        return capture_hf_config(CONFIGS[name], **SIZES.get(name, {"seq_len": 32}))
    return capture(f"zoo:{name}")


@cache
def plan_of(name: str) -> Plan:
    return make_plan(graph_of(name), load_cluster("local:2x2"), None, PlanOptions(global_batch=GLOBAL_BATCH, stages=1))


def strategies_of(name: str) -> dict[str, Strategy]:
    """The plan and two samples that are far from it; in the long form its baselines, too."""
    plan, cluster = plan_of(name), load_cluster("local:2x2")
    found = {"plan": plan.strategy}
    for baseline in form((), plan.document["baseline_strategies"]):
        found[baseline] = plan.baseline_strategy(baseline)
    samples = sample_strategies(graph_of(name), cluster, 2, global_batch=GLOBAL_BATCH, micro_batch=GLOBAL_BATCH)
    bound = graph_of(name).bind(**dict.fromkeys(graph_of(name).symbols, GLOBAL_BATCH))
    again = with_full_checkpointing(bound, samples[1])
    return found | {"sample": samples[0], "recomputed sample" if again.recompute else "another sample": again}


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Reports of all ranks by model and strategy."""
    folder = tmp_path_factory.mktemp("models")
    cases = [
        {
            "model": name,
            "graph": graph_of(name).to_dict(),
            "strategies": [
                {"label": label, "strategy": strategy.to_dict()} for label, strategy in strategies_of(name).items()
            ],
        }
        for name in MODELS
    ]
    (folder / "request.json").write_text(json.dumps({"dtype": "float64", "cases": cases}))
    arguments = [str(folder / "request.json"), str(folder / "result.json")]
    outcome = run_ranks("tests.executor.equality_worker", arguments, 4, folder / "log", timeout_s=900)
    assert outcome.reason == "", outcome.log_tail
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for entry in json.loads((folder / "result.json").read_text()):
        found.setdefault(entry["model"], {})[entry["label"]] = entry["ranks"]
    return found
