"""AutoDDL's Figure 3: forward activation traffic of one attention layer on 64 nodes."""

from __future__ import annotations

from typing import Any

from autosbp.api import LogicalGraph, Plan, PlanOptions, load_cluster, make_plan
from autosbp.costmodel.network import beta_factor
from autosbp.costmodel.step_collectives import collectives
from benchmarks.autoddl._models import transformer

CLUSTER, BATCH, LAYERS, WIDTH, HEADS = "piz-daint:64", 1024, 8, 8192, 64
SHOWN = 4  # a layer in the middle
# 4 x data parallel, 16 x model parallel, on six axes of two nodes
COLUMNS, ROWS = "B,B,S0,S0,S0,S0", "B,B,S1,S1,S1,S1"
MEGATRON = {
    "transformer.h.*.attn.c_attn.weight*": COLUMNS,
    "transformer.h.*.attn.c_proj.weight*": ROWS,
    "transformer.h.*.mlp.c_fc.weight*": COLUMNS,
    "transformer.h.*.mlp.c_proj.weight*": ROWS,
}
PAPER = {"megatron_4x16": 3.75, "autoddl": 2.0}


def figure_3(time_limit_s: float) -> dict[str, Any]:
    """Gi elements of activations that a device sends for one attention layer in all forward passes of a step."""
    graph = transformer(LAYERS, WIDTH, HEADS)
    found: dict[str, Any] = {"paper_gi_elements": PAPER}
    for name, pins in (("megatron_4x16", MEGATRON), ("ours", {})):
        options = PlanOptions(
            global_batch=BATCH, pins=pins, baselines=(), time_limit_s=time_limit_s, stages=1, recompute=0
        )
        found[name] = attention_elements(graph, make_plan(graph, load_cluster(CLUSTER), None, options)) / 2**30
    return found


def attention_elements(graph: LogicalGraph, plan: Plan) -> float:
    """Elements sent from the attention layer's norm up to its residual sum, inclusive."""
    names = [node.name for node in graph.nodes]
    made = set(names[names.index(f"layer_norm_{2 * SHOWN}") : names.index(f"layer_norm_{2 * SHOWN + 1}")])
    strategy = plan.strategy
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    return sum(
        beta_factor(call.kind, strategy.mesh.group_size(call.axes)) * call.num_bytes / 4
        for call in collectives(bound, strategy)
        if call.phase == "forward" and call.cause in made
    )
