"""AutoDDL's figures: the exponent, and the cases that are small enough to plan here."""

from __future__ import annotations

import pytest

from benchmarks.autoddl.__main__ import run
from benchmarks.autoddl._cases import CASES
from benchmarks.autoddl._exponent import SIDE, exponents

pytestmark = pytest.mark.integration


def test_a_products_traffic_and_memory_fall_as_the_two_thirds_power_of_the_devices() -> None:
    found = exponents()
    assert found["traffic_exponent"] == pytest.approx(-2 / 3, abs=0.01)
    assert found["memory_exponent"] == pytest.approx(-2 / 3, abs=0.01)
    for row in (*found["rows"], *found["from_8"]["rows"]):
        (side,) = set(row["p0_p1_p2"])  # a cube
        sent = 3 * 4 * SIDE**2 * row["devices"] ** (-2 / 3) * (1 - 1 / side)
        assert row["traffic_bytes"] == pytest.approx(sent, rel=1e-9)
    assert found["from_8"]["memory_exponent"] == pytest.approx(-2 / 3, abs=1e-9)
    assert found["from_8"]["traffic_exponent"] == pytest.approx(-0.592, abs=0.001)  # what 1 - 1 / side makes of it


def test_vggs_plan_is_quicker_than_the_best_megatron_like_grid() -> None:
    """What it sends beside that is hidden behind computation, as is much of what data parallelism sends."""
    case = next(case for case in CASES if case.name == "Fig. 9 VGG13, 16 nodes")
    row = run(case, 20.0)
    assert row["gap"] <= 0.03
    assert row["rival"] == "one_weird_trick"
    assert row["saved_step"] >= case.step
    assert row["data_parallel_over_plan"] == pytest.approx(4.0, rel=0.15)
    sent = row["baselines"]["data_parallel"]["comm_bytes_per_device"]
    assert row["comm_bytes_per_device"] < 0.3 * sent
    assert row["communication"]["saved"] == pytest.approx(case.communication, abs=0.015)
    assert row["links"] == "alpha 10 us and beta 1 / (1.9 GB/s) at level n"


def test_every_case_names_a_saving_or_that_data_parallelism_is_best() -> None:
    for case in CASES:
        assert case.step is not None or (case.traffic is None and case.data_parallel == 1.0)
        said = (case.traffic, case.communication, case.stages)
        assert case.step is None or any(value is not None for value in said)
