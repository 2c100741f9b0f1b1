"""Hand-over between meshes: who gives what to whom, and OneFlow's volumes beyond its table."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch

from autosbp.errors import InputError
from autosbp.program.cross_mesh_resharding import block_of, local_pieces, plan_pieces, remote_messages
from autosbp.program.placed_mesh import PlacedMesh, placed_mesh
from autosbp.sbp.boxing import layouts_of
from autosbp.sbp.layout import B, P, format_nd_sbp, parse_nd_sbp
from autosbp.testing.oneflow_transfer_volume import direct_transfer, volume_bytes
from autosbp.testing.virtual import plain_mesh
from autosbp.testing.virtual_layouts import assert_shards_match, random_shards

T = 3 * 64 * 8


@pytest.mark.parametrize(
    ("src", "dst", "prepare", "moved", "pulled"),
    [
        ("S0,B", "B,S1", "S0,B", 0, 2),  # two consumers of each shard
        ("P,S0", "B,B", "S1,S0", 1, 4),
        ("P,B", "S0,S0", "S0,B", 2, 1),  # both replicas' groups scatter
        ("P,P", "P,B", "S0,S0", 3, 2),
        ("B,I", "P,P", "B,I", 0, 1),
    ],
)
def test_volumes_on_two_axes(src: str, dst: str, prepare: str, moved: int, pulled: int) -> None:
    mesh = plain_mesh(2, 2)
    transfer = direct_transfer((8, 8), T, parse_nd_sbp(src), mesh, parse_nd_sbp(dst), mesh)
    assert format_nd_sbp(transfer.prepare) == prepare
    assert (transfer.received_bytes, transfer.total_bytes) == (pulled * T, (moved + pulled) * T)


@pytest.mark.parametrize(
    ("dst", "prepare", "total"),
    [("P", "P", 4), ("S0", "P", 4), ("B", "B", 6 + 3)],  # one consumer's worth: pull parts; three: reduce first
)
def test_sums_that_cannot_be_scattered_take_the_cheaper_way(dst: str, prepare: str, total: int) -> None:
    transfer = direct_transfer((3, 7), T, parse_nd_sbp("P"), plain_mesh(4), parse_nd_sbp(dst), plain_mesh(3))
    assert format_nd_sbp(transfer.prepare) == prepare
    assert transfer.total_bytes == total * T


@pytest.mark.parametrize(
    ("kind", "volume"), [("all_reduce", 6), ("all_gather", 3), ("reduce_scatter", 3), ("all_to_all", 3), ("p2p", 4)]
)
def test_volumes_of_two_rings_of_four(kind: str, volume: int) -> None:
    assert volume_bytes(kind, 100, 4, 2) == 2 * volume * 100


CLUSTER = (3, 4)
SHAPE = (12, 4)


def placed(devices: range | list[int], *sizes: int) -> PlacedMesh:
    return placed_mesh(list(devices), sizes, CLUSTER)


PAIRS = {
    "disjoint": (placed(range(2), 2), placed(range(4, 8), 4)),
    "to one": (placed(range(3), 3), placed([3], 1)),
    "from one": (placed([0], 1), placed([1, 2, 3], 3)),
    "2 to 3": (placed([0, 1], 2), placed([5, 6, 8], 3)),
    "grids": (placed(range(4), 2, 2), placed(range(4, 10), 2, 3)),
    "growing": (placed([0, 1], 2), placed(range(4), 2, 2)),
    "shifted": (placed(range(4), 4), placed(range(2, 6), 2, 2)),
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
def test_pieces_make_the_tensor_in_every_layout(pair: str, cut: bool) -> None:
    src_mesh, dst_mesh = PAIRS[pair]
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    for src, dst in product(layouts_of(SHAPE, src_mesh, True), layouts_of(SHAPE, dst_mesh, True)):
        parts = random_shards(whole, src, src_mesh, generator)
        got = [
            torch.zeros(block_of(SHAPE, dst, dst_mesh, rank).size, dtype=whole.dtype) for rank in range(dst_mesh.size)
        ]
        for piece in plan_pieces(SHAPE, src, src_mesh, dst, dst_mesh, cut=cut):
            given = parts[piece.source][piece.block.within(block_of(SHAPE, src, src_mesh, piece.source))]
            got[piece.target][piece.block.within(block_of(SHAPE, dst, dst_mesh, piece.target))] += given
        assert_shards_match(got, dst, dst_mesh, whole, f"{format_nd_sbp(src)} -> {format_nd_sbp(dst)}")


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("pair", ["disjoint", "to one", "from one", "2 to 3", "grids"])
def test_every_needed_byte_travels_once(pair: str, cut: bool) -> None:
    """What travels is what OneFlow's direct way pulls; of partial sums every part is pulled."""
    src_mesh, dst_mesh = PAIRS[pair]
    num_bytes = 8 * 12 * 4
    for src, dst in product(layouts_of(SHAPE, src_mesh, False), layouts_of(SHAPE, dst_mesh, False)):
        pieces = plan_pieces(SHAPE, src, src_mesh, dst, dst_mesh, cut=cut)
        parts = 1
        for axis, sbp in zip(src_mesh.axes, src, strict=True):
            parts *= axis.size if sbp == P else 1
        whole = tuple(B if sbp == P else sbp for sbp in src)
        direct = direct_transfer(SHAPE, num_bytes, whole, src_mesh, dst, dst_mesh)
        assert 8 * sum(piece.block.num_elements for piece in pieces) == parts * direct.received_bytes
        assert not list(local_pieces(pieces, src_mesh, dst_mesh))


