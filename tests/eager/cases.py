"""What holds of placed tensors: each case runs on every one of four ranks; its name is the fact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from autosbp import eager
from autosbp.eager import PlacedTensor, Placement, _call_programs, distribute, from_local, recording
from autosbp.errors import InputError, UnsupportedError
from autosbp.sbp.layout import format_nd_sbp

Case = Callable[["World"], None]
CASES: dict[str, Case] = {}
F64 = torch.float64


class World:
    """The placements that cases share."""

    def __init__(self) -> None:
        self.first, self.second = Placement([0, 1]), Placement([2, 3])
        self.every = Placement([0, 1, 2, 3])
        self.square = Placement([0, 1, 2, 3], (2, 2), ("node", "gpu"))
        self.three, self.alone = Placement([1, 2, 3]), Placement([3])


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def layout(tensor: Any) -> str:
    return format_nd_sbp(tensor.layout)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=F64)


def backward(loss: Any) -> None:
    loss.backward()


def same(tensor: Any, wanted: torch.Tensor) -> None:
    assert isinstance(tensor, PlacedTensor)
    assert tuple(tensor.shape) == tuple(wanted.shape)
    assert tensor.dtype == wanted.dtype
    full = tensor.detach().full()
    assert (full is None) == (tensor.placement.runtime is None)
    if full is not None:
        torch.testing.assert_close(full, wanted.detach(), rtol=1e-9, atol=1e-12)


def same_gradient(leaf: PlacedTensor, wanted: torch.Tensor) -> None:
    """Whole, though ranks may have parts of the sum."""
    gradient = leaf.grad
    if leaf.placement.runtime is None:
        assert gradient is None
        return
    assert gradient is not None
    same(gradient, wanted)


def check(
    function: Callable[..., Any], operands: list[tuple[torch.Tensor, str]], placement: Placement, expected: str = ""
) -> Any:
    """A function of tensors in these layouts equals one device's, and so do all gradients."""
    wholes = [tensor.clone().requires_grad_() for tensor, _ in operands]
    leaves = [distribute(tensor, placement, sbp, requires_grad=True) for tensor, sbp in operands]
    wanted, got = function(*wholes), function(*leaves)
    same(got, wanted)
    if expected:
        assert layout(got) == expected, layout(got)
    weight = rand(*wanted.shape)
    backward((wanted * weight).sum())
    got.backward(distribute(weight, placement, "B"))
    for whole, leaf in zip(wholes, leaves, strict=True):
        assert whole.grad is not None
        same_gradient(leaf, whole.grad)
    return got


@case
def the_program_of_table_4_runs_on_two_placements_and_equals_one_device(world: World) -> None:
    wholes = [rand(*shape).requires_grad_() for shape in ((4, 5), (5, 8), (8, 6))]
    a0, b0 = (
        distribute(whole, world.first, sbp, requires_grad=True)
        for whole, sbp in zip(wholes[:2], ("S0", "B"), strict=True)
    )
    y0: Any = torch.matmul(a0, b0)
    assert layout(y0) == "S0"
    assert y0.placement == world.first
    moved = y0.to_layout(world.second, "B")
    b1 = distribute(wholes[2], world.second, "S1", requires_grad=True)
    y2: Any = torch.matmul(moved, b1)
    assert (layout(moved), layout(y2)) == ("B", "S1")
    here = world.second.runtime is not None
    assert (None if y2.local is None else tuple(y2.local.shape)) == ((4, 3) if here else None)
    wanted = wholes[0] @ wholes[1] @ wholes[2]
    same(y2, wanted)
    loss: Any = (y2 * y2).sum()
    backward(loss)
    one: Any = wanted.square().sum()
    one.backward()
    for leaf, whole in zip((a0, b0, b1), wholes, strict=True):
        assert whole.grad is not None
        same_gradient(leaf, whole.grad)


@case
def a_product_takes_every_row_of_table_1_as_it_is_and_sends_nothing(world: World) -> None:
    x, w = rand(8, 12), rand(12, 16)
    rows = [("S0", "B", "S0"), ("B", "S1", "S1"), ("S1", "S0", "P"), ("P", "B", "P"), ("B", "P", "P"), ("B", "B", "B")]
    for left, right, expected in rows:
        with recording() as sent:
            got: Any = distribute(x, world.every, left) @ distribute(w, world.every, right)
        assert (layout(got), sent) == (expected, [])
        same(got, x @ w)
        check(torch.matmul, [(x, left), (w, right)], world.every, expected)


