"""On four real ranks, for stages 2 x 2 and 4 x 1, every schedule and several layouts inside a stage: training equals one
device's, and messages and collectives are the charged ones, in the charged order."""

from __future__ import annotations

import pytest

from autosbp.graph.pipeline_chunks import cut_graph
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from tests.executor.pipeline.conftest import CASES, Reports, model
from tests.executor.pipeline.strategies import even_cuts, gated

pytestmark = [pytest.mark.slow, pytest.mark.integration]

KEYS = ("loss", "gradient", "loss_after_steps", "parameters")


def worst(reports: Reports, key: str, dtype: str) -> tuple[float, str]:
    ran = {label: ranks for label, ranks in reports.items() if label.endswith(dtype) and "dropout" not in label}
    return max((max(rank[key] for rank in ranks), label) for label, ranks in ran.items())


@pytest.mark.parametrize("key", KEYS)
def test_float64_training_equals_one_device_to_1e_9(reports: Reports, key: str) -> None:
    error, label = worst(reports, key, "float64")
    assert error <= 1e-9, label


@pytest.mark.parametrize("key", KEYS)
def test_float32_training_equals_one_device_to_1e_5(reports: Reports, key: str) -> None:
    error, label = worst(reports, key, "float32")
    assert error <= 1e-5, label


def test_every_rank_issues_what_was_charged_in_that_order(reports: Reports) -> None:
    for label, ranks in reports.items():
        for rank in ranks if "dropout" not in label else ():
            assert rank["collectives_match"], (label, rank.get("issued"), rank.get("expected"))


def test_every_schedule_ran_on_two_stages_of_two_and_four_of_one() -> None:
    for stages in (2, 4):
        ran = {(schedule, virtual) for cases in CASES.values() for n, _, schedule, virtual in cases if n == stages}
        assert {schedule for schedule, _ in ran} == {GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE}
        assert {(ZERO_BUBBLE, 1), (ZERO_BUBBLE, 2)} <= ran


def test_ranks_store_what_their_stage_reads_and_two_stages_the_tied_embedding(reports: Reports) -> None:
    ranks = reports["gpt2 4 stages whole 1f1b 1 float64"]
    stored = [set(rank["stored"]) for rank in ranks]
    names = {leaf.name for leaf in model("gpt2").parameters}
    assert set.union(*stored) == names
    twice = {name for name in names if sum(name in each for each in stored) > 1}
    assert twice == {next(name for name in names if "wte" in name)}


def test_values_went_through_stages_that_do_not_read_them(reports: Reports) -> None:
    graph = model("t5")
    chunks = cut_graph(graph.bind(**dict.fromkeys(graph.symbols, 1)), even_cuts(graph, 8))
    assert any(
        set(each.received_refs) & set(each.results) - {r for n in each.nodes for r in n.refs()} for each in chunks
    )
    assert "t5 4 stages whole interleaved_1f1b 2 float64" in reports


def test_values_without_gradient_and_with_odd_strides_went_through_stages(reports: Reports) -> None:
    graph = gated()
    chunks = cut_graph(graph.bind(batch=1), even_cuts(graph, 4))
    received = {ref.name: each.has_gradient(ref) for each in chunks for ref in each.received_refs}
    assert received == {"turned": True, "uv": True, "gate": False, "back": True}
    assert sum(label.startswith("gated 4 stages") for label in reports) == 3


def test_memory_of_the_fullest_rank_is_near_what_is_measured(reports: Reports) -> None:
    """What gradients of weights wait with is gone once they have come: it was there until the end of the step."""
    for label, ranks in reports.items():
        if "dropout" not in label:
            measured, predicted = (max(rank[key] for rank in ranks) for key in ("memory", "predicted_memory"))
            assert abs(predicted / measured - 1.0) <= 0.15, (label, measured, predicted)


def test_dropout_draws_what_the_strategy_without_its_pipeline_draws(reports: Reports) -> None:
    ranks = reports["dropout float64"]
    assert max(rank["loss"] for rank in ranks) <= 1e-9
    assert all(rank["different"] for rank in ranks)
