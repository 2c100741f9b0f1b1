"""Plans that tests of constraints ask for."""

from __future__ import annotations

from functools import cache
from typing import Any

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture, load_cluster, make_plan


@cache
def graph_of(name: str) -> LogicalGraph:
    return capture(f"zoo:{name}")


def planned(model: str = "gpt2-demo", cluster: str = "local:2x2", **options: Any) -> Plan:
    given = PlanOptions(baselines=(), **{"global_batch": 16, **options})
    return make_plan(graph_of(model), load_cluster(cluster), None, given)
