"""Every kind of model, from its config to training on four real ranks: equal to one device, collectives as charged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.conftest import MODELS, graph_of, plan_of

pytestmark = [pytest.mark.slow, pytest.mark.integration]

Reports = dict[str, dict[str, list[dict[str, Any]]]]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("key", ["loss", "gradient", "loss_after_steps"])
def test_training_equals_one_device_to_1e_9(reports: Reports, model: str, key: str) -> None:
    errors = {label: max(rank[key] for rank in ranks) for label, ranks in reports[model].items()}
    assert errors
    assert max(errors.values()) <= 1e-9, errors


@pytest.mark.parametrize("model", MODELS)
def test_issued_collectives_are_the_charged_ones(reports: Reports, model: str) -> None:
    for label, ranks in reports[model].items():
        issued, expected = ranks[0].get("issued"), ranks[0].get("expected")
        assert all(rank["collectives_match"] for rank in ranks), (label, issued, expected)


@pytest.mark.parametrize("model", MODELS)
def test_plan_is_bounded_and_no_op_is_left_without_layouts(model: str) -> None:
    plan, graph = plan_of(model), graph_of(model)
    assert 0.0 < plan.document["lower_bound_s"] <= plan.document["step_time_s"]
    assert set(plan.strategy.signatures) == {
        node.name for node in graph.nodes if node.name in graph.parameter_dependent
    }
    assert not plan.document.get("warnings")


def test_recomputed_layers_trained_in_eight_kinds_of_models(reports: Reports) -> None:
    assert sum("recomputed sample" in ran for ran in reports.values()) >= 8
