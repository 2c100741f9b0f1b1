"""The shape formulas agree with torch, and refuse what torch refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autosbp.errors import GraphError
from autosbp.graph.ir import Node, Ref, TensorMeta
from autosbp.graph.shape_inference import check_shape
from autosbp.graph.to_fx import resolve_op

SMALL = st.integers(1, 4)
PAIR = st.one_of(st.tuples(SMALL, SMALL), st.tuples(SMALL))
SIDE = st.integers(4, 12)


def agrees(op: str, shapes: list[tuple[int, ...]], *args: Any) -> None:
    """The op's real output shape passes; one that differs by one does not. ``None`` in args stands for a tensor."""
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    given_args = [*tensors, *args] if op != "cat.default" else [tensors, *args]
    try:
        out = resolve_op(f"aten.{op}")(*given_args)
    except (RuntimeError, IndexError):
        assume(False)
    metas = [TensorMeta(shape, "float32") for shape in shapes]
    refs: tuple[Any, ...] = tuple(Ref(f"t{at}") for at in range(len(shapes)))
    refs = (refs,) if op == "cat.default" else refs

    def node(shape: tuple[int, ...]) -> Node:
        return Node("n", f"aten.{op}", (*refs, *args), {}, (TensorMeta(shape, "float32"),))

    check_shape(node(tuple(out.shape)), metas)
    wrong = (*out.shape[:-1], out.shape[-1] + 1) if out.dim() else (1,)
    with pytest.raises(GraphError, match=r"n\.outputs\[0\]\.shape"):
        check_shape(node(wrong), metas)


@settings(deadline=None)
@given(SIDE, SIDE, st.tuples(SMALL, SMALL), PAIR, PAIR, PAIR)
def test_convolution(
    height: int, width: int, kernel: tuple[int, int], stride: Any, padding: Any, dilation: Any
) -> None:
    shapes = [(2, 3, height, width), (5, 3, *kernel), (5,)]
    agrees("conv2d.default", shapes, stride, padding, dilation)


@settings(deadline=None)
@given(SIDE, st.sampled_from(["same", "valid"]), st.tuples(SMALL, SMALL), st.tuples(SMALL, SMALL))
def test_convolution_with_padding_in_words(side: int, padding: str, kernel: Any, dilation: Any) -> None:
    agrees("conv2d.padding", [(2, 4, side, side), (6, 2, *kernel), (6,)], (1, 1), padding, dilation, 2)


@settings(deadline=None)
@given(SIDE, SIDE, PAIR, PAIR, st.tuples(st.integers(0, 2), st.integers(0, 2)), PAIR, st.booleans())
def test_max_pool(height: int, width: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> None:
    agrees("max_pool2d.default", [(2, 3, height, width)], kernel, stride, padding, dilation, ceil)


@settings(deadline=None)
@given(SIDE, SIDE, PAIR, PAIR, st.tuples(st.integers(0, 2), st.integers(0, 2)), st.booleans())
def test_average_pool(height: int, width: int, kernel: Any, stride: Any, padding: Any, ceil: bool) -> None:
    agrees("avg_pool2d.default", [(2, 3, height, width)], kernel, stride, padding, ceil)


@settings(deadline=None)
@given(st.integers(-3, 2), st.integers(-9, 9), st.none() | st.integers(-9, 9), st.integers(1, 3))
def test_slice(dim: int, start: int, stop: int | None, step: int) -> None:
    agrees("slice.Tensor", [(4, 5, 6)], dim, start, stop, step)


@settings(deadline=None)
@given(st.integers(-2, 1), st.integers(1, 4), st.integers(1, 4))
def test_cat(dim: int, one: int, two: int) -> None:
    shapes = [(one, 3), (two, 3)] if dim % 2 == 0 else [(3, one), (3, two)]
    agrees("cat.default", shapes, dim)


@settings(deadline=None)
@given(st.lists(st.integers(-1, 3), min_size=2, max_size=4).filter(lambda widths: len(widths) % 2 == 0))
def test_pad(widths: list[int]) -> None:
    agrees("constant_pad_nd.default", [(3, 4, 5)], tuple(widths), 0)


@settings(deadline=None)
@given(st.lists(st.integers(-3, 2), min_size=1, max_size=2, unique_by=lambda dim: dim % 3), st.booleans())
def test_sum(dims: list[int], keep: bool) -> None:
    agrees("sum.dim_IntList", [(3, 4, 5)], tuple(dims), keep)


@pytest.mark.parametrize(
    ("op", "shapes", "args"),
    [
        ("sum.default", [(3, 4)], ()),
        ("adaptive_avg_pool2d.default", [(2, 3, 8, 8)], ((2, 4),)),
        ("reshape.default", [(3, 4)], ((2, 6),)),
        ("expand.default", [(1, 4)], ((3, 4),)),
        ("softmax.int", [(3, 4)], (1,)),
        ("to.dtype", [(3, 4)], (torch.float32,)),
    ],
)
def test_other_ops(op: str, shapes: list[tuple[int, ...]], args: tuple[Any, ...]) -> None:
    agrees(op, shapes, *args)


def test_an_op_without_a_formula_is_left_to_its_rule() -> None:
    check_shape(Node("n", "aten.relu.default", (Ref("x"),), {}, (TensorMeta((3,), "float32"),)), [])
