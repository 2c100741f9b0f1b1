"""What a run measures, in which order, which runs are the same, and arguments within their limits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from autosbp.calibration._collectives import message_bytes
from autosbp.calibration._rank_launch import describe_launch
from autosbp.calibration._request import Request, measurement_names, series
from autosbp.cluster.spec import load_cluster
from autosbp.errors import InputError
from autosbp.launch.local import run_ranks
from autosbp.testing.emulated import EmulatedCluster
from autosbp.utils.json_io import canonical, loads

LOCAL = load_cluster("local:2x2")


def test_measurements_come_placement_by_placement_with_sizes_ascending() -> None:
    request = Request(LOCAL, "gloo", (4096, 1024, 2048, 1024), op_keys=("k",))
    made = list(series(request))
    assert len(made) == 5 * 6
    assert [one.num_bytes for one in made[0]] == [1024, 2048, 4096]
    assert [sizes[0].placement.name for sizes in made[::6]] == [
        *("1x2", "1x2 one group alone", "2x1", "2x1 one group alone", "2x2"),
    ]
    names = measurement_names(request)
    assert names[0] == "all_reduce over 1x2, 1024 bytes" and names[-1] == "op k"
    assert len(set(names)) == len(names) == 5 * 6 * 3 + 3 * 6 + 1 + 1 + 1  # the last: overlap, sharing and an op
    assert len(list(series(replace(request, variants=False)))) == 3 * 6


def test_requests_that_find_the_same_have_one_id() -> None:
    request = Request(LOCAL, "gloo", (16, 32, 48))
    assert request.request_id == replace(request, timeout_s=1.0, stall_s=1.0).request_id
    others = [
        replace(request, repeats=31),
        replace(request, sizes=(16, 32, 64)),
        replace(request, budget_s=1.0),
        replace(request, op_keys=("k",)),
        replace(request, cluster=load_cluster("local:4")),
        replace(request, way=describe_launch(run_ranks)),
        replace(request, way=describe_launch(partial(run_ranks, interface="eth0"))),
        replace(request, way=describe_launch(EmulatedCluster.launch)),
    ]
    assert len({request.request_id, *(other.request_id for other in others)}) == 9
    assert describe_launch(run_ranks) == describe_launch(partial(run_ranks, interface="lo"))


def test_request_round_trips_through_json() -> None:
    request = Request(LOCAL, "gloo", (16, 32, 48), op_keys=("a", "b"))
    assert Request.from_dict(loads(canonical(request.to_dict()))) == request


def test_message_is_rounded_up_to_equal_parts() -> None:
    assert message_bytes(1, 2) == 8
    assert message_bytes(1024, 3) == 1032
    assert message_bytes(1 << 20, 8) == 1 << 20


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"backend": "mpi"}, "backend"),
        ({"sizes": (1024, 4096)}, "sizes"),
        ({"sizes": (1024, 1024, 1024)}, "sizes"),
        ({"sizes": (0, 1, 2)}, "sizes[0]"),
        ({"sizes": (1, 2, 2**63)}, "sizes[2]"),
        ({"sizes": (4, 8, 16, 32)}, "sizes"),  # two of 2x2: 16 and 32
        ({"repeats": 0}, "repeats"),
        ({"point_s": 0.0}, "point_s"),
        ({"op_s": float("nan")}, "op_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"budget_s": -1.0}, "budget_s"),
        ({"stall_s": 0.0}, "stall_s"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        Request(**{"cluster": LOCAL, "backend": "gloo"} | changes)
    assert caught.value.field == field
