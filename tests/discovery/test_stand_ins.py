"""Stand-ins: as small as the op accepts, with the relations between sizes that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from autosbp.discovery._call import Call, Tensor, make_call
from autosbp.discovery._samples import Undiscoverable
from autosbp.discovery._stand_ins import MAX_ELEMENTS, StandIn, num_elements, stand_in

Value = torch.Tensor


def call(op: Callable[..., Any], *args: Any) -> Call:
    """Tuples are shapes of float tensors; lists are attributes."""
    described = (Tensor(arg, torch.float64, True) if isinstance(arg, tuple) else arg for arg in args)
    return make_call(op, tuple(described), {}, lambda arg: arg if isinstance(arg, Tensor) else None)


def shapes(found: StandIn) -> list[tuple[int, ...]]:
    return [spec.shape for spec in found.call.tensors]


def test_equal_sizes_stay_equal_and_all_can_be_cut_in_2_and_3() -> None:
    found = stand_in(call(torch.matmul, (37, 4096, 8192), (8192, 28672)), [(37, 4096, 28672)])
    assert shapes(found) == [(6, 12, 18), (18, 24)]
    assert found.confirmation_call is not None
    assert [spec.shape for spec in found.confirmation_call.tensors] == [(12, 18, 24), (24, 30)]


def test_sizes_of_one_stay_one() -> None:
    assert shapes(stand_in(call(torch.add, (37, 1, 768), (1, 768)), [(37, 1, 768)])) == [(6, 1, 12), (1, 12)]


def test_a_size_that_is_an_attribute_shrinks_with_it() -> None:
    found = stand_in(call(lambda x, shape: x.reshape(shape), (37, 512), [37, 512, 1]), [(37, 512, 1)])
    assert shapes(found) == [(6, 12)]
    assert found.call.args[1] == (6, 12, 1)


def test_a_number_of_heads_divides_what_it_divided() -> None:
    def heads(x: Value, scale: Value, count: int) -> Value:
        batch, width = x.shape
        return (x.view(batch, count, width // count) * scale).reshape(batch, width)

    found = stand_in(call(heads, (37, 4096), (128,), 32), [(37, 4096)])
    (batch, width), (each,) = shapes(found)
    assert width == each * found.call.args[2]
    assert len({batch, width, each, found.call.args[2]}) == 4


def test_groups_of_heads_stay_whole_groups() -> None:
    def grouped(query: Value, key: Value) -> Value:
        if query.shape[1] % key.shape[1]:
            raise ValueError("expected whole groups of heads")
        return query * key.repeat_interleave(query.shape[1] // key.shape[1], 1)

    (_, heads, _), (_, groups, _) = shapes(stand_in(call(grouped, (37, 32, 128), (37, 8, 128)), [(37, 32, 128)]))
    assert heads % groups == 0
    assert heads > groups


def test_sums_stay_sums() -> None:
    def joined(one: Value, two: Value) -> Value:
        return torch.cat((one, two), 1)

    assert shapes(stand_in(call(joined, (37, 100), (37, 412)), [(37, 512)])) == [(6, 12), (6, 18)]


def test_an_op_that_accepts_its_own_sizes_only_keeps_them_where_they_are_small() -> None:
    def fixed(x: Value) -> Value:
        return x.view(-1, 1280) * 2

    def real(batch: int, width: int) -> tuple[Call, list[tuple[int, int]]]:
        return call(fixed, (batch, width)), [(batch, width)]

    found = stand_in(*real(37, 1280), real(12, 1280))
    assert (shapes(found), found.confirmation_call) == ([(12, 1280)], None)
    with pytest.raises(
        Undiscoverable, match="cannot be tested on small inputs: it fails on random inputs: RuntimeError"
    ):
        stand_in(*real(37, 1280 * 1024), real(12, 1280 * 1024))


def test_stand_ins_are_never_large() -> None:
    def twice(*sizes: int) -> StandIn:
        return stand_in(call(lambda x: x * 2, sizes), [sizes])

    found = twice(200, 400, 800, 1600, 3200)
    assert shapes(found) == [(2, 4, 6, 8, 10)], "by 6, they would have millions of elements"
    assert found.confirmation_call is not None
    assert num_elements(found.call) < num_elements(found.confirmation_call) <= MAX_ELEMENTS
    with pytest.raises(Undiscoverable, match="cannot be tested on small inputs: it has too many dims"):
        twice(*(100 * 2**at for at in range(8)))


def test_a_wrong_shape_of_an_output_is_noticed() -> None:
    with pytest.raises(Undiscoverable, match="returns shapes"):
        stand_in(call(lambda x: x.sum(0), (37, 6)), [(37, 6)])