@case
def two_dimensional_rows_of_table_3_are_taken_as_they_are(world: World) -> None:
    x, w = rand(8, 12), rand(12, 16)
    check(torch.matmul, [(x, "S0,B"), (w, "B,S1")], world.square, "S0,S1")
    check(torch.matmul, [(x, "S0,S1"), (w, "B,S0")], world.square, "S0,P")


@case
def a_partial_product_stays_partial_through_the_next_product(world: World) -> None:
    u, v, w = (
        distribute(rand(*shape), world.every, sbp) for shape, sbp in (((8, 16), "S1"), ((16, 12), "S0"), ((12, 4), "B"))
    )
    with recording() as sent:
        y: Any = u @ v @ w
        assert (layout(y), sent) == ("P", [])
        y.to_layout(world.every, "B")
    halves = [call.kind for call in sent]
    assert halves in (["all_reduce"], ["reduce_scatter", "all_gather"])
    assert {call.num_bytes for call in sent} == {8 * 4 * 8}


@case
def operands_are_boxed_as_cheaply_as_there_is(world: World) -> None:
    x, y = rand(8, 8), rand(8, 8)
    with recording() as sent:
        got: Any = distribute(x, world.every, "S0") + distribute(y, world.every, "B")  # a local cut is cheaper
    assert (layout(got), sent) == ("S0", [])
    with recording() as sent:
        got = distribute(rand(64, 8), world.every, "S0") @ distribute(
            y, world.every, "S0"
        )  # the smaller one is gathered
    assert layout(got) == "S0"
    assert [(call.kind, call.num_bytes) for call in sent] == [("all_gather", 8 * 8 * 8)]
    with recording() as sent:
        torch.relu(distribute(x, world.every, "P"))
    assert [call.kind for call in sent] in (["reduce_scatter"], ["all_reduce"])


@case
def gradients_equal_one_devices_in_every_layout(world: World) -> None:
    for sbp in ("S0", "S1", "B", "I", "P"):
        check(torch.relu, [(rand(8, 12), sbp)], world.every)
        check(lambda x: (x * x).sum(), [(rand(8, 12), sbp)], world.every)
        check(lambda x: torch.softmax(x, -1), [(rand(8, 12), sbp)], world.every)
        check(lambda x: x.transpose(0, 1).reshape(4, 3, 8)[:, 1:], [(rand(8, 12), sbp)], world.every)
    check(torch.mul, [(rand(8, 12), "S0"), (rand(12), "B")], world.every, "S0")
    check(torch.mul, [(rand(12, 12), "S1,S0"), (rand(12), "S0,B")], world.square)


@case
def networks_with_losses_over_split_classes_equal_one_device(world: World) -> None:
    labels = torch.randint(0, 16, (8,))

    def network(x: Any, w: Any, bias: Any, head: Any) -> Any:
        hidden = functional.gelu(functional.linear(x, w, bias))
        hidden = functional.layer_norm(hidden, (12,))
        return functional.cross_entropy(functional.linear(hidden, head), labels)

    shapes = ((8, 20), (12, 20), (12,), (16, 12))
    for layouts in (("S0", "B", "B", "B"), ("B", "S0", "S0", "S1"), ("B", "B", "B", "S0"), ("S1", "S1", "B", "S0")):
        check(network, [(rand(*shape), sbp) for shape, sbp in zip(shapes, layouts, strict=True)], world.every)
    check(
        network,
        [(rand(*shape), sbp) for shape, sbp in zip(shapes, ("S0,B", "B,S0", "B,S0", "B,S1"), strict=True)],
        world.square,
    )


@case
def tensors_and_gradients_go_between_placements_and_back(world: World) -> None:
    places = [world.first, world.second, world.three, world.alone, world.square, world.every]
    x, w = rand(12, 12), rand(12, 12)
    whole, weight = x.clone().requires_grad_(), w.clone().requires_grad_()
    leaf = distribute(x, world.first, "S0", requires_grad=True)
    current: Any = leaf
    for place, sbp in zip(places, ("S0", "B", "P", "B", "S0,S1", "S1"), strict=True):
        current = current.to_layout(place, sbp)
        assert layout(current) == sbp
        same(current, x)
    there = distribute(w, world.every, "S0", requires_grad=True)
    loss = (current @ there).square().sum()
    backward(loss)
    backward((whole @ weight).square().sum())
    assert whole.grad is not None
    assert weight.grad is not None
    same_gradient(leaf, whole.grad)
    same_gradient(there, weight.grad)


