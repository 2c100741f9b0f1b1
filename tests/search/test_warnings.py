"""What a plan says of collectives that its calibration has not measured, and of its precision."""

from __future__ import annotations

import pytest

from autosbp.api import Calibration, PlanOptions, capture, load_cluster, make_plan
from autosbp.costmodel.calibration import KINDS, CollectiveFit
from autosbp.graph.precision import in_precision
from autosbp.search._warnings import precision_warnings
from autosbp.zoo import zoo_graph

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
    assert said.startswith("The calibration did not measure all_reduce over 2x2")
    assert said.endswith("predicted from all_reduce over 2x1.")
    (said,) = warnings(fit("all_reduce", (1, 2)))
    assert said.endswith("predicted from the cluster's description.")


def test_unmeasured_messages_between_stages_are_warned_about() -> None:
    some = [one for one in EVERYTHING if one.kind != "p2p"]
    assert any("not measure p2p over 2x1" in said for said in warnings(*some, stages=2))
    assert warnings(*EVERYTHING, stages=2) == []


@pytest.mark.parametrize("complete", [True, False])
def test_an_incomplete_calibration_is_warned_about(complete: bool) -> None:
    told = "The calibration is incomplete: its run ended early."
    assert (told in warnings(*EVERYTHING, complete=complete)) is not complete


@pytest.mark.parametrize("storage", ["step", "use", "as_used"])
@pytest.mark.parametrize("devices", [2, 7])
def test_storage_that_no_parameter_takes_is_said_to_have_no_effect(storage: str, devices: int) -> None:
    """Seven devices divide no dim of the perceptron."""
    options = PlanOptions(global_batch=14, storage=storage, data_parallel=devices, baselines=())
    plan = make_plan(capture("zoo:mlp-small"), load_cluster(f"local:{devices}"), None, options)
    wanted = f"Storage {storage} has no effect: no replicated parameter splits evenly over its devices."
    assert plan.document["warnings"] == ([wanted] if devices == 7 and storage != "as_used" else [])


def test_devices_without_a_rate_for_the_dtype_and_unscaled_losses_are_told_of() -> None:
    graph = zoo_graph("mlp-small")
    summit, local = load_cluster("summit:1"), load_cluster("local:1")
    assert precision_warnings(graph, summit) == []
    assert precision_warnings(in_precision(graph, "bf16-mixed"), local) == []
    (lacking,) = precision_warnings(in_precision(graph, "bf16-mixed"), summit)
    assert "v100-16g" in lacking and "bfloat16" in lacking
    (unscaled,) = precision_warnings(in_precision(graph, "fp16-mixed"), summit)
    assert "scale the loss" in unscaled
