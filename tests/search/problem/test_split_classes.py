"""Search splits the classes of a wide head: a face-recognition head of 10^6 classes (OneFlow section 6.3.1)."""

from __future__ import annotations

import pytest

from autosbp.api import PlanOptions, load_cluster, make_plan
from autosbp.costmodel.step_collectives import collectives
from autosbp.graph.ir import LogicalGraph
from tests.executor.split_ops.heads import classification

FACES = classification(1_000_000, 512, ignore=-100)


@pytest.mark.parametrize(("cluster", "batch"), [("local:2x2", 64), ("dgx-a100-80g:1", 512)])
def test_classes_are_split_from_the_logits_to_the_loss(cluster: str, batch: int) -> None:
    plan = make_plan(FACES, load_cluster(cluster), None, PlanOptions(global_batch=batch))
    strategy = plan.strategy
    ways = strategy.mesh.ndim
    shown = {name: str(signature) for name, signature in strategy.signatures.items()}
    assert shown["logits"] == f"{each('B', ways)} {each('S0', ways)} -> {each('S1', ways)}"
    assert shown[made_by(FACES, "log_softmax")] == f"{each('S1', ways)} -> {each('S1', ways)}"
    assert shown[made_by(FACES, "gather")] == f"{each('S1', ways)} {each('B', ways)} -> {each('P', ways)}"
    bound = FACES.bind(batch=strategy.micro_batch)
    calls = [call for call in collectives(bound, strategy) if call.phase != "sync"]
    inside = [call for call in calls if call.cause == made_by(FACES, "log_softmax")]
    assert [(call.phase, call.kind) for call in inside] == [("forward", "all_gather"), ("backward", "all_reduce")]
    assert sum(call.num_bytes for call in calls) < 1e-2 * bound.metas["logits"][0].num_bytes
    parallel = plan.document["baselines"]["data_parallel"]
    assert not parallel["feasible"] or parallel["step_time_s"] > 1.5 * plan.document["step_time_s"]


def test_the_classes_of_a_narrow_head_stay_whole() -> None:
    graph = classification(16, 512, ignore=-100)
    plan = make_plan(graph, load_cluster("local:2x2"), None, PlanOptions(global_batch=4096))
    layouts = plan.strategy.signatures[made_by(graph, "log_softmax")].ins
    assert all(sbp.dim != 1 for layout in layouts for sbp in layout)


def made_by(graph: LogicalGraph, op: str) -> str:
    """The name of the graph's one node of this op."""
    (name,) = (node.name for node in graph.nodes if node.op.split(".")[1] == op)
    return name


def each(sbp: str, ways: int) -> str:
    return ",".join([sbp] * ways)
