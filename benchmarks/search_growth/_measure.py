"""Timings of the search problem of one microbatch, of its phases, and of complete plans.

All are CPU seconds of this process: search runs on one thread, and other work on the machine does not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.search import search
from autosbp.search.problem.cost_weights import FASTEST
from autosbp.search.problem.mesh_views import mesh_views
from autosbp.search.problem.pins import Pins
from autosbp.search.stages.layout_problems import LayoutProblems, PipelineStructure, SubproblemKey
from benchmarks.search_growth._models import gpt3

BATCH = 8192
PLAN_BATCH = 1536
"""GPT-3's own batch: a complete plan examines a microbatch for each of its divisors."""
PLAN_LIMIT_S = 300.0  # wall clock; no plan here reaches it
DEVICES_PER_NODE = 8


@dataclass(frozen=True)
class Size:
    layers: int
    devices: int

    @property
    def cluster(self) -> str:
        return f"dgx-a100-80g:{self.devices // DEVICES_PER_NODE}"


def one_problem(size: Size) -> dict[str, Any]:
    """Seconds to fold the graph, to build the search problem, and to solve it with proof.

    The problem has one stage, a microbatch of the whole batch, the middle view of the mesh and no memory limit. A plan
    examines ``views`` such problems per microbatch.
    """
    graph, cluster = gpt3(size.layers), load_cluster(size.cluster)
    views = mesh_views(cluster.mesh())
    started = time.process_time()
    made = LayoutProblems(
        graph, NetworkModel(cluster), ComputeModel(cluster.device), global_batch=BATCH, optimizer="adamw",
        pins=Pins({}, {}, {}),
    )  # fmt: skip
    folded = time.process_time()
    problem = made.build(SubproblemKey(PipelineStructure(1, views[len(views) // 2]), BATCH, FASTEST), None).problem
    built = time.process_time()
    found = search(problem, "exact")
    solved = time.process_time()
    assert found.gap == 0.0
    return {
        "layers": size.layers, "devices": size.devices, "ops": len(graph.nodes), "views": len(views),
        "variables": problem.num_variables, "most_values": max(map(len, problem.unary_s)),
        "distinct_products": int(found.info["distinct_products"]),
        "fold_s": folded - started, "build_s": built - folded, "exact_s": solved - built, "all_s": solved - started,
    }  # fmt: skip


def whole_plan(size: Size) -> dict[str, Any]:
    """Time ``make_plan`` with baselines, over stages, schedules, microbatches, storage and layouts, within memory."""
    graph, cluster = gpt3(size.layers), load_cluster(size.cluster)
    started = time.process_time()
    plan = make_plan(graph, cluster, None, PlanOptions(global_batch=PLAN_BATCH, time_limit_s=PLAN_LIMIT_S))
    seconds = time.process_time() - started
    return {
        "layers": size.layers, "devices": size.devices, "plan_s": seconds, "gap": plan.document["gap"],
        "stages": plan.strategy.num_stages, "step_time_s": plan.document["step_time_s"],
    }  # fmt: skip


def exponent(rows: Sequence[Mapping[str, Any]], by: str, field: str) -> float:
    """Least-squares slope of log(field) over log(by): 1 is linear growth, 0 is constant."""
    x, y = ([math.log(row[name]) for row in rows] for name in (by, field))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
