"""Every primitive step, proved on virtual ranks: same tensor, same gradient, and the collectives that are charged."""

from __future__ import annotations

import random
from itertools import product

import pytest

from autosbp.sbp.boxing import (
    ACTIONS,
    PMAX,
    PMIN,
    is_even,
    layouts_of,
    message_bytes,
    nesting_orders,
    permute_peers,
    permuted_ranks,
    step_between,
    steps_among,
)
from autosbp.sbp.layout import B, I, NdSbp, P, S, Sbp, is_mesh_order, parse_nd_sbp, shard_index
from autosbp.sbp.mesh import Mesh
from autosbp.testing.virtual import plain_mesh
from autosbp.testing.virtual_boxing import check_paths

pytestmark = pytest.mark.integration

TENSORS = [((4,), (4, 8)), ((2, 2), (4, 8)), ((2, 3), (6, 12)), ((3, 2), (6, 12)), ((2, 2, 2), (8, 16, 2))]
IDS = ["x".join(map(str, mesh)) for mesh, _ in TENSORS]


@pytest.mark.parametrize(("sizes", "shape"), TENSORS, ids=IDS)
def test_steps_are_right_forward_and_backward(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Every kind of change over every set of axes, and a random sample of the contexts it happens in."""
    mesh = plain_mesh(*sizes)
    found = [step for _, _, step in steps_among(stops_of(shape, mesh), mesh)]
    rng = random.Random(0)
    rng.shuffle(found)
    nested = [step for step in found if any(step.dst.count(S(dim)) > 1 or step.src.count(S(dim)) > 1 for dim in (0, 1))]
    reordered = [step for step in found if not (is_mesh_order(step.src) and is_mesh_order(step.dst))]
    once = {(step.axes, step.forward, step.backward, step.src_dim, step.dst_dim): step for step in found}
    chosen = [*once.values(), *nested[:60], *reordered[:100], *found[:60]]
    check_paths([(step,) for step in chosen], shape, mesh)


def stops_of(shape: tuple[int, ...], mesh: Mesh) -> tuple[NdSbp, ...]:
    """Every even layout, in every order of nests."""
    return tuple(nesting for layout in layouts_of(shape, mesh, True) for nesting in nesting_orders(layout))


def test_steps_between_all_states_of_one_axis_are_the_table_of_actions() -> None:
    mesh = plain_mesh(2)
    states: list[Sbp] = [S(0), S(1), B, I, P]
    steps = [step_between((one,), (two,), mesh) for one, two in product(states, repeat=2) if one != two]
    assert all(steps)
    assert {(step.src[0].kind, step.dst[0].kind): (step.forward, step.backward) for step in steps if step} == ACTIONS


@pytest.mark.parametrize(
    ("src", "dst", "forward", "backward", "message"),
    [
        ("S0,B", "B,B", "all_gather", "reduce_scatter", 64),
        ("S0,S1", "S0,B", "all_gather", "reduce_scatter", 32),
        ("S0,S0", "B,B", "all_gather", "reduce_scatter", 64),
        ("S0,S0", "S0,S1", "all_to_all", "all_to_all", 16),
        ("P,S1", "S0,S1", "reduce_scatter", "all_gather", 32),
        ("P,P", "B,B", "all_reduce", "all_reduce", 64),
        ("P,S0", "I,S0", "all_reduce", "none", 32),
        ("I,S0", "B,S0", "none", "all_reduce", 32),
        ("S0,B", "B,S0", "p2p", "p2p", 32),
        ("S0,S0", "S0@1,S0@0", "p2p", "p2p", 16),
        ("S0@1,S0@0", "B,S0", "all_gather", "reduce_scatter", 32),
        ("B,S0", "S0@1,S0@0", "slice", "pad", 32),
    ],
)
def test_message_of_a_step_is_the_larger_local_tensor(
    src: str, dst: str, forward: str, backward: str, message: int
) -> None:
    mesh = plain_mesh(2, 2)
    step = step_between(parse_nd_sbp(src, in_path=True), parse_nd_sbp(dst, in_path=True), mesh)
    assert step is not None
    assert (step.forward, step.backward, message_bytes(step, 64, mesh)) == (forward, backward, message)


@pytest.mark.parametrize(
    ("sizes", "src", "dst"),
    [
        ((2, 2), "S0,S0", "B,S0"),  # the inner axis' shards are interleaved in the outer's
        ((2, 2), "S0,S0", "S1,S0"),
        ((2, 2), "B,S0", "S0,S0"),
        ((2, 2), "P,S0", "S0,S0"),
        ((2, 2), "S0@1,S0@0", "S0,B"),
        ((2, 2, 2), "S0@1,S0@0,S0@2", "S0,B,B"),  # the group's order is not the nest's
        ((2, 3, 4), "S0,S0,S0", "S0@2,S0@1,S0@0"),  # sizes differ, and they are no neighbours
        ((2, 2, 2), "S0,S0,S0", "B,S0,B"),
        ((2, 2, 2), "S0,S0,B", "B,S0,S0"),  # the exchanged axis would pass another that splits the same dim
        ((2, 3), "S0,B", "B,S0"),  # sizes differ: ranks cannot be exchanged
        ((2, 2), "S0,B", "B,S1"),  # two changes at once
        ((2,), "P", "Pmin"),
        ((2,), "Pmax", "I"),
        ((2,), "S0", "Pmax"),
        ((2, 2), "P,Pmax", "P,B"),  # a sum of maxima is no maximum of sums
        ((2,), "B", "B"),
    ],
)
def test_changes_that_are_no_single_step(sizes: tuple[int, ...], src: str, dst: str) -> None:
    assert step_between(parse_nd_sbp(src, in_path=True), parse_nd_sbp(dst, in_path=True), plain_mesh(*sizes)) is None


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (3, 2), (4, 6)])
def test_a_permute_sends_every_shard_to_its_place_in_the_other_nest(sizes: tuple[int, int]) -> None:
    mesh = plain_mesh(*sizes)
    src, dst = parse_nd_sbp("S0,S0"), parse_nd_sbp("S0@1,S0@0", in_path=True)
    step = step_between(src, dst, mesh)
    assert step is not None
    for rank in range(mesh.size):
        to, source = permuted_ranks(mesh, step.axes, rank)
        here, there = (shard_index(0, layout, mesh, mesh.coordinate(at)) for layout, at in ((src, rank), (dst, to)))
        assert here == there
        assert permuted_ranks(mesh, step.axes, to)[1] == rank
        assert permuted_ranks(mesh, step.backward_axes, rank) == (source, to)
        assert permute_peers(mesh, step.axes, rank) == tuple(sorted({rank, to, source}))


def test_a_permute_that_leads_to_a_nest_leads_back() -> None:
    mesh = plain_mesh(2, 3)
    src, dst = parse_nd_sbp("S0,S0"), parse_nd_sbp("S0@1,S0@0", in_path=True)
    there, back = step_between(src, dst, mesh), step_between(dst, src, mesh)
    assert there is not None and back is not None
    assert (there.axes, back.axes) == ((0, 1), (1, 0)) == (there.axes, there.backward_axes)


@pytest.mark.parametrize(("sizes", "shape"), TENSORS, ids=IDS)
def test_enumeration_finds_exactly_the_steps_between_even_layouts(
    sizes: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    mesh = plain_mesh(*sizes)
    layouts = stops_of(shape, mesh)
    found = {(one, two): step for one, two, step in steps_among(layouts, mesh)}
    rng = random.Random(0)
    for one, two in rng.sample(list(product(range(len(layouts)), repeat=2)), min(4000, len(layouts) ** 2)):
        assert found.get((one, two)) == step_between(layouts[one], layouts[two], mesh)


def _brute_layouts(shape: tuple[int, ...], mesh: Mesh, states: list[Sbp]) -> set[NdSbp]:
    kept = set()
    for layout in product(states, repeat=mesh.ndim):
        parts = list(shape)
        for axis, sbp in zip(mesh.axes, layout, strict=True):
            if sbp.is_split:
                parts[sbp.dim] = parts[sbp.dim] // axis.size if parts[sbp.dim] % axis.size == 0 else -1
        if all(part > 0 for part in parts):
            kept.add(layout)
    return kept


@pytest.mark.parametrize("shape", [(6, 4), (2, 9), (5, 7), (12,), ()])
def test_uneven_layouts_are_excluded_and_no_others(shape: tuple[int, ...]) -> None:
    mesh = plain_mesh(2, 3)
    splits: list[Sbp] = [S(dim) for dim in range(len(shape))]
    assert set(layouts_of(shape, mesh, True)) == _brute_layouts(shape, mesh, [*splits, B, I, P])
    assert set(layouts_of(shape, mesh, False)) == _brute_layouts(shape, mesh, [*splits, B, P])


def test_partial_maxima_and_minima_reduce_forward_and_have_no_backward() -> None:
    mesh = plain_mesh(2)
    for extreme in (PMAX, PMIN):
        found = {}
        for one, two in product((S(0), B, I, P, extreme), repeat=2):
            step = step_between((one,), (two,), mesh)
            if step is not None and extreme in (one, two):
                found[str(one), str(two)] = (step.forward, step.backward)
                assert step.reduction == extreme.reduction
        name = str(extreme)
        assert found == {
            (name, "B"): ("all_reduce", "none"),
            (name, "S0"): ("reduce_scatter", "none"),
            ("B", name): ("none", "none"),
        }


def test_dims_of_one_are_never_split_and_splits_of_absent_dims_are_not_even() -> None:
    mesh = plain_mesh(2)
    assert layouts_of((1, 4), mesh, False) == ((S(1),), (B,), (P,))
    assert not is_even((4, 4), (S(2),), mesh)
