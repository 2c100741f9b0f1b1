"""Sbp as text, as torch placements, and as shards: lossless where both sides can say it, refused where not."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from autosbp.errors import InputError
from autosbp.executor.parameter_shards import shard, unshard
from autosbp.sbp.layout import (
    MAX_DIM,
    B,
    I,
    NdSbp,
    P,
    S,
    Sbp,
    format_nd_sbp,
    gradient_sbp,
    local_shape,
    parse_nd_sbp,
    parse_sbp,
    shard_index,
    to_torch,
)
from autosbp.testing.virtual import plain_mesh

PMAX, PMIN = Sbp("P", reduction="max"), Sbp("P", reduction="min")
ALL = [*(S(dim) for dim in range(MAX_DIM + 1)), B, I, P, PMAX, PMIN]


@pytest.mark.parametrize("sbp", ALL, ids=str)
def test_text_is_read_back(sbp: Sbp) -> None:
    assert parse_sbp(str(sbp)) == sbp


def test_layouts_are_read_back() -> None:
    for layout in product([S(0), S(12), B, I, PMAX], repeat=3):
        assert parse_nd_sbp(format_nd_sbp(layout)) == layout
    assert parse_nd_sbp("") == parse_nd_sbp("-") == () and format_nd_sbp(()) == "-"


NESTED = ["S0@1,S0@0", "S0@1,B,S0@0", "S1@2,S1@0,S1@1", "S1@1,S1@0,S0@1,S0@0"]


@pytest.mark.parametrize("text", NESTED)
def test_layouts_that_nest_in_another_order_are_stops_of_paths_only(text: str) -> None:
    assert format_nd_sbp(parse_nd_sbp(text, in_path=True)) == text
    with pytest.raises(InputError, match="without a place"):
        parse_nd_sbp(text)
    with pytest.raises(InputError, match="mesh order"):
        to_torch(parse_nd_sbp(text, in_path=True))


@pytest.mark.parametrize("text", ["S0@0", "S0@0,S0@1", "S0@1,S0", "S0@1,S0@1", "S0@2,S0@0", "S0@1,S1@0", "B@0"])
def test_redundant_nesting_places_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_nd_sbp(text, in_path=True)


def test_shards_lie_as_their_dim_nests() -> None:
    mesh = plain_mesh(2, 3)
    layout = parse_nd_sbp("S0@1,S0@0", in_path=True)
    assert [shard_index(0, layout, mesh, mesh.coordinate(rank)) for rank in range(6)] == [0, 2, 4, 1, 3, 5]
    whole = torch.arange(12.0)
    assert torch.equal(
        unshard([shard(whole, layout, mesh, mesh.coordinate(at)) for at in range(6)], layout, mesh, (12,)), whole
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "S",
        "S-1",
        "S16",
        "S07",
        "S 1",
        "s0",
        "b",
        "Psum",
        "Pavg",
        "BB",
        "S0,B",
        "S0@1",
        "P ",
        "\u0661",
        3,
        None,
        ["B"],
    ],
)
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(InputError):
        parse_sbp(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["S0,", ",", "S0;B", "S0 ,B", 3, None, ["S0", "B"]])
def test_other_layouts_are_refused(text: object) -> None:
    with pytest.raises(InputError):
        parse_nd_sbp(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [-1, MAX_DIM + 1])
def test_dims_have_limits(dim: int) -> None:
    with pytest.raises(InputError, match="dim"):
        S(dim)


def test_gradients_exchange_b_and_p() -> None:
    assert [gradient_sbp(sbp) for sbp in (S(3), B, I, P)] == [S(3), P, B, B]


def test_placements_of_torch_say_what_layouts_do() -> None:
    layout = (S(0), S(3), B, I, P, PMAX, PMIN)
    assert to_torch(layout) == [
        Shard(0), Shard(3), Replicate(), Replicate(), Partial("sum"), Partial("max"), Partial("min"),
    ]  # fmt: skip


@pytest.mark.parametrize(("sizes", "shape"), [((4,), (8, 3)), ((2, 2), (8, 4)), ((2, 3), (12, 6)), ((2, 2, 2), (8, 8))])
def test_shards_are_those_of_dtensor(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """``distribute_tensor`` shards axis after axis, outermost first; torch's own splitting is used here."""
    mesh = plain_mesh(*sizes)
    whole = torch.arange(float(shape[0] * shape[1])).reshape(shape)
    for layout in product([S(0), S(1), B], repeat=mesh.ndim):
        if any(size % count for size, count in zip(shape, _counts(sizes, layout), strict=True)):
            continue
        for rank in range(mesh.size):
            wanted = whole
            for axis, placement in enumerate(to_torch(layout)):
                if isinstance(placement, Shard):
                    pieces, _ = placement._split_tensor(wanted, sizes[axis], with_padding=False, contiguous=True)
                    wanted = pieces[mesh.coordinate(rank)[axis]]
            assert torch.equal(shard(whole, layout, mesh, mesh.coordinate(rank)), wanted)
            size, offset = Shard.local_shard_size_and_offset(
                shape[0], _counts(sizes, layout)[0], shard_index(0, layout, mesh, mesh.coordinate(rank))
            )
            assert size == wanted.shape[0]
            assert wanted[0, 0] // shape[1] == offset


def _counts(sizes: tuple[int, ...], layout: NdSbp) -> list[int]:
    counts = [1, 1]
    for size, sbp in zip(sizes, layout, strict=True):
        if sbp.is_split:
            counts[sbp.dim] *= size
    return counts


@pytest.mark.parametrize("layout", list(product([S(0), S(1), B, I, P], repeat=2)), ids=format_nd_sbp)
def test_combine_undoes_shard(layout: NdSbp) -> None:
    mesh = plain_mesh(2, 3)
    whole = torch.randn(6, 12, dtype=torch.float64)
    parts = [shard(whole, layout, mesh, mesh.coordinate(rank)) for rank in range(mesh.size)]
    assert {tuple(part.shape) for part in parts} == {local_shape((6, 12), layout, mesh)}
    assert torch.equal(unshard(parts, layout, mesh, (6, 12)), whole)
    assert all(part.is_contiguous() for part in parts)


@pytest.mark.parametrize("layout", [(S(0), S(0)), (S(2), B)], ids=format_nd_sbp)
def test_shapes_that_cannot_be_split_are_refused_by_name(layout: NdSbp) -> None:
    with pytest.raises(InputError, match=r"dim 0|layout"):
        local_shape((2, 3), layout, plain_mesh(2, 2))
