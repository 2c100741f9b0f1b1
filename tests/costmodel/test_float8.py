"""Products in float8: rates, bytes and launches of one linear layer, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosbp.cluster.hardware import Device
from autosbp.cluster.spec import Cluster, load_cluster
from autosbp.costmodel.calibration import Calibration, OpTime
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.float8 import float8_operands, op_launches
from autosbp.costmodel.fusion import fused_ops
from autosbp.costmodel.kernels import program_kernels
from autosbp.costmodel.local_op_work import LocalOpWork
from autosbp.costmodel.op_times import local_op_key, op_times_s
from autosbp.errors import InputError
from autosbp.graph.ir import Input, LogicalGraph, Node, Parameter, Ref, TensorMeta
from autosbp.graph.precision import in_precision
from autosbp.graph.serialize import from_dict
from autosbp.plan.plan import Strategy
from autosbp.program.program import Op, program_items
from autosbp.search.bounds.work_bound import work_bound_s
from tests.costmodel.memory.programs import on_one_device

ROWS, WIDTH, OUT = 4096, 1024, 2048
X, W, Y = 2 * ROWS * WIDTH, 2 * OUT * WIDTH, 2 * ROWS * OUT  # bytes in bfloat16
FLOPS = 2.0 * ROWS * WIDTH * OUT
PEAK, BANDWIDTH, LAUNCH_S = 1e15, 2e12, 1e-5
DEVICE = Device("d", "cuda", 2**36, {"bfloat16": PEAK / 2, "float8": PEAK}, BANDWIDTH, 0.5, LAUNCH_S)
LINEAR = ("aten.linear.default", (Ref("x"), Ref("w")), (OUT, WIDTH))


def graph(
    op: tuple[str, tuple[Ref, ...], tuple[int, int]] = LINEAR, out: int = OUT, precision: str = "fp8-mixed"
) -> LogicalGraph:
    """One layer whose output is summed."""
    name, args, weight = op
    y = Node("y", name, args, {}, (TensorMeta((ROWS, out), "float32"),))
    loss = Node("loss", "aten.sum.default", (Ref("y"),), {}, (TensorMeta((), "float32"),))
    parameters = [Parameter("w", TensorMeta(weight, "float32"), "w")]
    if Ref("b") in args:
        parameters.append(Parameter("b", TensorMeta((out,), "float32"), "b"))
    inputs = (Input("x", TensorMeta((ROWS, WIDTH), "float32")),)
    captured = LogicalGraph("g", {}, tuple(parameters), inputs, (), (y, loss), Ref("loss"))
    return in_precision(captured, precision)


def product(found: LogicalGraph) -> tuple[Node, Strategy, Op]:
    node = next(node for node in found.nodes if node.name == "y")
    strategy = on_one_device(found, ROWS, ROWS)
    return node, strategy, next(
        item for item in program_items(found, strategy) if isinstance(item, Op) and item.node is node
    )  # fmt: skip


def test_a_linear_layer_multiplies_at_the_rate_of_float8_and_pays_for_scales_and_casts() -> None:
    found = graph()
    _, strategy, item = product(found)
    forward, backward = op_times_s(found, strategy, item, ComputeModel(DEVICE))
    product_s = max(FLOPS / (0.5 * PEAK), (X / 2 + W / 2 + Y) / BANDWIDTH)
    assert forward == pytest.approx(product_s + 2.5 * (X + W) / BANDWIDTH + 5 * LAUNCH_S)
    assert backward == pytest.approx(2 * product_s + 2.5 * (X + W + Y) / BANDWIDTH + 7 * LAUNCH_S)
    assert op_launches(found, item.node) == (5, 7)


def test_the_kernels_of_a_product_in_float8_are_the_same_work() -> None:
    found = graph()
    _, strategy, item = product(found)
    items = tuple(program_items(found, strategy))
    kernels = program_kernels(LocalOpWork(found, strategy, items), fused_ops(found, items))["y"]
    scaling, forward, scaling_back, weight, accumulated = kernels
    assert (scaling.num_bytes, scaling.launches) == (2.5 * (X + W), 4)
    assert (scaling_back.num_bytes, scaling_back.launches) == (2.5 * (X + W + Y), 6)
    assert (forward.dtype, forward.num_bytes) == ("float8", X / 2 + W / 2 + Y)
    assert (weight.dtype, weight.num_bytes) == ("float8", Y / 2 + X / 2 + W)
    assert accumulated.dtype == "bfloat16" and item.node.name == "y"


@pytest.mark.parametrize(
    ("op", "positions"),
    [
        (LINEAR, (0, 1)),
        (("aten.mm.default", (Ref("x"), Ref("w")), (WIDTH, OUT)), (0, 1)),
        (("aten.addmm.default", (Ref("b"), Ref("x"), Ref("w")), (WIDTH, OUT)), (1, 2)),
    ],
)
def test_products_with_a_parameter_are_in_float8(
    op: tuple[str, tuple[Ref, ...], tuple[int, int]], positions: tuple[int, int]
) -> None:
    found = graph(op)
    assert float8_operands(found, product(found)[0]) == positions


def test_dims_that_are_no_multiple_of_16_and_other_precisions_stay_in_bfloat16() -> None:
    layer = ("aten.linear.default", (Ref("x"), Ref("w")), (OUT + 8, WIDTH))
    uneven, plain = graph(layer, OUT + 8), graph(layer, OUT + 8, "bf16-mixed")
    node, strategy, item = product(uneven)
    assert float8_operands(uneven, node) is None and op_launches(uneven, node) == (1, 1)
    assert float8_operands(graph(precision="bf16-mixed"), product(graph(precision="bf16-mixed"))[0]) is None
    device = ComputeModel(DEVICE)
    assert op_times_s(uneven, strategy, item, device) == op_times_s(plain, *product(plain)[1:], device)


def test_a_measurement_in_bfloat16_is_not_of_float8() -> None:
    found = graph()
    node, strategy, item = product(found)
    metas = [found.meta(ref) for ref in node.refs()]
    key = local_op_key(found, item, [meta.sizes for meta in metas], node.outputs[0].sizes, metas)
    timed = ComputeModel(
        DEVICE, Calibration(load_cluster("dgx-h100:1"), "nccl", "relative", (), {key: OpTime(1.0, 2.0)})
    )
    plain = graph(precision="bf16-mixed")
    assert op_times_s(plain, *product(plain)[1:], timed) == (1.0, 2.0)
    assert op_times_s(found, strategy, item, timed) != (1.0, 2.0)


def test_the_bound_of_the_work_is_that_of_one_device_without_launches() -> None:
    found = graph()
    _, strategy, item = product(found)
    one = Cluster("c", load_cluster("dgx-h100:1x1").levels, replace(DEVICE, op_overhead_s=0.0))
    bound_s = work_bound_s(lambda _: found, [ROWS], ROWS, one, None, optimizer="sgd")
    assert bound_s > sum(op_times_s(found, strategy, item, ComputeModel(one.device)))
    launched = replace(one, device=DEVICE)
    assert work_bound_s(lambda _: found, [ROWS], ROWS, launched, None, optimizer="sgd") == pytest.approx(bound_s)


def test_a_document_keeps_the_dtype_of_products() -> None:
    found = graph()
    read = from_dict(found.to_dict())
    assert read.graph_hash == found.graph_hash and float8_operands(read, product(read)[0]) == (0, 1)
    assert in_precision(read, "fp8-mixed") is read


@pytest.mark.parametrize("precision", [None, "bf16-mixed"])
def test_a_document_cannot_have_float8_products_in_another_precision(precision: str | None) -> None:
    """Trials of such a plan would compute in bfloat16 what is costed in float8."""
    document = graph().to_dict()
    if precision is not None:
        document["provenance"]["precision"] = precision
    with pytest.raises(InputError, match="fp8-mixed: parameters have product_dtype float8"):
        in_precision(from_dict(document), precision)
