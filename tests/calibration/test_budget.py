"""The time box of a run is shared by its series, and what does not fit is left out."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from autosbp.calibration import Request, calibrate
from autosbp.calibration._budget import END_S, MAX_RESERVED_FRACTION, OVERLAP_S, SHARING_S, RunBudget, SeriesBudget
from autosbp.calibration._request import BUDGET_S, CORE_CONTENTION, OVERLAP, arrival_delays, measurement_names, op_name
from autosbp.calibration._sampling import MIN_CALLS
from autosbp.cli._calibrate import calibrate as command
from autosbp.client import Client
from autosbp.cluster.spec import load_cluster
from autosbp.service.schemas.calibrations import CalibrationRequest

REQUEST = Request(load_cluster("local:2x2"), "gloo", budget_s=104.0 + END_S, point_s=0.5)


def test_unused_budget_of_a_size_goes_to_larger_sizes() -> None:
    budget = SeriesBudget(8.0, 4)
    assert budget.box_s(10.0) == 2.0
    budget.record(1024, 1e-3, 0.5)
    assert budget.box_s(10.0) == 7.5 / 3
    assert budget.box_s(1.0) == 1.0


def test_at_least_three_sizes_are_always_measured() -> None:
    budget = SeriesBudget(0.0, 5)
    for size in (1, 4, 16):
        assert budget.fits(size) and budget.box_s(1.0) == 0.0
        budget.record(size, 1.0, 9.0)
    assert not budget.fits(64)


def test_a_size_is_measured_if_its_minimum_number_of_calls_fits() -> None:
    budget = SeriesBudget(100.0, 5)
    for size in (1, 4, 16):
        budget.record(size, 0.1, 1.0)
    limit = 97.0 / (MIN_CALLS * 0.1) * 16
    assert budget.fits(int(limit)) and not budget.fits(int(limit) + 1)


class Passed:
    """Seconds since a run was asked for, moved by hand."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def test_collectives_get_the_budget_not_reserved_for_later_phases() -> None:
    behind_s = OVERLAP_S + SHARING_S + 0.5 * len(arrival_delays(REQUEST))
    budget = RunBudget(REQUEST, set(), Passed(4.0))
    assert budget.series_s(1.0, 1.0) == pytest.approx(100.0 - behind_s)
    assert budget.series_s(0.5, 2.0) == pytest.approx((100.0 - behind_s) / 4)
    assert budget.waiting_s(2) == pytest.approx((100.0 - OVERLAP_S - SHARING_S) / 2)
    made = {OVERLAP, CORE_CONTENTION, *(one.name for one in arrival_delays(REQUEST))}
    assert RunBudget(REQUEST, made, Passed(4.0)).series_s(1.0, 1.0) == pytest.approx(100.0)


def test_ops_take_at_most_their_share_of_the_budget() -> None:
    keys = tuple(map(str, range(1000)))
    many = replace(REQUEST, op_keys=keys)
    budget = RunBudget(many, set(), Passed(4.0))
    assert budget.series_s(1.0, 1.0) == pytest.approx((1 - MAX_RESERVED_FRACTION) * 100.0)
    left = {op_name(key) for key in keys[1:]}
    assert RunBudget(many, left, Passed(4.0)).series_s(1.0, 1.0) > (1 - MAX_RESERVED_FRACTION) * 100.0


def test_remaining_ops_share_the_remaining_budget() -> None:
    passed = Passed(4.0)
    budget = RunBudget(replace(REQUEST, op_keys=("a", "b")), set(), passed)
    passed.seconds = 90.0
    assert budget.op_s(2) == pytest.approx(7.0)
    passed.seconds = 104.0
    assert budget.op_s(1) == 0.0


def test_a_run_without_time_sets_nothing_aside_and_still_gives_boxes() -> None:
    budget = RunBudget(REQUEST, set(measurement_names(REQUEST)), Passed(1e4))
    assert budget.series_s(1.0, 3.0) < 0 and budget.waiting_s(1) < 0 and budget.op_s(1) < 0
    assert SeriesBudget(budget.series_s(1.0, 3.0), 5).box_s(1.0) == 0.0


def test_the_default_box_is_the_same_everywhere_and_leaves_a_quarter_of_a_minute_of_three() -> None:
    defaults = [
        *(
            inspect.signature(each).parameters[name].default
            for each, name in ((calibrate, "budget_s"), (command, "budget"))
        ),
        inspect.signature(Client.calibrate).parameters["budget_s"].default,
        CalibrationRequest.model_fields["budget_s"].default,
    ]
    assert defaults == [BUDGET_S] * 4 and BUDGET_S <= 180.0 - 15.0
