"""Partial values kept through a second product (OneFlow, arXiv 2110.15032, section 3.3): Y = U V W.

    python examples/partial_deferral.py

U is S1 and V is S0, so U V is P: each rank has a part of the sum. GShard would reduce it there. P times B is P, so U V
may also be multiplied by W first and reduced once at the end, where it is smaller. The example does this first tensor
by tensor, as a user writes it, and then as a plan of a model, where search finds it because it is cheapest.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from common import Report, kib, print_flush, run_on_ranks, table, train
from torch import nn

from autosbp import eager
from autosbp.api import LogicalGraph, Plan, PlanOptions, capture_module, load_cluster, make_plan
from autosbp.eager import Placement
from autosbp.sbp.layout import format_nd_sbp

CLUSTER = load_cluster("local:4")
BATCH, INNER, MIDDLE, OUTER = 64, 1024, 1024, 16
SPLIT = {"linear_0": "S1", "linear_1": "P"}


def program() -> Report:
    """Compute Y in both ways on one rank; compare the collectives and the results."""
    torch.manual_seed(0)
    here = Placement([0, 1, 2, 3])
    u = eager.randn(BATCH, INNER, placement=here, sbp="S1", dtype=torch.float64)
    v = eager.randn(INNER, MIDDLE, placement=here, sbp="S0", dtype=torch.float64)
    w = eager.randn(MIDDLE, OUTER, placement=here, sbp="B", dtype=torch.float64)
    rows, results = [], []
    for way in ("reduced in between", "kept to the end"):
        with eager.recording() as sent:
            uv: Any = u @ v
            product: Any = uv.to_layout(here, "B") if way == "reduced in between" else uv
            y: Any = product @ w
            results.append(y.full())
        calls = ", ".join(f"{call.kind} of {kib(call.num_bytes)} KiB" for call in sent)
        rows.append([way, *(format_nd_sbp(each.layout) for each in (uv, product, y)), calls])
    text = table(["Y = U V W", "U V", "read by W as", "Y", "sent"], rows)
    difference = float((results[0] - results[1]).abs().max() / results[0].abs().max())
    return Report(text + f"difference between both: {difference:.0e}\n", difference < 1e-12)


class ThreeProducts(nn.Module):
    """loss = mean((X A V W - T)^2); X A is the paper's U."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (256, INNER, MIDDLE, OUTER)
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in zip(sizes[:-1], sizes[1:], strict=True))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x - target).square().mean()


def planned(graph: LogicalGraph, pins: dict[str, str]) -> Plan:
    return make_plan(graph, CLUSTER, options=PlanOptions(global_batch=BATCH, pins=pins))


def main() -> int:
    report = run_on_ranks("partial_deferral", program)
    print_flush(report.text)
    inputs = {"x": torch.zeros(4, 256), "target": torch.zeros(4, OUTER)}
    graph = capture_module(ThreeProducts(), inputs, name="three-products")
    # Every layout of the last product except P reads a reduced U V; the cheapest of them is compared with P.
    others = [planned(graph, {**SPLIT, "linear_2": layout}) for layout in ("B", "I", "S0", "S1")]
    plans = {
        "reduced in between": min(others, key=lambda plan: float(plan.document["step_time_s"])),
        "as search finds": planned(graph, {}),
    }
    runs = train({label: (graph, plan.strategy) for label, plan in plans.items()})
    rows = []
    for label, run in runs.items():
        document, signatures = plans[label].document, plans[label].strategy.signatures
        products = [str(signatures[f"linear_{at}"]) for at in range(3)]
        sent, time = kib(document["comm_bytes_per_device"]), f"{1e3 * document['step_time_s']:.2f}"
        rows.append([label, *products, sent, time, run.as_charged, f"{run.loss_error:.0e}"])
        print_flush(f"{label}: {run.collectives}")
    head = ["plan", "X A", "(X A) V", "(X A V) W", "KiB sent a step", "ms predicted", "as predicted", "error"]
    print_flush("\n" + table(head, rows))
    kept = format_nd_sbp(plans["as search finds"].strategy.signatures["linear_2"].outs[0])
    print_flush(f"search keeps the partial product through W: {set(kept.split(',')) == {'P'}}")
    right = report.right and all(run.as_charged and run.loss_error < 1e-5 for run in runs.values())
    return 0 if right and set(kept.split(",")) == {"P"} else 1


if __name__ == "__main__":
    sys.exit(main())
