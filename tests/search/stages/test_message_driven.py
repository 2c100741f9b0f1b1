"""The message-driven schedule is in the space where it is asked for, is costed as simulated, and no trial claims to run it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autosbp.api import PlanOptions, predict_costs, run_trial
from autosbp.costmodel.memory.stage_memory import stage_memory
from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.errors import InputError, UnsupportedError
from autosbp.plan.plan import Plan, Strategy, plan_id_of
from autosbp.plan.schedules import MESSAGE_DRIVEN, ONE_F_ONE_B, RUNNABLE, SCHEDULES, Schedule
from tests.search.plans import graph_of, planned


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(stages=4, micro_batch=1, schedules=(MESSAGE_DRIVEN.name,))


def with_schedule(strategy: Strategy, schedule: Schedule) -> Strategy:
    assert strategy.pipeline is not None
    return replace(strategy, pipeline=replace(strategy.pipeline, schedule=schedule))


def test_message_driven_is_searched_only_on_request(plan: Plan) -> None:
    assert set(SCHEDULES) - set(RUNNABLE) == {MESSAGE_DRIVEN.name}
    assert PlanOptions().schedules == RUNNABLE
    assert plan.strategy.pipeline is not None
    assert plan.strategy.pipeline.schedule == MESSAGE_DRIVEN
    assert PlanOptions.from_dict(plan.document["options"]).schedules == (MESSAGE_DRIVEN.name,)
    assert Plan.from_dict(plan.to_dict()).strategy == plan.strategy


def test_a_plan_with_it_is_quicker_than_with_messages_that_are_waited_for_and_not_below_the_bound(plan: Plan) -> None:
    waiting = planned(stages=4, micro_batch=1, schedules=(ONE_F_ONE_B.name,)).document
    assert plan.document["lower_bound_s"] <= plan.document["step_time_s"] < waiting["step_time_s"]
    both = planned(stages=4, micro_batch=1, schedules=(ONE_F_ONE_B.name, MESSAGE_DRIVEN.name)).document
    assert both["step_time_s"] == pytest.approx(plan.document["step_time_s"])
    predicted = predict_costs(graph_of("gpt2-demo"), plan.strategy, plan.cluster)
    assert predicted.step_time_s == plan.document["step_time_s"]
    parts = plan.document["breakdown"]
    own = sum(parts[name] for name in ("compute_s", "exposed_comm_s", "bubble_s", "optimizer_s"))
    assert own == pytest.approx(plan.document["step_time_s"])
    assert sum(parts["exposed_comm_by_purpose_s"].values()) == pytest.approx(parts["exposed_comm_s"])


def test_its_stages_keep_what_those_of_1f1b_keep_and_the_messages_in_registers(plan: Plan) -> None:
    graph = graph_of("gpt2-demo").bind(batch=1)
    driven, fixed = (
        PipelineProgram(graph, with_schedule(plan.strategy, schedule)) for schedule in (MESSAGE_DRIVEN, ONE_F_ONE_B)
    )
    for stage in range(4):
        ahead = sum(size for _, size, _ in driven.sent_values(stage - 1)) if stage else 0
        back = sum(size for at in (stage - 1, stage) if at >= 0 for _, size, flows in driven.sent_values(at) if flows)
        more = sum(stage_memory(driven, stage).values()) - sum(stage_memory(fixed, stage).values())
        assert ahead + back <= more <= ahead + 2 * back


def test_the_plan_says_that_no_runtime_runs_it_and_a_trial_is_refused(plan: Plan, tmp_path: Path) -> None:
    assert any("No runtime supports the schedule message_driven" in text for text in plan.document["warnings"])
    assert not any("runtime" in text for text in planned(stages=4).document["warnings"])
    with pytest.raises(UnsupportedError, match="message_driven; supported: gpipe, 1f1b"):
        run_trial(plan, graph_of("gpt2-demo"), steps=1, warmup=1, workdir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_several_chunks_a_stage_are_refused(plan: Plan) -> None:
    pipeline = plan.document["strategy"]["pipeline"]
    strategy = {**plan.document["strategy"], "pipeline": {**pipeline, "num_stages": 2, "cuts": pipeline["cuts"][:3]}}
    document = {**plan.document, "strategy": strategy}
    with pytest.raises(InputError, match="one chunk per stage"):
        Plan.from_dict({**document, "plan_id": plan_id_of(document)})
