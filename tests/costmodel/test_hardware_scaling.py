"""Clusters with one thing better: what was measured there is scaled, and nothing else changes."""

from __future__ import annotations

import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit, OpTime, Point
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.hardware_scaling import scale_device_memory, scale_device_speed, scale_link_bandwidth
from autosbp.costmodel.network import NetworkModel

CLUSTER = load_cluster("local:2x2")
POINTS = (Point(1024, 1e-3, 0.0, 5),)
LARGE = 1 << 34


def fit(shape: tuple[int, int]) -> CollectiveFit:
    return CollectiveFit("all_reduce", shape, 1e-4, 1e-9, 1.0, 0.0, 0.0, POINTS, ((4096, 2e-9),), waiting_s=1e-5)


CALIBRATION = Calibration(
    CLUSTER,
    "gloo",
    "relative",
    (fit((2, 1)), fit((2, 2)), fit((1, 2))),
    {"a": OpTime(2.0, 4.0), "b": OpTime(1e-7, 0.0)},
)


@pytest.mark.parametrize("calibration", [None, CALIBRATION])
@pytest.mark.parametrize("level", [0, 1])
def test_large_messages_over_a_link_twice_as_fast_take_half_the_time(
    calibration: Calibration | None, level: int
) -> None:
    cluster, scaled = scale_link_bandwidth(CLUSTER, calibration, level, 2.0)
    before, after = NetworkModel(CLUSTER, calibration), NetworkModel(cluster, scaled)
    for shape in ((2, 1), (2, 2), (1, 2)):
        ratio = after.time_s("all_reduce", LARGE, shape) / before.time_s("all_reduce", LARGE, shape)
        own = next(at for at, count in enumerate(shape) if count > 1) == level
        assert ratio == pytest.approx(0.5 if own else 1.0, rel=1e-3)
        assert after.alpha_beta("all_reduce", shape).alpha_s == before.alpha_beta("all_reduce", shape).alpha_s
        assert after.alpha_beta("all_reduce", shape).waiting_s == before.alpha_beta("all_reduce", shape).waiting_s


def test_a_device_twice_as_fast_halves_what_is_measured_above_a_launch() -> None:
    cluster, scaled = scale_device_speed(CLUSTER, CALIBRATION, 2.0)
    overhead_s = CLUSTER.device.op_overhead_s
    assert scaled is not None
    assert scaled.ops["a"].forward_s == pytest.approx(1.0 + overhead_s / 2)
    assert scaled.ops["a"].backward_s == pytest.approx(2.0 + overhead_s / 2)
    assert scaled.ops["b"] == OpTime(min(1e-7, overhead_s) + max(0.0, 1e-7 - overhead_s) / 2, 0.0)
    assert scaled.collectives == CALIBRATION.collectives
    assert ComputeModel(cluster.device).flops_per_s("float32") == 2 * ComputeModel(CLUSTER.device).flops_per_s(
        "float32"
    )


def test_scaled_calibrations_are_of_the_changed_cluster_and_can_be_written() -> None:
    for cluster, scaled in (
        scale_link_bandwidth(CLUSTER, CALIBRATION, 0, 3.0),
        scale_device_speed(CLUSTER, CALIBRATION, 3.0),
        scale_device_memory(CLUSTER, CALIBRATION, 3.0),
    ):
        assert scaled is not None
        assert scaled.cluster == cluster != CLUSTER
        assert Calibration.from_dict(scaled.to_dict()) == scaled
    assert scale_device_memory(CLUSTER, None, 2.0)[0].device.memory_bytes == 2 * CLUSTER.device.memory_bytes
