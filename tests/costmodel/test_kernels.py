"""Kernels of a training program: what fuses, and bytes and FLOPs forward and backward, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from autosbp.costmodel.efficiency import MatmulShape
from autosbp.costmodel.fusion import fused_ops
from autosbp.costmodel.kernels import FORWARD, INPUT, WEIGHT, Kernel, program_kernels
from autosbp.costmodel.local_op_work import LocalOpWork
from autosbp.graph.ir import Input, LogicalGraph, Node, Parameter, Ref, TensorMeta
from autosbp.program.program import program_items
from tests.costmodel.memory.programs import on_one_device

ROWS, WIDTH, OUT = 8, 16, 32
X, Y = 2 * ROWS * WIDTH, 2 * ROWS * OUT  # bytes of bfloat16 activations
W, BIAS = 2 * OUT * WIDTH, 2 * OUT
FLOPS = 2.0 * ROWS * WIDTH * OUT


def meta(*shape: int, dtype: str = "bfloat16") -> TensorMeta:
    return TensorMeta(shape, dtype)


def node(name: str, op: str, *args: object, shape: tuple[int, ...] = (ROWS, OUT)) -> Node:
    refs = tuple(Ref(arg) if isinstance(arg, str) else arg for arg in args)
    return Node(name, f"aten.{op}", refs, {}, (meta(*shape),))


def graph(*nodes: Node, parameters: Mapping[str, tuple[int, ...]], sources: Mapping[str, str]) -> LogicalGraph:
    """Of an input ``x``; the last node is summed to the loss."""
    loss = Node("loss", "aten.sum.default", (Ref(nodes[-1].name),), {}, (meta(),))
    leaves = tuple(Parameter(name, meta(*shape), sources.get(name, name)) for name, shape in parameters.items())
    return LogicalGraph("g", {}, leaves, (Input("x", meta(ROWS, WIDTH)),), (), (*nodes, loss), Ref("loss"))


def kernels(found: LogicalGraph) -> dict[str, tuple[Kernel, ...]]:
    """On one device, by the ops of each group."""
    strategy = on_one_device(found, ROWS, ROWS)
    items = tuple(program_items(found, strategy))
    groups = fused_ops(found, items)
    made = program_kernels(LocalOpWork(found, strategy, items), groups)
    return {" ".join(item.node.name for item in group): made[group[0].node.name] for group in groups}


def moved(found: tuple[Kernel, ...]) -> list[tuple[str, float]]:
    return [(kernel.part, kernel.num_bytes) for kernel in found]


def test_a_product_has_one_more_for_each_gradient_and_adds_up_gradients_of_parameters() -> None:
    found = kernels(
        graph(
            node("h", "linear.default", "x", "v", shape=(ROWS, WIDTH)),
            node("y", "linear.default", "h", "w", "b"),
            parameters={"v": (WIDTH, WIDTH), "w": (OUT, WIDTH), "b": (OUT,)},
            sources={},
        )
    )["y"]
    assert found == (
        Kernel(FORWARD, "bfloat16", FLOPS, X + W + BIAS + Y, MatmulShape(1, ROWS, OUT, Y)),
        Kernel(INPUT, "bfloat16", FLOPS, Y + W + X, MatmulShape(1, ROWS, WIDTH, X)),
        Kernel(WEIGHT, "bfloat16", FLOPS, Y + X + W, MatmulShape(1, OUT, WIDTH, W)),
        Kernel(WEIGHT, "bfloat16", 0.0, Y + BIAS),
        Kernel(WEIGHT, "bfloat16", 0.0, 3 * W),
        Kernel(WEIGHT, "bfloat16", 0.0, 3 * BIAS),
    )


def test_the_first_product_of_a_batch_has_no_gradient_of_its_input() -> None:
    found = kernels(graph(node("y", "linear.default", "x", "w"), parameters={"w": (OUT, WIDTH)}, sources={}))["y"]
    assert [kernel.part for kernel in found] == [FORWARD, WEIGHT, WEIGHT]


def test_dropout_and_residual_sum_are_one_pass_that_leaves_a_mask() -> None:
    found = kernels(
        graph(
            node("h", "linear.default", "x", "w"),
            node("y", "linear.default", "h", "v"),
            node("d", "dropout.default", "y", 0.1, True),
            node("z", "add.Tensor", "d", "h"),
            parameters={"w": (OUT, WIDTH), "v": (OUT, OUT)},
            sources={},
        )
    )
    mask = Y / 2
    assert list(found) == ["h", "y", "d z", "loss"]
    # Forward reads y and h and writes z and the mask; backward takes z's gradient and the mask to y's. That of h is z's.
    assert moved(found["d z"]) == [(FORWARD, 3 * Y + mask), (INPUT, Y + mask + Y)]
    # h is read twice: its two gradients are added up.
    assert moved(found["h"])[-2:] == [(INPUT, 3 * Y), (WEIGHT, 3 * W)]


def test_a_softmax_ends_a_chain() -> None:
    found = kernels(
        graph(
            node("y", "linear.default", "x", "w"),
            node("m", "mul.Tensor", "y", 0.5),
            node("s", "softmax.int", "m", -1),
            node("d", "dropout.default", "s", 0.1, True),
            parameters={"w": (OUT, WIDTH)},
            sources={},
        )
    )
    assert list(found) == ["y", "m s", "d", "loss"]
    # Backward reads the gradient and the kept result, not y: a number is the other factor.
    assert moved(found["m s"]) == [(FORWARD, 2 * Y), (INPUT, 3 * Y)]


def test_a_value_that_is_read_twice_does_not_fuse() -> None:
    found = kernels(
        graph(
            node("y", "linear.default", "x", "w"),
            node("r", "relu.default", "y"),
            node("z", "mul.Tensor", "r", "r"),
            node("q", "add.Tensor", "z", "r"),
            parameters={"w": (OUT, WIDTH)},
            sources={},
        )
    )
    assert list(found) == ["y", "r", "z q", "loss"]


@pytest.mark.parametrize(("sources", "groups"), [({"w": "qk", "v": "qk"}, ["h", "y z"]), ({}, ["h", "y", "z"])])
def test_parts_of_one_stored_weight_are_one_product(sources: dict[str, str], groups: list[str]) -> None:
    found = kernels(
        graph(
            node("h", "linear.default", "x", "u", shape=(ROWS, WIDTH)),
            node("y", "linear.default", "h", "w"),
            node("z", "linear.default", "h", "v"),
            node("q", "mul.Tensor", "y", "z"),
            parameters={"u": (WIDTH, WIDTH), "w": (OUT, WIDTH), "v": (OUT, WIDTH)},
            sources=sources,
        )
    )
    assert list(found)[: len(groups)] == groups
    if sources:
        assert found["y z"][0] == Kernel(
            FORWARD, "bfloat16", 2 * FLOPS, X + 2 * W + 2 * Y, MatmulShape(1, ROWS, 2 * OUT, 2 * Y)
        )
        assert found["y z"][1].result == MatmulShape(1, ROWS, WIDTH, X)


def test_products_of_activations_are_one_matrix_for_each_leading_index() -> None:
    shape = (3, 4, ROWS, ROWS)
    found = kernels(
        graph(
            node("y", "linear.default", "x", "w", shape=(ROWS, 12 * ROWS)),
            node("q", "reshape.default", "y", shape, shape=shape),
            node("s", "matmul.default", "q", "q", shape=shape),
            parameters={"w": (12 * ROWS, WIDTH)},
            sources={},
        )
    )
    assert found["s"][0].result == MatmulShape(12, ROWS, ROWS, 2 * 12 * ROWS * ROWS)
