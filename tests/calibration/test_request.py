"""What a run measures: every distinct group shape once, and arguments within their limits."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from autosbp.cluster import load_cluster
from autosbp.errors import InputError
from autosbp.jsonio import canonical, loads
from calibration._collectives import message_bytes
from calibration._request import Request, group_axes, measurement_names, measurements

LOCAL = load_cluster("local:2x2")


@pytest.mark.parametrize("spec", ["local:1", "local:4", "local:2x2", "summit:6", "dgx-a100-80g:8", "gcp-a100-16:2"])
def test_shapes_are_those_of_all_subsets_of_axes(spec: str) -> None:
    mesh = load_cluster(spec).mesh()
    subsets = [axes for size in range(1, mesh.ndim + 1) for axes in combinations(range(mesh.ndim), size)]
    chosen = group_axes(mesh)
    assert set(chosen) == {mesh.group_shape(axes) for axes in subsets}
    assert all(mesh.group_shape(axes) == shape and list(axes) == sorted(axes) for shape, axes in chosen.items())


def test_largest_cluster_has_few_shapes() -> None:
    assert len(group_axes(load_cluster(f"dgx-h100:{2**17}").mesh())) == 18 * 4 - 1


def test_measurements_come_shape_by_shape_with_sizes_ascending() -> None:
    request = Request(LOCAL, "gloo", (4096, 1024, 2048, 1024), op_keys=("k",))
    made = list(measurements(request))
    assert len(made) == 3 * 5 * 3
    assert [one.num_bytes for one in made[:3]] == [1024, 2048, 4096]
    assert [one.group_shape for one in made[::15]] == [(1, 2), (2, 1), (2, 2)]
    assert measurement_names(request)[-1] == "op k"
    assert made[0].name == "all_reduce over 1x2, 1024 bytes"


def test_request_round_trips_through_json() -> None:
    request = Request(LOCAL, "gloo", (1, 2, 3), op_keys=("a", "b"))
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
        ({"repeats": 0}, "repeats"),
        ({"point_s": 0.0}, "point_s"),
        ({"op_s": float("nan")}, "op_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        Request(**{"cluster": LOCAL, "backend": "gloo"} | changes)
    assert caught.value.field == field
