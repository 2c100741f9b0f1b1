"""OneFlow's tables: MatMul signatures (1), boxing volumes (2), two-dimensional signatures (3), and section 3.3."""

from __future__ import annotations

from itertools import product

import pytest

from autosbp.api import load_graph, make_plan
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.network import NetworkModel
from autosbp.executor.lowering import lower
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.plan.plan import Signature
from autosbp.sbp.boxing import COLLECTIVES, BoxingStep, message_bytes, step_between
from autosbp.sbp.factor_notation import axis_options, notation, tensor_inputs
from autosbp.sbp.layout import B, I, NdSbp, P, S, Sbp
from autosbp.sbp.mesh import Mesh
from autosbp.sbp.rules import RULES, node_options
from autosbp.search.plan_options import PlanOptions
from autosbp.testing.oneflow_transfer_volume import direct_transfer, volume_bytes
from autosbp.testing.virtual import plain_mesh
from autosbp.testing.virtual_boxing import check_steps
from autosbp.testing.virtual_cases import of, op_case, x
from autosbp.testing.virtual_ops import check_layouts
from autosbp.testing.virtual_program import check_strategy

TABLE_1 = {
    ("S0", "B", "S0"),
    ("B", "S1", "S1"),
    ("S1", "S0", "P"),
    ("P", "B", "P"),
    ("B", "P", "P"),
    ("B", "B", "B"),
}


def letter(sbp: Sbp) -> str:
    """OneFlow has one letter for B and I."""
    return "B" if sbp == I else str(sbp)


def matmul() -> tuple[LogicalGraph, Node]:
    return op_case("aten.mm.default", of(x(4, 8), x(8, 12)))


def test_table_1_is_one_line() -> None:
    graph, node = matmul()
    sharding = notation("m k, k n -> m n", linear="0; 1", flops=2)(node, tensor_inputs(graph, node))
    assert sharding == RULES["aten.mm.default"](node, tensor_inputs(graph, node))
    options = axis_options(sharding, (True, True), (True,))
    assert {(*map(letter, option.ins), *map(letter, option.outs)) for option in options} == TABLE_1
    assert len(options) == len(TABLE_1) + 1  # B and I


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [((S(0), B), (B, S(1)), (S(0), S(1))), ((S(0), S(1)), (B, S(0)), (S(0), P))],
    ids=["S0B_BS1", "S0S1_BS0"],
)
def test_table_3(left: NdSbp, right: NdSbp, out: NdSbp) -> None:
    graph, node = matmul()
    known = {(option.ins, option.outs) for option in node_options(graph, node)}
    assert all(((left[axis], right[axis]), (out[axis],)) in known for axis in range(2))
    check_layouts(graph, node, Signature((left, right), (out,)), plain_mesh(2, 2))


SHAPE, T = (16, 16), 16 * 16 * 8


def table_2(p1: int, p2: int) -> dict[tuple[Sbp, Sbp], tuple[float, float]]:
    """From, to: volume in units of the tensor on the same p1 devices, and from p1 to p2 other devices."""
    return {
        (S(0), S(0)): (0, 1),
        (S(0), S(1)): ((p1 - 1) / p1, 1),
        (S(0), B): (p1 - 1, p2),
        (S(0), P): (0, 1),
        (B, S(0)): (0, 1),
        (B, B): (0, p2),
        (B, P): (0, 1),
        (P, S(0)): (p1 - 1, p1),
        (P, B): (2 * (p1 - 1), p1 + p2 - 1),
        (P, P): (0, p1),
    }


ROWS = [pytest.param(*pair, id=f"{pair[0]}-{pair[1]}") for pair in table_2(1, 1)]


def volume_of(steps: tuple[BoxingStep, ...], mesh: Mesh) -> int:
    """Bytes that all devices send in the forward steps."""
    return sum(
        volume_bytes(step.forward, message_bytes(step, T, mesh), mesh.group_size(step.axes))
        for step in steps
        if step.forward in COLLECTIVES
    )


@pytest.mark.parametrize(("src", "dst"), ROWS)
@pytest.mark.parametrize("p1", [2, 4])
def test_table_2_on_the_same_devices(p1: int, src: Sbp, dst: Sbp) -> None:
    mesh = plain_mesh(p1)
    step = step_between((src,), (dst,), mesh)
    steps = () if step is None else (step,)
    assert (step is None) == (src == dst)
    wanted = table_2(p1, p1)[src, dst][0] * T
    assert volume_of(steps, mesh) == wanted
    if step is not None:  # what ranks really issue
        for issued in check_steps(steps, SHAPE, mesh):
            forward = issued[: step.forward in COLLECTIVES]
            assert sum(volume_bytes(call.kind, call.num_bytes, p1) for call in forward) == wanted


