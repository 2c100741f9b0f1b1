"""Corrections that trials teach: found again where they are known, bounded, versioned, undone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from autosbp.api import PlanOptions, capture, load_cluster, make_plan, predict_costs
from autosbp.costmodel.calibration import Calibration, CollectiveFit, Correction, OpTime, Point
from autosbp.costmodel.calibration_correction import TrialResidual, drop_last_correction, fit_correction
from autosbp.costmodel.trial_feedback import trial_residual
from autosbp.errors import InputError
from autosbp.testing.strategy_samples import sample_strategies

CLUSTER = load_cluster("local:2x2")
POINTS = (Point(1024, 2e-3, 0.0, 30),)
FITS = tuple(
    CollectiveFit(kind, shape, 1e-4, 1e-9, 1.0, 0.0, 0.0, POINTS)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
    for shape in ((1, 2), (2, 1), (2, 2))
)
KEY = '{"args":[{"d":"float32","t":[8]}],"kwargs":{},"op":"aten.relu.default"}'
CALIBRATION = Calibration(CLUSTER, "gloo", "relative", FITS)


def experiences(compute: float, network: float, waiting_s: float, count: int = 400) -> list[TrialResidual]:
    rng = np.random.default_rng(0)
    found = []
    for compute_s, comm_s, waits in zip(
        rng.uniform(0.01, 0.5, count), rng.uniform(0.001, 0.5, count), rng.integers(1, 60, count), strict=True
    ):
        measured_s = compute * compute_s + network * comm_s + waiting_s * waits + 0.002
        found.append(TrialResidual(float(compute_s), float(comm_s), 0.002, int(waits), float(measured_s)))
    return found


@pytest.mark.parametrize("truth", [(1.3, 0.9, 1e-3), (1.0, 1.0, 0.0), (0.8, 1.6, 3e-3)])
def test_many_trials_recover_the_true_factors(truth: tuple[float, float, float]) -> None:
    correction = fit_correction(CALIBRATION, experiences(*truth)).correction
    assert correction.num_trials == 400
    assert correction.compute == pytest.approx(truth[0], rel=0.05)
    assert correction.network == pytest.approx(truth[1], rel=0.05)
    assert correction.waiting_s == pytest.approx(truth[2], abs=2e-4)


def test_factors_stay_within_their_bounds() -> None:
    for factor, bound in ((30.0, Correction.HIGH), (0.01, Correction.LOW)):
        correction = fit_correction(CALIBRATION, experiences(factor, factor, 0.0)).correction
        assert (correction.compute, correction.network) == pytest.approx((bound, bound), rel=0.1)
        assert Correction.LOW <= correction.compute <= Correction.HIGH


def test_one_trial_corrects_less_than_many() -> None:
    one, many = (fit_correction(CALIBRATION, experiences(1.5, 1.5, 0.0, count)).correction for count in (1, 400))
    assert 1.0 < one.compute < many.compute or 1.0 < one.network < many.network


def test_lessons_are_versions_that_can_be_undone() -> None:
    first = fit_correction(CALIBRATION, experiences(1.3, 1.0, 0.0))
    second = fit_correction(first, experiences(1.2, 1.1, 0.0))
    assert len({CALIBRATION.calibration_id, first.calibration_id, second.calibration_id}) == 3
    assert Calibration.from_dict(json.loads(json.dumps(second.to_dict()))) == second
    assert drop_last_correction(second) == first and drop_last_correction(first) == CALIBRATION
    with pytest.raises(InputError, match="corrections"):
        drop_last_correction(CALIBRATION)


def test_predictions_follow_the_correction() -> None:
    graph = capture("zoo:mlp-small")
    plan = make_plan(graph, CLUSTER, options=PlanOptions(global_batch=64))
    timed = replace(CALIBRATION, ops={})
    correction = Correction(1.05, 1.1, 1e-5, 1)
    for strategy in (plan.strategy, *sample_strategies(graph, CLUSTER, 5, global_batch=64, micro_batch=64)):
        plain = predict_costs(graph, strategy, CLUSTER, timed)
        corrected = predict_costs(graph, strategy, CLUSTER, replace(timed, corrections=(correction,)))
        assert plain.compute_s < corrected.compute_s <= 1.05 * plain.compute_s * (1 + 1e-9)
        lesson = trial_residual(graph, strategy, CLUSTER, replace(timed, corrections=(correction,)), 1.0)
        assert lesson.predicted_s(Correction(1.0, 1.0, 0.0, 0)) == pytest.approx(plain.step_time_s)
        assert lesson.predicted_s(correction) == pytest.approx(corrected.step_time_s, rel=5e-3)


def test_timed_ops_are_corrected_alike() -> None:
    from autosbp.costmodel.compute import ComputeModel

    timed = replace(CALIBRATION, ops={KEY: OpTime(1.0, 2.0)}, corrections=(Correction(1.5, 1.0, 0.0, 1),))
    assert ComputeModel(CLUSTER.device, timed).measured == {KEY: OpTime(1.5, 3.0)}


@pytest.mark.parametrize(
    ("field", "value"), [("compute", 2.1), ("network", 0.4), ("waiting_s", -1.0), ("num_trials", 0), ("compute", "x")]
)
def test_a_document_with_another_correction_is_refused(field: str, value: object) -> None:
    document = fit_correction(CALIBRATION, experiences(1.3, 1.0, 0.0)).to_dict()
    document["corrections"][0][field] = value
    with pytest.raises(InputError, match=rf"corrections\[0\].{field}"):
        Calibration.from_dict(document)


def test_no_trial_and_no_time_are_refused() -> None:
    with pytest.raises(InputError, match="experiences"):
        fit_correction(CALIBRATION, [])
    for measured_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="measured_s"):
            TrialResidual.of(lambda correction: correction.compute, measured_s)


@pytest.mark.parametrize("changes", [{"compute_s": 0.0, "comm_s": 0.0}, {"other_s": -1.0}])
def test_a_trial_of_nothing_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"experiences\[1\]"):
        fit_correction(
            CALIBRATION, [*experiences(1.0, 1.0, 0.0, 1), replace(experiences(1.0, 1.0, 0.0, 1)[0], **changes)]
        )


def test_trial_residuals_round_trip() -> None:
    (one,) = experiences(1.2, 0.9, 1e-3, 1)
    assert TrialResidual.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert one.predicted_s(Correction(1.2, 0.9, 1e-3, 1)) == pytest.approx(one.measured_s)
    for field, value in (("measured_s", 0.0), ("comm_s", "x"), ("num_waits", -1), ("surprise", 1)):
        with pytest.raises(InputError, match=rf"lesson.{field}"):
            TrialResidual.from_dict({**one.to_dict(), field: value}, "lesson")
