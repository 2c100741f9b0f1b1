"""Tensors without data: views, what autograd keeps, and when memory is freed, against counts by hand."""

from __future__ import annotations

import pytest

from autosbp.costmodel.memory.autograd import GradientLeaf, MetaAutograd
from autosbp.costmodel.memory.meta_tensors import MemoryMeter, MetaTensor, contiguous, dense_strides_like, view_strides
from autosbp.costmodel.memory.pointwise import UNARY, binary, unary
from autosbp.costmodel.memory.views import permute, reshape, slice_view


@pytest.mark.parametrize(
    ("shape", "strides", "target", "expected"),
    [
        ((4, 6), (6, 1), (24,), (1,)),
        ((4, 6), (6, 1), (2, 2, 3, 2), (12, 6, 2, 1)),
        ((6, 4), (1, 6), (24,), None),
        ((2, 3, 4), (4, 8, 1), (2, 3, 2, 2), (4, 8, 2, 1)),
        ((2, 3, 4), (4, 8, 1), (6, 4), None),
        ((2, 1, 4), (4, 99, 1), (8,), (1,)),
        ((3, 5), (0, 0), (15,), (0,)),
    ],
)
def test_a_reshape_is_a_view_where_torch_makes_one(
    shape: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    assert view_strides(shape, strides, target) == expected


def test_an_elementwise_result_has_its_dims_in_the_order_of_memory_of_its_input() -> None:
    assert dense_strides_like((2, 3, 4), (4, 8, 1)) == (4, 8, 1)
    assert dense_strides_like((3, 4), (8, 1)) == contiguous((3, 4))
    assert dense_strides_like((3, 4), (0, 1)) == contiguous((3, 4))


def leaf(m: MetaAutograd, found: list[MetaTensor], elements: int = 256) -> MetaTensor:
    tensor = m.new((elements,), 4, purpose="parameters")
    tensor.node = GradientLeaf(found.append)
    return tensor


def test_memory_is_freed_when_the_last_view_is_gone() -> None:
    meter = MemoryMeter()
    m = MetaAutograd(meter)
    view = permute(m, m.new((4, 8), 4), (1, 0))
    assert meter.live == 128
    copy = reshape(m, view, (32,))
    assert meter.live == 256
    del view
    assert meter.live == 128
    del copy
    assert meter.live == 0
    assert meter.peak == 256


def test_backward_frees_what_each_op_kept_as_it_passes() -> None:
    meter, found = MemoryMeter(), list[MetaTensor]()
    m = MetaAutograd(meter)
    x = leaf(m, found)
    y = unary(m, unary(m, x, UNARY["aten.exp.default"]), UNARY["aten.tanh.default"])
    assert meter.kept == 2 * 1024
    assert meter.live == 3 * 1024
    m.backward(y, m.empty_like(y))
    del y
    # The last op's gradient beside the gradient that it came from, both results and the input.
    assert meter.peak == 5 * 1024
    assert meter.kept == 0
    assert meter.live == 2 * 1024
    assert len(found) == 1


def test_gradients_of_several_readers_are_added_in_place_unless_watched() -> None:
    peaks = []
    for in_place in (True, False):
        meter, found = MemoryMeter(), list[MetaTensor]()
        m = MetaAutograd(meter, sums_in_place=in_place)
        x = leaf(m, found)
        total = binary(m, "aten.add.Tensor", slice_view(m, x, (64,)), slice_view(m, x, (64,)), 4)
        m.backward(total, m.empty_like(total))
        peaks.append(meter.peak)
        assert found[0].shape == (256,)
    # The input, the sum of parts, its gradient, and a whole gradient from each part; or, without the sum's gradient,
    # both and what they add up to.
    assert peaks == [3 * 1024 + 2 * 256, 4 * 1024 + 256]


def test_a_sum_hands_one_gradient_to_both_of_its_inputs() -> None:
    meter, found = MemoryMeter(), list[MetaTensor]()
    m = MetaAutograd(meter)
    one, two = leaf(m, found), leaf(m, found)
    total = binary(m, "aten.add.Tensor", one, two, 4)
    m.backward(total, m.empty_like(total))
    assert found[0].storage is found[1].storage
    assert meter.peak == 4 * 1024
