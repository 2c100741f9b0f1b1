"""Wide & Deep with split embedding tables (OneFlow, arXiv 2110.15032, section 6.3.2 and figure 13).

    python examples/wide_deep.py

Users of OneFlow set a table to S(0), which splits its rows (the vocabulary), or to S(1), which splits its width. Here
both are pinned for comparison, and then left free: search decides by cost for each table. Under data parallelism every
rank has all tables, and every step reduces their full gradients.
"""

from __future__ import annotations

import torch
from common import kib, print_flush, table, train

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture_module, load_cluster, make_plan
from autosbp.errors import InfeasibleError
from autosbp.graph.capture import build_on_meta
from autosbp.sbp.layout import format_nd_sbp
from autosbp.zoo.models import WideDeep

CLUSTER = load_cluster("local:4")
ROWS, DENSE, WIDTH, HIDDEN, BATCH = (40_000, 8_000, 4_000, 16), 16, 32, (64, 32), 256
TABLES = ("wide", "tables")


def wide_deep() -> LogicalGraph:
    """Tables of very different sizes, as in categorical data."""
    module = build_on_meta(lambda: WideDeep(ROWS, DENSE, WIDTH, HIDDEN))
    inputs = {
        "dense": torch.zeros(4, DENSE),
        "ids": torch.zeros(4, len(ROWS), dtype=torch.long),
        "labels": torch.zeros(4, dtype=torch.long),
    }
    return capture_module(module, inputs, name="wide-deep", input_high={"ids": max(ROWS), "labels": 2})


def planned(graph: LogicalGraph, pins: dict[str, str], limit: int | None = None) -> Plan:
    options = PlanOptions(global_batch=BATCH, pins=pins, memory_limit_bytes=limit)
    return make_plan(graph, CLUSTER, options=options)


def layouts(plan: Plan) -> str:
    """Layout of each deep table, largest first."""
    return " ".join(format_nd_sbp(plan.strategy.parameters[f"tables.{at}.weight"]) for at in range(len(ROWS)))


def main() -> None:
    graph = wide_deep()
    split = {"wide.*.weight": "S0", **{f"tables.{at}.weight": "S0" for at in range(len(ROWS))}}
    plans = {
        "data parallel": planned(graph, {"*": "B"}),
        "rows split, S0": planned(graph, split),
        "width split, S1": planned(graph, {"tables.*.weight": "S1", "wide.*.weight": "S0"}),
        "as search finds": planned(graph, {}),
    }
    print_flush(
        f"tables of {', '.join(f'{rows:,}' for rows in ROWS)} rows x {WIDTH}, batch {BATCH}, {CLUSTER.num_devices} ranks\n"
    )
    runs = train({label: (graph, plan.strategy) for label, plan in plans.items()})
    rows = []
    for label, run in runs.items():
        document = plans[label].document
        state = run.parameters + run.gradients + run.optimizer
        rows.append([
            label, layouts(plans[label]), kib(document["comm_bytes_per_device"]), kib(state), kib(run.peak),
            f"{1e3 * document['step_time_s']:.1f} / {1e3 * run.step_s:.1f}", run.as_charged,
            f"{run.losses[0]:.6f}", f"{run.gradient_error:.0e}",
        ])  # fmt: skip
    columns = ["per device and step", "tables", "KiB sent", "KiB trained", "KiB at peak", "ms, predicted / measured"]
    print_flush(table([*columns, "as predicted", "loss", "error of gradients"], rows))
    limit = plans["data parallel"].document["memory_bytes_per_device"] // 2
    print_flush(f"with {kib(limit)} KiB a device, half of what data parallelism needs:")
    try:
        planned(graph, {"*": "B"}, limit)
    except InfeasibleError as error:
        print_flush(f"data parallel    {error}")
    found = planned(graph, {}, limit)
    print_flush(f"as search finds  {kib(found.document['memory_bytes_per_device'])} KiB, tables {layouts(found)}")


if __name__ == "__main__":
    main()