@pytest.mark.parametrize(
    ("src", "dst", "sizes", "cut", "sent"),
    [
        ("B", "B", (2, 4), False, [96, 96]),  # two receivers each
        ("B", "S0", (2, 4), False, [24, 24]),
        ("B", "B", (2, 3), False, [96, 48]),
        ("B", "B", (2, 3), True, [72, 72]),
        ("B", "S0", (4, 1), True, [12, 12, 12, 12]),
        ("S0", "B", (2, 3), True, [72, 72]),
        ("P", "P", (4, 2), False, [48, 48, 48, 48]),
    ],
)
def test_replicas_share_what_is_sent(src: str, dst: str, sizes: tuple[int, int], cut: bool, sent: list[int]) -> None:
    src_mesh = placed_mesh(list(range(sizes[0])), (sizes[0],), (8,))
    dst_mesh = placed_mesh(list(range(4, 4 + sizes[1])), (sizes[1],), (8,))
    given: Counter[int] = Counter()
    for piece in plan_pieces(SHAPE, parse_nd_sbp(src), src_mesh, parse_nd_sbp(dst), dst_mesh, cut=cut):
        given[piece.source] += piece.block.num_elements
    assert [given[rank] for rank in range(src_mesh.size)] == sent


def test_a_partial_destination_takes_parts_in_turns() -> None:
    src_mesh, dst_mesh = placed(range(4), 4), placed([4, 5], 2)
    pieces = plan_pieces(SHAPE, (P,), src_mesh, (P,), dst_mesh, cut=False)
    assert [(piece.source, piece.target) for piece in pieces] == [(0, 0), (2, 0), (1, 1), (3, 1)]


def test_the_nearest_replica_sends_and_local_data_is_not_sent() -> None:
    src_mesh, dst_mesh = placed([0, 4], 2), placed([1, 4, 5, 8], 4)
    pieces = plan_pieces(SHAPE, parse_nd_sbp("B"), src_mesh, parse_nd_sbp("B"), dst_mesh, cut=False)
    senders = {dst_mesh.device(piece.target): src_mesh.device(piece.source) for piece in pieces}
    assert senders == {1: 0, 4: 4, 5: 4, 8: 0}
    assert [piece.target for piece in local_pieces(pieces, src_mesh, dst_mesh)] == [1]
    assert set(remote_messages(pieces, src_mesh, dst_mesh)) == {(0, 1), (4, 5), (0, 8)}


def test_pieces_between_two_devices_are_one_message() -> None:
    src_mesh, dst_mesh = placed(range(4), 2, 2), placed([4], 1)
    pieces = plan_pieces((4, 6), parse_nd_sbp("P,S0"), src_mesh, parse_nd_sbp("B"), dst_mesh, cut=False)
    assert set(remote_messages(pieces, src_mesh, dst_mesh)) == {(device, 4) for device in range(4)}
    pieces = plan_pieces((4, 6), parse_nd_sbp("B"), dst_mesh, parse_nd_sbp("S0,P"), src_mesh, cut=False)
    assert set(remote_messages(pieces, dst_mesh, src_mesh)) == {(4, 0), (4, 2)}
    pieces = plan_pieces(
        (12,), parse_nd_sbp("S0"), placed(range(3), 3), parse_nd_sbp("P"), placed([4, 5], 2), cut=False
    )
    assert {
        key: len(parts) for key, parts in remote_messages(pieces, placed(range(3), 3), placed([4, 5], 2)).items()
    } == {(device, 4): 1 for device in range(3)}


def test_partial_maxima_are_boxed_before_they_are_sent() -> None:
    with pytest.raises(InputError, match="Pmax"):
        plan_pieces(SHAPE, parse_nd_sbp("Pmax"), placed(range(2), 2), parse_nd_sbp("B"), placed([4], 1), cut=False)


@pytest.mark.parametrize(
    ("devices", "sizes", "field"),
    [([1, 0], (2,), "devices"), ([0, 0], (2,), "devices"), ([0, 12], (2,), "devices"), ([], (1,), "devices"),
     ([-1, 0], (2,), "devices"), ([0, 1], (3,), "sizes"), ([0, 1], (2, 0), "sizes")],
)  # fmt: skip
def test_meshes_over_impossible_devices_are_refused(devices: list[int], sizes: tuple[int, ...], field: str) -> None:
    with pytest.raises(InputError, match=field):
        placed_mesh(devices, sizes, CLUSTER)


@pytest.mark.parametrize(
    ("devices", "sizes", "axes", "shape"),
    [
        ([0, 1], (2,), (0,), (1, 2)),
        ([0, 4], (2,), (0,), (2, 1)),
        ([0, 1, 4, 5], (2, 2), (0,), (2, 1)),
        ([0, 1, 4, 5], (2, 2), (1,), (1, 2)),
        ([0, 1, 4, 5], (4,), (0,), (2, 2)),
        ([0, 1, 4, 5], (2, 2), (0, 1), (2, 2)),
        ([0, 1, 2, 4], (4,), (0,), (2, 2)),
        ([0, 1, 2, 4], (2, 2), (1,), (2, 1)),  # the wider of [0, 1] and [2, 4]
    ],
)
def test_groups_of_a_placed_mesh_span_the_cluster_as_their_devices_lie(
    devices: list[int], sizes: tuple[int, ...], axes: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    assert placed(devices, *sizes).group_shape(axes) == shape