@case
def a_loss_made_of_the_full_tensor_on_every_rank_has_the_gradient_of_one_device(world: World) -> None:
    x, w = rand(8, 12), rand(12, 4)
    leaf = distribute(x, world.every, "S1", requires_grad=True)
    product: Any = leaf @ distribute(w, world.every, "S0")
    full = product.full()
    assert full is not None
    assert type(full) is torch.Tensor
    backward(full.square().sum())
    whole = x.clone().requires_grad_()
    backward((whole @ w).square().sum())
    assert whole.grad is not None
    same_gradient(leaf, whole.grad)


@case
def gradients_lie_as_the_algebra_says_and_add_up(world: World) -> None:
    for sbp, wanted in (("S0", "S0"), ("B", "P"), ("I", "B"), ("P", "B")):
        leaf = eager.ones(8, 4, placement=world.every, sbp=sbp, dtype=F64, requires_grad=True)
        for _ in range(2):
            backward((leaf * 3.0).sum())
        assert leaf.grad is not None
        assert layout(leaf.grad) == wanted
        same(leaf.grad, torch.full((8, 4), 6.0, dtype=F64))


@case
def local_parts_become_tensors_to_which_gradients_go(world: World) -> None:
    rank = torch.distributed.get_rank()
    part = torch.full((2, 3), float(rank), dtype=F64, requires_grad=True)
    tensor = from_local(part, world.second, "S0")
    assert tuple(tensor.shape) == (4, 3)
    same(tensor, torch.tensor([2.0, 2.0, 3.0, 3.0], dtype=F64)[:, None].expand(4, 3))
    backward((tensor * tensor).sum())
    expected = 2.0 * rank if rank > 1 else None
    assert (None if part.grad is None else float(part.grad[0, 0])) == expected
    same(from_local(torch.ones(3), world.every, "P"), torch.full((3,), 4.0))
    same(from_local(torch.tensor([rank]), world.every, "Pmax"), torch.tensor([3]))


@case
def functions_may_return_several_tensors_integers_and_take_plain_tensors(world: World) -> None:
    x = rand(8, 12)
    values, places = torch.topk(distribute(x, world.every, "S0"), 3)
    wanted = torch.topk(x, 3)
    same(values, wanted.values)
    same(places, wanted.indices)
    assert layout(values) == layout(places) == "S0"
    halves = torch.split(distribute(x, world.every, "S0"), 6, 1)
    assert isinstance(halves, tuple)
    same(halves[1], x[:, 6:])
    mask = torch.tensor([True, False]).repeat(6)
    same(torch.where(mask, distribute(x, world.every, "S1"), 0.0), torch.where(mask, x, 0.0))
    table, ids = rand(16, 8), torch.randint(0, 16, (4, 2))
    check(lambda t: functional.embedding(ids, t), [(table, "S0")], world.every, "P")
    same(distribute(x, world.every, "S1").argmax(0), x.argmax(0))
    same(torch.cat([distribute(x, world.every, "S0"), distribute(x, world.every, "S0")], 1), torch.cat([x, x], 1))
    same(distribute(x, world.every, "S0").to(torch.float32), x.float())


@case
def equal_calls_are_traced_once(world: World) -> None:
    x = distribute(rand(8, 20), world.every, "S0")
    before = len(_call_programs._program_cache)
    for _ in range(3):
        torch.sigmoid(x)
    assert len(_call_programs._program_cache) == before + 1
    torch.sigmoid(x.to_layout(world.every, "B"))
    assert len(_call_programs._program_cache) == before + 2
    x.clamp(0)
    x.clamp(0.0)
    assert len(_call_programs._program_cache) == before + 4