@pytest.mark.parametrize(("src", "dst"), ROWS)
@pytest.mark.parametrize("p1", [2, 4])
def test_the_planner_moves_no_more_than_table_2(p1: int, src: Sbp, dst: Sbp) -> None:
    cluster = slow_cluster(p1)
    mesh = plain_mesh(p1)
    steps = BoxingModel(NetworkModel(cluster), mesh).plan((src,), (dst,), SHAPE, T, differentiable=False)
    assert volume_of(steps, mesh) == table_2(p1, p1)[src, dst][0] * T


@pytest.mark.parametrize(("src", "dst"), ROWS)
@pytest.mark.parametrize(("p1", "p2"), list(product([2, 4], repeat=2)))
def test_table_2_between_disjoint_devices(p1: int, p2: int, src: Sbp, dst: Sbp) -> None:
    transfer = direct_transfer(SHAPE, T, (src,), plain_mesh(p1), (dst,), plain_mesh(p2))
    assert transfer.total_bytes == table_2(p1, p2)[src, dst][1] * T


def slow_cluster(count: int) -> Cluster:
    """Devices on a network without latency, so that only bytes count."""
    device = {
        "name": "device",
        "kind": "cpu",
        "memory_bytes": 2**34,
        "peak_flops": {"float32": 1e9, "float64": 1e9},
        "memory_bandwidth_bytes_per_s": 1e12,
        "op_overhead_s": 0.0,
    }
    levels = [{"name": "g", "count": count, "latency_s": 0.0, "bandwidth_bytes_per_s": 1e8}]
    document = {"schema": "autosbp.cluster/1", "name": "slow", "device": device, "levels": levels}
    return Cluster.from_dict(document)


M, K, N, L = 45, 1024, 63, 5  # only K is even: the first product is contracted over devices, or done by each


def two_products() -> LogicalGraph:
    """loss = sum((U V W)^2), as a graph document."""

    def tensor(name: str, *shape: int) -> dict[str, object]:
        return {"name": name, "shape": list(shape), "dtype": "float64"}

    def node(name: str, op: str, args: list[object], *shape: int) -> dict[str, object]:
        return {"name": name, "op": op, "args": args, "outputs": [{"shape": list(shape), "dtype": "float64"}]}

    def ref(name: str) -> dict[str, str]:
        return {"ref": name}

    return load_graph(
        {
            "schema": "autosbp.graph/1",
            "name": "two-products",
            "symbols": {},
            "parameters": [tensor("U", M, K), tensor("V", K, N), tensor("W", N, L)],
            "inputs": [],
            "constants": [],
            "nodes": [
                node("first", "aten.mm.default", [ref("U"), ref("V")], M, N),
                node("second", "aten.mm.default", [ref("first"), ref("W")], M, L),
                node("squared", "aten.pow.Tensor_Scalar", [ref("second"), 2], M, L),
                node("loss", "aten.sum.default", [ref("squared")]),
            ],
            "loss": ref("loss"),
            "provenance": {},
        }
    )


def letters(signature: Signature) -> list[str]:
    """The layout of each tensor when all axes have the same."""
    layouts = (*signature.ins, *signature.outs)
    assert all(len(set(layout)) == 1 for layout in layouts), signature
    return [str(layout[0]) for layout in layouts]


def test_section_3_3_partial_sums_flow_through_the_second_product() -> None:
    graph = two_products()
    options = PlanOptions(global_batch=1, searcher="exact", optimizer="sgd")
    plan = make_plan(graph, slow_cluster(4), options=options)
    strategy = plan.strategy
    assert plan.document["gap"] == 0.0
    assert letters(strategy.signatures["first"]) == ["S1", "S0", "P"]
    assert letters(strategy.signatures["second"]) == ["P", "B", "P"]
    program = lower(graph, strategy, 0)
    called = [node.target.__name__ for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["mm.default", "mm.default", "all_reduce", "pow.Tensor_Scalar", "sum.default"]
    assert program.code.count("all_reduce(") == 1
    for issued in check_strategy(graph, strategy):
        product, gradient_of_w = ("all_reduce", M * L * 8), ("all_reduce", N * L * 8)
        assert [(call.kind, call.num_bytes) for call in issued] == [product, gradient_of_w]
