"""Face-recognition head split over its classes (OneFlow, arXiv 2110.15032, section 6.3.1 and figure 11).

    python examples/insightface.py

The trunk is data parallel. The head has a weight per identity, more than all the rest. Stored as classes x features it
is S0 (the paper's S(1) of features x classes): each identity is on one rank. A rank computes the logits of its own
identities for the whole batch, which are S1, and subtracts the margin where a label is its own. Softmax combines the
ranks' maxima and sums: two numbers per sample instead of a logit per identity.
"""

from __future__ import annotations

import torch
from common import STEPS, kib, print_flush, table, train

from autosbp.api import LogicalGraph, Plan, PlanOptions, capture_module, load_cluster, make_plan
from autosbp.costmodel.step_collectives import collectives
from autosbp.graph.capture import build_on_meta
from autosbp.graph.ir import Node
from autosbp.sbp.layout import format_nd_sbp
from autosbp.zoo.models import FaceRecognizer

CLUSTER = load_cluster("local:4")
CLASSES, FEATURES, BATCH = 50_000, 64, 32
TRUNK = ("aten.conv2d.default", "aten.batch_norm.default")
SHOWN = ("aten.linear", "aten.scatter_add", "aten.log_softmax", "aten.gather", "aten.sum")


def face_recognizer() -> LogicalGraph:
    """A small trunk and a head with many classes."""
    module = build_on_meta(lambda: FaceRecognizer((1, 1), 8, FEATURES, CLASSES))
    inputs = {"x": torch.zeros(4, 3, 32, 32), "labels": torch.zeros(4, dtype=torch.long)}
    return capture_module(module, inputs, name="faces", input_high={"labels": CLASSES})


def planned(graph: LogicalGraph, head: dict[str, str]) -> Plan:
    """Plan with a data-parallel trunk; the head is as pinned, else as search finds best."""
    pins = {"trunk.*": "B", "embed.weight": "B", "norm.*": "B", **head}
    ops = {node.name: "S0" for node in graph.nodes if node.op in TRUNK}
    return make_plan(graph, CLUSTER, options=PlanOptions(global_batch=BATCH, pins={**pins, **ops}))


def head_of(graph: LogicalGraph) -> list[Node]:
    """Ops from the last batch norm on, which computes the features."""
    last = max(at for at, node in enumerate(graph.nodes) if node.op == "aten.batch_norm.default")
    return list(graph.nodes[last:])


def show_head(graph: LogicalGraph, plan: Plan) -> None:
    nodes, strategy = head_of(graph), plan.strategy
    shown = [node for node in nodes if node.op.startswith(SHOWN) and node.name in graph.parameter_dependent]
    rows = [(node.op, strategy.signatures[node.name]) for node in shown]
    print_flush(table(["op of the head", "layouts"], rows))
    names = {node.name for node in nodes[1:]}  # earlier ops belong to the trunk: batch norm statistics
    calls = collectives(graph.bind(batch=BATCH), strategy)
    sent = [(call.phase, call.kind, call.cause, f"{call.num_bytes:,}") for call in calls if call.cause in names]
    print_flush(table(["phase", "collective of the head", "of", "bytes"], sent))


def main() -> None:
    graph = face_recognizer()
    plans = {
        "data parallel": planned(graph, {"head.weight": "B"}),
        "classes split": planned(graph, {"head.weight": "S0"}),
    }
    found = planned(graph, {})
    print_flush(f"{CLASSES:,} identities, {FEATURES} features, batch {BATCH}, on {CLUSTER.num_devices} ranks\n")
    show_head(graph, plans["classes split"])
    layout = format_nd_sbp(found.strategy.parameters["head.weight"])
    free, parallel = (1e3 * plan.document["step_time_s"] for plan in (found, plans["data parallel"]))
    print_flush(
        f"left free, search stores the head {layout}: {free:.1f} ms a step, predicted; data parallel: {parallel:.1f} ms\n"
    )
    runs = train({label: (graph, plan.strategy) for label, plan in plans.items()})
    rows = []
    for label, run in runs.items():
        document = plans[label].document
        state = run.parameters + run.gradients + run.optimizer
        layout = format_nd_sbp(plans[label].strategy.parameters["head.weight"])
        rows.append([
            label, layout, kib(document["comm_bytes_per_device"]), kib(state), kib(run.peak), run.as_charged,
            f"{run.losses[0]:.5f}", f"{run.loss_error:.0e}", f"{run.gradient_error:.0e}",
        ])  # fmt: skip
    columns = ["per device and step", "head", "KiB sent", "KiB trained", "KiB at peak", "as predicted"]
    print_flush(table([*columns, "loss", "error", "of gradients"], rows))
    print_flush(
        "KiB trained: parameters, their gradients and AdamW's state. as predicted: every rank issued exactly the planned"
    )
    print_flush(
        f"collectives. error: of the losses of {STEPS} steps, and of gradients, against training on one device."
    )


if __name__ == "__main__":
    main()