@case
def nothing_is_tracked_without_gradients(world: World) -> None:
    leaf = distribute(rand(8, 4), world.every, "I", requires_grad=True)
    with torch.no_grad():
        got: Any = leaf * 2
        moved = leaf.to_layout(world.every, "S0")
    assert (got.requires_grad, moved.requires_grad, layout(got)) == (False, False, "B")
    assert not leaf.detach().requires_grad
    with pytest.raises(InputError, match="requires a gradient"):
        backward(got.sum())


@case
def dropout_draws_anew_each_time_and_alike_on_replicas(world: World) -> None:
    x = eager.ones(64, 8, placement=world.every, sbp="B")
    one, two = functional.dropout(x, 0.5), functional.dropout(x, 0.5)
    parts = [each.local for each in (one, two)]  # type: ignore[attr-defined]
    assert not torch.equal(*parts)
    everyone: list[Any] = [None] * 4
    torch.distributed.all_gather_object(everyone, parts)
    assert all(torch.equal(parts[0], other[0]) for other in everyone)
    split: Any = functional.dropout(x.to_layout(world.every, "S0"), 0.5)
    torch.distributed.all_gather_object(everyone, split.local)
    assert not torch.equal(everyone[0], everyone[1])


@case
def facts_are_answered_on_every_process(world: World) -> None:
    x = eager.randn(4, 6, placement=world.alone, sbp="B")
    assert (x.shape, x.dim(), x.numel(), len(x), x.dtype) == ((4, 6), 2, 24, 4, torch.float32)
    assert "layout=B, placement=[3]" in repr(x)
    assert repr(world.square) == "Placement([0, 1, 2, 3], {node: 2, gpu: 2})"
    same(eager.zeros(4, placement=world.alone, sbp="S0"), torch.zeros(4))


@case
def operands_on_different_placements_are_told_to_call_to_layout(world: World) -> None:
    with pytest.raises(InputError, match="call to_layout") as caught:
        torch.matmul(
            eager.ones(4, 4, placement=world.first, sbp="B"), eager.ones(4, 4, placement=world.second, sbp="B")
        )
    assert caught.value.field == "placement"


@case
def bad_layouts_name_the_value_and_what_is_expected(world: World) -> None:
    def refused(sbp: Any, field: str, limit: str, placement: Placement = world.every, **more: Any) -> None:
        with pytest.raises(InputError) as caught:
            eager.ones(8, 6, placement=placement, sbp=sbp, **more)
        assert (caught.value.field, limit in caught.value.limit) == (field, True), str(caught.value)

    refused("split", "sbp", "S<dim>, B, I, P")
    refused("S2", "layout", "splits of 2 dims")
    refused("S1", "dim 1", "a multiple of 4")
    refused("S0,B", "sbp", "one for each of 1 axes")
    refused("S0,B,B", "sbp", "one for each of 2 axes", world.square)
    refused("Pmax", "sbp", "from_local")
    refused(3, "sbp", "expected text such as")
    refused("P", "sbp", "no partial sums", dtype=torch.bool)
    with pytest.raises(InputError, match="expected a Placement"):
        eager.ones(8, placement=world.every, sbp="B").to_layout("B", "B")  # type: ignore[arg-type]


@case
def meshes_that_do_not_fit_are_refused(world: World) -> None:  # noqa: ARG001 - a case like others
    for field, arguments in {
        "ranks": ([0, 4],), "shape": ([0, 1, 2, 3], (3, 1)), "names": ([0, 1], (2,), ("a", "b")),
    }.items():  # fmt: skip
        with pytest.raises(InputError) as caught:
            Placement(*arguments)  # type: ignore[arg-type]
        assert caught.value.field == field
    for ranks in ([1, 0], [1, 1], []):
        with pytest.raises(InputError, match="ascending"):
            Placement(ranks)


@case
def what_needs_values_or_changes_in_place_is_refused(world: World) -> None:
    x = eager.ones(4, placement=world.every, sbp="S0")
    for attempt in (lambda: float(x.sum()), lambda: x.add_(1), lambda: x.tolist(), lambda: bool(x.sum() > 0)):
        with pytest.raises(UnsupportedError):
            attempt()
    with pytest.raises(UnsupportedError, match="distribute it first"):
        x * torch.ones(4, requires_grad=True)
    with pytest.raises(InputError, match="a gradient of shape"):
        backward(distribute(torch.ones(4), world.every, "S0", requires_grad=True))
