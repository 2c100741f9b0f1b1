"""Efficiency curves: published products and copies take their published time; waves, tiles, and what overlaps."""

from __future__ import annotations

import numpy as np
import pytest

from autosbp.cluster.hardware import EfficiencyCurves
from autosbp.cluster.spec import Cluster, Device, load_cluster, presets
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.efficiency import MatmulShape, exposed_s, kernel_s, tiling_overhead
from autosbp.errors import InputError
from autosbp.graph.ir import Node, TensorMeta

CURVES = EfficiencyCurves(matmul=0.5, memory=0.5, contention=0.25, units=10, tile_rows=4, tile_columns=2)
DEVICE = Device("d", "cuda", 1, {"bfloat16": 100.0}, 10.0, op_overhead_s=1.0, curves=CURVES)
RELU = Node("r", "aten.relu.default", (), {}, (TensorMeta((2,), "float32"),))


def product_s(device: Device, rows: int, columns: int, inner: int) -> float:
    """A bfloat16 product."""
    assert device.curves is not None
    result = MatmulShape(1, rows, columns, 2.0 * rows * columns)
    num_bytes = result.num_bytes + 2.0 * inner * (rows + columns)
    return kernel_s(device, device.curves, "bfloat16", 2.0 * rows * columns * inner, num_bytes, result)


@pytest.mark.parametrize(
    ("preset", "rows", "columns", "inner", "flops_per_s"),
    [
        ("gcp-a100-16", 8192, 8192, 8192, 258e12),
        ("dgx-a100-80g", 8192, 8192, 8192, 258e12),
        ("dgx-h100", 2048, 2048, 13312, 794.5e12),
        ("dgx-h200", 2048, 2048, 13312, 794.5e12),
    ],
)
def test_the_published_product_takes_its_published_time(
    preset: str, rows: int, columns: int, inner: int, flops_per_s: float
) -> None:
    reached = 2.0 * rows * columns * inner / product_s(load_cluster(preset).device, rows, columns, inner)
    assert reached == pytest.approx(flops_per_s, rel=2e-3)


def test_an_unfitted_product_is_near_its_published_rate() -> None:
    """The best shape of an A100 with the cuBLAS of 2025 (ml-engineering): 271.2 TFLOP/s; 8 % more than in 2022."""
    seconds = product_s(load_cluster("dgx-a100-80g").device, 1024, 10240, 5120)
    assert 2.0 * 1024 * 10240 * 5120 / seconds == pytest.approx(271.2e12, rel=0.09)


def test_a_device_with_curves_says_where_they_are_from() -> None:
    for device in presets()["devices"].values():
        assert ("curves" in device) == ("Curves" in device["source"])


def test_a_wave_that_is_not_full_takes_as_long_as_a_full_one() -> None:
    # 10 tiles of 4 x 2 are one wave; 11 are two
    assert tiling_overhead(CURVES, MatmulShape(1, 4, 20, 1.0)) == 1.0
    assert tiling_overhead(CURVES, MatmulShape(1, 4, 22, 1.0)) == pytest.approx(20 / 11)
    assert tiling_overhead(CURVES, MatmulShape(2, 4, 10, 1.0)) == 1.0


def test_partial_tiles_are_computed_in_full_with_the_better_orientation() -> None:
    assert tiling_overhead(CURVES, MatmulShape(10, 3, 2, 1.0)) == pytest.approx(8 / 6)
    assert tiling_overhead(CURVES, MatmulShape(10, 2, 4, 1.0)) == 1.0


def test_a_product_loads_while_it_multiplies_and_writes_afterwards() -> None:
    result = MatmulShape(1, 4, 20, 15.0)
    # 500 FLOPs at 50 are 10 s; 20 bytes read at 5 are 4 s, 15 written are 3 s; the launch is 1 s
    assert kernel_s(DEVICE, CURVES, "bfloat16", 500.0, 35.0, result) == pytest.approx(1 + 10 + 3)
    assert kernel_s(DEVICE, CURVES, "bfloat16", 50.0, 35.0, result) == pytest.approx(1 + 4 + 3)
    assert kernel_s(DEVICE, CURVES, "bfloat16", 50.0, 35.0) == pytest.approx(1 + 7)


def test_a_hidden_transfer_costs_its_contention_and_a_longer_one_what_outlasts() -> None:
    assert exposed_s(CURVES, 4.0, 10.0) == pytest.approx(1.0)
    assert exposed_s(CURVES, 12.0, 10.0) == pytest.approx(2.0 + 2.5)
    assert exposed_s(CURVES, 3.0, 0.0) == 3.0


def test_planning_takes_the_curves_of_a_device_until_ops_are_calibrated() -> None:
    cluster = load_cluster("dgx-a100-80g:1")
    work = (RELU.op, "float32", np.array([0.0]), np.array([2039e9 * 0.88]))
    forward, backward = ComputeModel(cluster.device).roofline_s(*work)
    assert forward[0] == pytest.approx(1.0, abs=1e-5) and backward[0] == pytest.approx(2.0, abs=1e-5)
    assert ComputeModel(cluster.device).copy_bytes_per_s == pytest.approx(2039e9 * 0.88)
    assert ComputeModel(cluster.device).flops_per_s("bfloat16") == pytest.approx(312e12 * 0.844)
    timed = ComputeModel(cluster.device, calibration(cluster))
    assert timed.flops_per_s("bfloat16") == pytest.approx(312e12 * cluster.device.efficiency)


def calibration(cluster: Cluster) -> Calibration:
    """One timed op, of no known kind."""
    from autosbp.costmodel.calibration import OpTime

    return Calibration(cluster, "nccl", "relative", (), {'{"args":[],"kwargs":{},"op":"x"}': OpTime(1.0, 1.0)})


@pytest.mark.parametrize("field", ["matmul", "memory", "contention"])
def test_a_part_above_one_is_refused_by_name(field: str) -> None:
    document = load_cluster("dgx-a100-80g:1").to_dict()
    document["device"]["curves"][field] = 1.5
    with pytest.raises(InputError) as caught:
        Cluster.from_dict(document)
    assert caught.value.field == f"device.curves.{field}"


def test_a_cluster_with_curves_round_trips_and_one_without_has_no_field() -> None:
    cluster = load_cluster("dgx-h100:2")
    assert Cluster.from_dict(cluster.to_dict()) == cluster
    assert "curves" not in load_cluster("summit:2").to_dict()["device"]
