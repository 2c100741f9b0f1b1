"""Message-driven pipelines against a simulation of their own: actors with mailboxes, tick by tick."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from autosbp.costmodel.pipeline_timing import ChunkTimes, pass_spans, pipeline_time
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.schedules import MESSAGE_DRIVEN, ONE_F_ONE_B
from autosbp.schedules.message_driven import GRADIENT_REGISTERS, StageSeconds, message_driven
from autosbp.schedules.passes import BACKWARD, FORWARD


@dataclass
class Link:
    """Messages wait here, one at a time is under way."""

    ticks: int
    waiting: list[int] = field(default_factory=list)
    left: int = 0
    carried: int | None = None


@dataclass
class Stage:
    """Credits as DESIGN section 9 has them: a pass takes them and gives them back."""

    ticks: dict[str, int]
    free: int
    inputs: list[int] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)
    free_in: int = GRADIENT_REGISTERS  # for gradients that come
    free_out: int = GRADIENT_REGISTERS  # for those that go
    work: tuple[str, int] | None = None
    left: int = 0
    done: list[tuple[str, int, int]] = field(default_factory=list)
    held: int = 0  # inputs received and not given back
    most_held: int = 0
    most_in_flight: int = 0


def ticked(times: list[tuple[int, int, int, int]], num_micro: int) -> list[Stage]:
    """Each tick: what is over frees what it took, messages begin, then idle stages take work. Times are whole ticks, of
    passes at least one."""
    count = len(times)
    stages = [Stage({FORWARD: one[0], BACKWARD: one[1]}, count - at) for at, one in enumerate(times)]
    ahead = [Link(one[2]) for one in times]
    back = [Link(one[3]) for one in times]
    stages[0].inputs = list(range(num_micro))

    def arrive(at: int, link: Link, behind: bool) -> None:
        micro, link.carried = link.carried, None
        if behind:
            stages[at + 1].inputs.append(micro)
        else:
            stages[at - 1].gradients.append(micro)
            stages[at].free_out += 1

    def carry(at: int, link: Link, behind: bool) -> None:
        while link.carried is None and link.waiting and (behind or stages[at - 1].free_in):
            link.carried, link.left = link.waiting.pop(0), link.ticks
            if behind:
                other = stages[at + 1]
                other.held += 1
                other.most_held = max(other.most_held, other.held)
            else:
                stages[at - 1].free_in -= 1
            if link.ticks == 0:
                arrive(at, link, behind)

    now = 0
    while any(len(stage.done) < 2 * num_micro for stage in stages):
        for at, stage in enumerate(stages):
            if stage.work is not None and stage.left == 0:
                kind, micro = stage.work
                stage.work = None
                stage.done.append((kind, micro, now))
                if kind == FORWARD:
                    (ahead[at].waiting if at + 1 < count else stage.gradients).append(micro)
                else:
                    stage.free += 1
                    stage.held -= 1
                    stage.free_in += at + 1 < count
                    if at:
                        back[at].waiting.append(micro)
        for at in range(count):
            for link, behind in ((ahead[at], True), (back[at], False)):
                if link.carried is not None and link.left == 0:
                    arrive(at, link, behind)
        for at in range(count):
            carry(at, ahead[at], True)
            carry(at, back[at], False)
        for at, stage in enumerate(stages):
            if stage.work is None and stage.gradients and (stage.free_out or not at):
                stage.work = BACKWARD, stage.gradients.pop(0)
                stage.free_out -= at > 0
            elif stage.work is None and stage.inputs and stage.free:
                stage.work = FORWARD, stage.inputs.pop(0)
                stage.free -= 1
                stage.held += at == 0
                stage.most_in_flight = max(stage.most_in_flight, count - at - stage.free)
            else:
                continue
            stage.left = stage.ticks[stage.work[0]]
        now += 1
        for stage in stages:
            stage.left -= stage.work is not None
        for link in (*ahead, *back):
            link.left -= link.carried is not None
    return stages


def cases() -> list[tuple[list[tuple[int, int, int, int]], int]]:
    draw = random.Random(5)
    found = []
    for _ in range(300):
        stages = draw.randint(1, 6)
        longest = draw.choice((3, 9, 30))
        sends = draw.choice((0, 3, 40))
        times = [
            (draw.randint(1, longest), draw.randint(1, longest), draw.randint(0, sends), draw.randint(0, sends))
            for _ in range(stages)
        ]
        found.append((times, draw.randint(1, 12)))
    return found


def test_every_pass_runs_when_a_simulation_with_credits_and_mailboxes_has_it() -> None:
    for times, num_micro in cases():
        expected = [
            [(kind, micro, end) for kind, micro, end in stage.done] for stage in ticked(times, num_micro)
        ]  # fmt: skip
        found = message_driven([StageSeconds(*map(float, one)) for one in times], num_micro)
        assert [[(one.what.kind, one.what.micro, one.end_s) for one in passes] for passes in found] == expected


def test_a_stage_never_keeps_more_than_its_registers_and_one_input_that_waits() -> None:
    most = 0
    for times, num_micro in cases():
        for at, stage in enumerate(ticked(times, num_micro)):
            registers = MESSAGE_DRIVEN.in_flight(at, len(times), num_micro)
            assert stage.most_in_flight <= registers
            assert stage.most_held <= registers + (at > 0)
            most = max(most, stage.most_held - registers)
    assert most == 1


@pytest.mark.parametrize(("stages", "micro"), [(1, 3), (2, 5), (4, 8), (6, 4)])
def test_equal_stages_without_messages_take_what_1f1b_takes(stages: int, micro: int) -> None:
    chunks = [ChunkTimes(1.0, 2.0)] * stages
    driven = pipeline_time(chunks, stages, micro, 0.0, MESSAGE_DRIVEN)
    assert driven.step_s == pipeline_time(chunks, stages, micro, 0.0, ONE_F_ONE_B).step_s == 3.0 * (micro + stages - 1)
    assert driven.bubble_s == pytest.approx(3.0 * (stages - 1))


def test_messages_beside_passes_cost_less_than_messages_that_are_waited_for() -> None:
    chunks = [ChunkTimes(1.0, 2.0)] * 4
    driven, fixed = (pipeline_time(chunks, 4, 16, 0.5, kind) for kind in (MESSAGE_DRIVEN, ONE_F_ONE_B))
    assert driven.step_s < fixed.step_s
    assert driven.send_s == 0.0


def test_spans_are_those_of_the_step() -> None:
    chunks = [ChunkTimes(1.0, 2.0, 0.0, 0.25, 0.25)] * 3
    spans = pass_spans(chunks, Pipeline(3, ("1", "2"), MESSAGE_DRIVEN), 5)
    assert max(span.end_s for span in spans) == pipeline_time(chunks, 3, 5, 0.0, MESSAGE_DRIVEN).step_s
    assert len({(span.stage, span.what) for span in spans}) == 3 * 5 * 2
