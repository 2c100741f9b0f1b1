"""Hand-over between disjoint device sets beyond OneFlow's table: two axes, and sums that cannot be scattered."""

from __future__ import annotations

import pytest

from autosbp.sbp.placement import format_nd_sbp, parse_nd_sbp
from autosbp.sbp.transfer import plan_transfer, volume_bytes
from autosbp.testing.virtual import plain_mesh

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
def test_two_axes(src: str, dst: str, prepare: str, moved: int, pulled: int) -> None:
    mesh = plain_mesh(2, 2)
    transfer = plan_transfer((8, 8), T, parse_nd_sbp(src), mesh, parse_nd_sbp(dst), mesh)
    assert format_nd_sbp(transfer.prepare) == prepare
    assert (transfer.pulled_bytes, transfer.total_bytes) == (pulled * T, (moved + pulled) * T)


@pytest.mark.parametrize(
    ("dst", "prepare", "total"),
    [("P", "P", 4), ("S0", "P", 4), ("B", "B", 6 + 3)],  # one consumer's worth: pull parts; three: reduce first
)
def test_sums_that_cannot_be_scattered_take_the_cheaper_way(dst: str, prepare: str, total: int) -> None:
    transfer = plan_transfer((3, 7), T, parse_nd_sbp("P"), plain_mesh(4), parse_nd_sbp(dst), plain_mesh(3))
    assert format_nd_sbp(transfer.prepare) == prepare
    assert transfer.total_bytes == total * T


@pytest.mark.parametrize(
    ("kind", "volume"), [("all_reduce", 6), ("all_gather", 3), ("reduce_scatter", 3), ("all_to_all", 3), ("p2p", 4)]
)
def test_volumes_of_two_rings_of_four(kind: str, volume: int) -> None:
    assert volume_bytes(kind, 100, 4, 2) == 2 * volume * 100
