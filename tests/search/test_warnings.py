"""What a plan says of collectives that its calibration has not measured."""

from __future__ import annotations

import pytest

from autosbp.api import Calibration, PlanOptions, capture, load_cluster, make_plan
from autosbp.costmodel.calibration import KINDS, CollectiveFit

CLUSTER = load_cluster("local:2x2")
SHAPES = ((1, 2), (2, 1), (2, 2))


def fit(kind: str, shape: tuple[int, ...]) -> CollectiveFit:
    return CollectiveFit(kind, shape, 1e-4, 1e-9, 1.0, 0.0, 0.0, ())


def warnings(*fits: CollectiveFit, complete: bool = True, stages: int = 1) -> list[str]:
    """Of a plan that keeps all parameters on every device, so that gradients are summed over all."""
    calibration = Calibration(CLUSTER, "gloo", "relative", fits, complete=complete)
    options = PlanOptions(global_batch=16, stages=stages, storage="as_used", data_parallel=4 // stages, baselines=())
    return list(make_plan(capture("zoo:mlp-small"), CLUSTER, calibration, options).document["warnings"])


EVERYTHING = [fit(kind, shape) for kind in KINDS for shape in SHAPES]


def test_a_plan_of_measured_collectives_says_nothing() -> None:
    assert warnings(*EVERYTHING) == []


def test_a_shape_that_was_never_measured_is_named_with_what_it_is_predicted_from() -> None:
    (said,) = warnings(fit("all_reduce", (2, 1)), fit("all_reduce", (1, 2)))
    assert said.startswith("The calibration has not measured all_reduce over 2x2")
    assert said.endswith("predicted from all_reduce over 2x1.")
    (said,) = warnings(fit("all_reduce", (1, 2)))
    assert said.endswith("predicted from the cluster's description.")


def test_messages_between_stages_are_among_them() -> None:
    some = [one for one in EVERYTHING if one.kind != "p2p"]
    assert any("not measured p2p over 2x1" in said for said in warnings(*some, stages=2))
    assert warnings(*EVERYTHING, stages=2) == []


@pytest.mark.parametrize("complete", [True, False])
def test_a_run_that_ended_early_is_told(complete: bool) -> None:
    told = "The calibration is not complete: its run ended early."
    assert (told in warnings(*EVERYTHING, complete=complete)) is not complete


@pytest.mark.parametrize("storage", ["step", "use", "as_used"])
@pytest.mark.parametrize("devices", [2, 7])
def test_storage_that_no_parameter_takes_is_said_to_have_no_effect(storage: str, devices: int) -> None:
    """Seven devices divide no dim of the perceptron."""
    options = PlanOptions(global_batch=14, storage=storage, data_parallel=devices, baselines=())
    plan = make_plan(capture("zoo:mlp-small"), load_cluster(f"local:{devices}"), None, options)
    wanted = f"Storage {storage} has no effect: no parameter that several devices use whole splits evenly over them."
    assert plan.document["warnings"] == ([wanted] if devices == 7 and storage != "as_used" else [])
