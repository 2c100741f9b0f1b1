"""Communication time of AutoDDL's strategy and of its best rival, each planned for communication alone.

The paper's model minimizes communication time and hides none of it (section 3.2), so its savings in communication time
compare with plans for devices that compute in no time, not with ours, which hide communication behind computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autosbp.api import LogicalGraph, PlanOptions, load_cluster, make_plan
from autosbp.cluster.spec import Cluster
from benchmarks.autoddl_fig8._problem import DEVICE


def communication(graph: LogicalGraph, cluster: str, options: PlanOptions, rivals: tuple[str, ...]) -> dict[str, Any]:
    """Seconds of communication of the plan and of each baseline, and the saving against the least of ``rivals``."""
    found = load_cluster(cluster)
    document = make_plan(graph, replace(found, device=DEVICE), None, options).document
    plan_s = _communication_s(document)
    baselines_s = {name: _communication_s(entry) for name, entry in document["baselines"].items() if entry["feasible"]}
    rival = min(rivals, key=lambda name: baselines_s.get(name, float("inf")))
    return {
        "alpha_s": found.levels[0].latency_s,
        "beta_s_per_byte": 1 / found.levels[0].bandwidth_bytes_per_s,
        "plan_s": plan_s,
        "baselines_s": baselines_s,
        "rival": rival,
        "saved": 1 - plan_s / baselines_s[rival],
    }


def links(cluster: Cluster) -> str:
    """Alpha and beta of each level, as the cost model takes them."""
    return ", ".join(
        f"alpha {level.latency_s * 1e6:g} us and beta 1 / ({level.bandwidth_bytes_per_s / 1e9:g} GB/s) at level {level.name}"
        for level in cluster.levels
    )


def _communication_s(entry: Mapping[str, Any]) -> float:
    breakdown = entry["breakdown"]
    return float(breakdown["exposed_comm_s"] + breakdown["hidden_comm_s"])
