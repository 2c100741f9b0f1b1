"""Times between measured shapes."""

from __future__ import annotations

import numpy as np
import pytest

from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import Calibration, OpTime
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.efficiency_interpolation import EfficiencyCurve
from autosbp.utils.json_io import canonical


def linear(rows: int, width: int) -> str:
    tensors = [{"t": shape, "d": "float32", "g": True} for shape in ([rows, width], [width, width])]
    return canonical({"op": "aten.linear.default", "args": tensors, "kwargs": {}}).decode()


def seconds(rows: int, width: int) -> float:
    """A device that reaches its speed only with large products."""
    flops = 2.0 * rows * width * width
    return 2e-5 + flops / (1e12 * flops / (flops + 1e9))


def test_measured_ratios_are_reproduced_and_extrapolated_as_constants() -> None:
    curve = EfficiencyCurve(np.array([1e-5, 1e-3, 1e-1]), np.array([4e-5, 2e-3, 1.5e-1]))
    assert curve.at(np.array([1e-5, 1e-3, 1e-1])) == pytest.approx([4.0, 2.0, 1.5], rel=1e-3)
    assert curve.at(np.array([1e-9, 1e3])) == pytest.approx([4.0, 1.5], rel=1e-3)
    assert curve.median_ratio == pytest.approx(2.0)


def test_between_two_sizes_the_ratio_is_between_theirs_and_noise_is_averaged() -> None:
    sizes = np.full(400, 1e-3) * np.exp(np.random.default_rng(0).normal(0.0, 0.1, 400))
    noise = np.exp(np.random.default_rng(1).normal(0.0, 0.3, 400))
    assert EfficiencyCurve(sizes, 2.0 * noise * sizes).at(np.array([1e-3]))[0] == pytest.approx(2.0, rel=0.05)
    between = EfficiencyCurve(np.array([1e-4, 1e-2]), np.array([4e-4, 1e-2])).at(np.array([1e-3]))[0]
    assert between == pytest.approx(2.0)


def test_unmeasured_shapes_use_the_ratios_of_their_neighbours() -> None:
    device = load_cluster("local:1").device
    measured = {
        linear(rows, 512): OpTime(seconds(rows, 512), 2 * seconds(rows, 512)) for rows in (16, 64, 256, 1024, 4096)
    }
    calibration = Calibration(load_cluster("local:1"), "gloo", "relative", (), measured)
    model = ComputeModel(device, calibration)
    errors = []
    for rows, width in ((32, 512), (128, 512), (512, 512), (2048, 512), (1024, 1024), (256, 256)):
        times = model.key_times_s(linear(rows, width))
        assert times is not None
        errors += [times[0] / seconds(rows, width) - 1, times[1] / (2 * seconds(rows, width)) - 1]
    assert np.median(np.abs(errors)) < 0.05 and np.max(np.abs(errors)) < 0.2


def test_ops_with_unknown_work_have_no_time() -> None:
    key = canonical({"op": "aten.nonsense.default", "args": [], "kwargs": {}}).decode()
    assert ComputeModel(load_cluster("local:1").device).key_times_s(key) is None
