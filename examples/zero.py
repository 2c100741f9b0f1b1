"""ZeRO by layouts (OneFlow, arXiv 2110.15032, section 6.4).

    python examples/zero.py

Stages 1, 2 and 3 differ only in where parameters are stored and when they are gathered. Every strategy splits only the
batch. A parameter stored as B is whole on each of four ranks: plain data parallelism. Of a parameter stored as S, each
rank keeps and trains a quarter and gathers a whole copy for use, ``S0 -> B``: an all-gather in forward, a
reduce-scatter of its gradient in backward.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from common import STEPS, Run, kib, print_flush, table, train
from torch import nn
from torch.nn import functional

from autosbp.api import LogicalGraph, PlanOptions, capture, capture_module, load_cluster, make_plan, predict_costs
from autosbp.plan.plan import Strategy

CLUSTER = load_cluster("local:4")
MODEL, BATCH = "zoo:mlp-small", 64
WHOLE = 2**30


def stored_in_parts(graph: LogicalGraph) -> dict[str, str]:
    """Layouts that store each parameter split along dim 0 over all ranks and use it whole."""
    return {leaf.name: "S0 -> B" for leaf in graph.parameters}


def data_parallel(graph: LogicalGraph, pins: dict[str, str]) -> Strategy:
    """Strategy that splits the batch of every product and of the loss; parameters are as pinned."""
    divided = ("aten.linear.default", "aten.log_softmax.int")
    batch = {node.name: "S0" for node in graph.nodes if node.op in divided}
    return make_plan(graph, CLUSTER, options=PlanOptions(global_batch=BATCH, pins={**batch, **pins})).strategy


def stages(graph: LogicalGraph) -> dict[str, Strategy]:
    """Data parallelism and the three ZeRO stages, which differ in when gradients are reduced and parameters gathered."""
    split = data_parallel(graph, stored_in_parts(graph))
    return {
        "data parallel": data_parallel(graph, {"*": "B"}),
        # one gradient bucket at the end of backward: whole gradients exist until then
        "ZeRO-1": replace(split, bucket_bytes=WHOLE),
        # many small buckets, each reduced as soon as it is full
        "ZeRO-2": replace(split, bucket_bytes=2**18),
        # and parameters are gathered where they are used, freed, and gathered again for backward
        "ZeRO-3": replace(split, bucket_bytes=2**18, gather="use"),
    }


class MixedMLP(nn.Module):
    """MLP with float32 parameters that computes in bfloat16."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = x.bfloat16()
        for at, layer in enumerate(self.layers):
            weight, bias = (each.bfloat16() for each in layer.parameters())
            x = functional.linear(x, weight, bias)
            x = functional.relu(x) if at + 1 < len(self.layers) else x
        return functional.cross_entropy(x.float(), labels)


def mixed() -> tuple[LogicalGraph, dict[str, Strategy]]:
    """Figure 14: the float32 parameter is cast while split, and the bfloat16 result is boxed to B for its use."""
    inputs = {"x": torch.zeros(4, 256), "labels": torch.zeros(4, dtype=torch.long)}
    graph = capture_module(MixedMLP((256, 512, 512, 256, 16)), inputs, name="mixed", input_high={"labels": 16})
    return graph, {
        "gather float32, then cast": data_parallel(graph, stored_in_parts(graph)),
        "cast to bfloat16, then gather": data_parallel(graph, {"*": "S0"}),
    }


def row(label: str, graph: LogicalGraph, strategy: Strategy, run: Run) -> list[object]:
    costs = predict_costs(graph, strategy, CLUSTER)
    stored = [f"{kib(costs.memory[part])} / {kib(getattr(run, part))}" for part in ("parameters", "optimizer")]
    return [label, *stored, kib(run.gradients), f"{kib(costs.memory_bytes_per_device)} / {kib(run.peak)}"]


def traffic(label: str, graph: LogicalGraph, strategy: Strategy, run: Run) -> list[object]:
    sent = kib(predict_costs(graph, strategy, CLUSTER).comm_bytes_per_device)
    return [label, run.collectives, sent, run.as_charged, f"{run.losses[-1]:.6f}", f"{run.loss_error:.0e}"]


def show(graph: LogicalGraph, strategies: dict[str, Strategy], runs: dict[str, Run]) -> None:
    head = ["KiB per device: predicted / measured", "parameters", "optimizer", "gradients", "peak of a step"]
    print_flush(table(head, [row(label, graph, strategies[label], runs[label]) for label in strategies]))
    head = ["in a step", "collectives", "KiB sent", "as predicted", f"loss after {STEPS}", "error"]
    print_flush(table(head, [traffic(label, graph, strategies[label], runs[label]) for label in strategies]))


def main() -> None:
    graph = capture(MODEL)
    plain, (other, cast) = stages(graph), mixed()
    cases = [(graph, plain), (other, cast)]
    runs = train({label: (model, each) for model, found in cases for label, each in found.items()})
    print_flush(f"{graph.summary()['num_parameters']:,} parameters on {CLUSTER.num_devices} ranks, AdamW\n")
    show(graph, plain, runs)
    print_flush(
        "gradients: of what a rank trains, after a step, measured. peak: the most bytes of all tensors at once, with"
    )
    print_flush(
        "copies gathered for use, whole gradients and messages. error: of losses, against training on one device.\n"
    )
    print_flush("Mixed precision: float32 parameters stored S0, used in bfloat16.\n")
    show(other, cast, runs)
    print_flush("The errors are bfloat16's: it has 3 digits, and ranks add up in another order than one device.")


if __name__ == "__main__":
    main()
