"""Pipelines whose stages share cores: the fluid simulation against cores that serve their ranks in turns."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from autosbp.costmodel.compute_contention import ComputeSharing, StageSpeeds
from autosbp.costmodel.contended_pipeline_timing import Parts, SharedTimeline, simulate_shared_pipeline
from autosbp.costmodel.pipeline_timing import ChunkTimes, pass_spans, pipeline_time
from autosbp.costmodel.step_simulator import ProgramPart
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, Schedule
from autosbp.schedules.passes import BACKWARD, FORWARD, WGRAD, Pass, stage_passes

SCHEDULES = ((GPIPE, 1), (ONE_F_ONE_B, 1), (INTERLEAVED, 2), (ZERO_BUBBLE, 1), (ZERO_BUBBLE, 2))
TICKS_OF_WORK = 100
"""The least that a part of a pass computes, in a core's turns."""


@dataclass
class Rank:
    """One process of a stage: what is left of its pass, in ticks of a core that is its own, or of waiting."""

    core: int
    order: tuple[Pass, ...]
    at: int = 0
    left: list[list[int]] = field(default_factory=list)
    free: int = 0
    behind: int = 0
    unsent: list[Pass] = field(default_factory=list)
    ends: list[tuple[Pass, int, int]] = field(default_factory=list)
    begun: int = -1


def served_in_turns(
    work: list[dict[str, list[tuple[int, bool]]]], sends: list[tuple[int, int]], pipeline: Pipeline, num_micro: int,
    cores: list[int],
) -> list[Rank]:  # fmt: skip
    """One rank a stage. Each tick every core serves one of its ranks that compute, the next one in turn; who waits, waits."""
    ranks = [
        Rank(core, stage_passes(pipeline, stage, num_micro))
        for stage, core in zip(range(len(cores)), cores, strict=True)
    ]
    arrived: dict[Pass, int] = {}
    last = len(work) - 1
    blocks = pipeline.schedule in (GPIPE, ONE_F_ONE_B)
    turns = dict.fromkeys(cores, 0)

    def needs(one: Pass) -> Pass | None:
        if one.kind == FORWARD:
            return Pass(FORWARD, one.chunk - 1, one.micro) if one.chunk else None
        if one.kind == WGRAD:
            return Pass(BACKWARD, one.chunk, one.micro)
        return Pass(FORWARD, last, one.micro) if one.chunk == last else Pass(BACKWARD, one.chunk + 1, one.micro)

    def crosses(one: Pass) -> bool:
        return one.chunk < last if one.kind == FORWARD else one.kind == BACKWARD and one.chunk > 0

    def follows(rank: Rank) -> bool:
        """Whether the rank goes on with another pass of the same direction, whatever it sent."""
        return blocks and rank.at < len(rank.order) and rank.order[rank.at].kind == rank.order[rank.at - 1].kind

    def end(rank: Rank, now: int) -> None:
        one = rank.order[rank.at]
        rank.ends.append((one, rank.begun, now))
        rank.at, rank.begun = rank.at + 1, -1
        rank.unsent.append(one)
        if blocks and rank.at < len(rank.order):
            asked.add(needs(rank.order[rank.at]))
        rank.free = now if follows(rank) else -1

    def send(rank: Rank, now: int) -> None:
        """Messages begin when they are asked for, one behind the other."""
        while rank.unsent and (not blocks or not crosses(rank.unsent[0]) or rank.unsent[0] in asked):
            one = rank.unsent.pop(0)
            takes = sends[one.chunk][one.kind == BACKWARD] if crosses(one) else 0
            rank.behind = arrived[one] = max(now, rank.behind) + takes
            if not rank.unsent and rank.free < 0:
                rank.free, rank.behind = rank.behind, 0

    asked: set[Pass | None] = {needs(rank.order[0]) for rank in ranks}
    now = 0
    while any(rank.at < len(rank.order) for rank in ranks):
        for _ in ranks:  # what ends now may let another one begin now
            for rank in ranks:
                if rank.begun < 0 and rank.at < len(rank.order) and 0 <= rank.free <= now:
                    source = needs(rank.order[rank.at])
                    if source is None or arrived.get(source, now + 1) <= now:
                        one = rank.order[rank.at]
                        rank.begun, rank.left = (
                            now,
                            [[ticks, computes] for ticks, computes in work[one.chunk][one.kind]],
                        )
        for core in set(cores):
            ready = [rank for rank in ranks if rank.core == core and rank.begun >= 0 and rank.left[0][1]]
            if ready:
                turns[core] += 1
                ready[turns[core] % len(ready)].left[0][0] -= 1
        now += 1
        for rank in ranks:
            if rank.begun >= 0:
                rank.left[0][0] -= not rank.left[0][1]
                if rank.left[0][0] == 0:
                    rank.left.pop(0)
                if not rank.left:
                    end(rank, now)
        for rank in ranks:
            send(rank, now)
    return ranks


def simulated(
    work: list[dict[str, list[tuple[int, bool]]]], sends: list[tuple[int, int]], pipeline: Pipeline, num_micro: int,
    cores: list[int], speedup: float,
) -> SharedTimeline:  # fmt: skip
    """Calibrated times are those of all ranks at once: as many times longer as a core has ranks."""
    stages = pipeline.num_stages

    def calibrated(chunk: int, parts: list[tuple[int, bool]]) -> Parts:
        ranks = cores.count(cores[chunk % stages])
        return tuple(ProgramPart(float(ticks * ranks if computes else ticks), computes) for ticks, computes in parts)

    parts = [{kind: calibrated(at, own) for kind, own in one.items()} for at, one in enumerate(work)]
    chunks = [ChunkTimes(0.0, 0.0, 0.0, float(ahead), float(back)) for ahead, back in sends]
    return simulate_shared_pipeline(
        chunks, parts, pipeline, num_micro, StageSpeeds(ComputeSharing(speedup, tuple(cores)), stages, 1)
    )


def drawn(draw: random.Random, kinds: tuple[str, ...]) -> dict[str, list[tuple[int, bool]]]:
    return {
        kind: [
            (draw.randint(1, 5) * TICKS_OF_WORK if at % 2 == 0 else draw.randint(1, 400), at % 2 == 0)
            for at in range(draw.choice((1, 2, 3)))
        ]
        for kind in kinds
    }


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.some(3)
def test_passes_run_when_cores_that_serve_ranks_in_turns_have_them(seed: int) -> None:
    draw = random.Random(seed)
    schedule, virtual = SCHEDULES[seed % len(SCHEDULES)]
    stages = draw.choice((2, 3, 4))
    cores = [stage % draw.choice((1, 2)) for stage in range(stages)]
    pipeline = Pipeline(stages, tuple(map(str, range(1, stages * virtual))), schedule)
    num_micro = stages * draw.choice((1, 2))
    kinds = (FORWARD, BACKWARD, WGRAD) if schedule == ZERO_BUBBLE else (FORWARD, BACKWARD)
    work = [drawn(draw, kinds) for _ in range(stages * virtual)]
    sends = [(draw.randint(0, 300), draw.randint(0, 300)) for _ in work]
    expected = served_in_turns(work, sends, pipeline, num_micro, cores)
    found = simulated(work, sends, pipeline, num_micro, cores, 64.0)
    # A rank may wait for a turn at the begin of each part, and what begins later ends later: a tick or two each.
    slack = 2 * stages * sum(len(parts) for one in work for parts in one.values()) * num_micro
    for stage, rank in enumerate(expected):
        own = [span for span in found.spans if span.stage == stage]
        assert [span.what for span in own] == [one for one, _, _ in rank.ends]
        for span, (_, begun, ended) in zip(own, rank.ends, strict=True):
            assert abs(span.start_s - begun) <= slack and abs(span.end_s - ended) <= slack
    step = max(rank.free for rank in expected)
    assert max(found.ends) == pytest.approx(step, rel=0.01)


@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES)
def test_without_contention_passes_have_their_usual_times(schedule: Schedule, virtual: int) -> None:
    draw = random.Random(7)
    stages, micro = 4, 8
    pipeline = Pipeline(stages, tuple(map(str, range(1, stages * virtual))), schedule)
    chunks, parts = [], []
    longest = 0.0 if schedule in (GPIPE, ONE_F_ONE_B) else 0.5
    for _ in range(stages * virtual):
        seconds = [draw.uniform(0.5, 2.0) for _ in range(3 if schedule == ZERO_BUBBLE else 2)]
        chunks.append(
            ChunkTimes(*seconds, send_s=draw.uniform(0.0, longest), gradient_send_s=draw.uniform(0.0, longest))
        )
        parts.append({
            kind: (ProgramPart(0.25 * each, True), ProgramPart(0.5 * each, False), ProgramPart(0.25 * each, True))
            for kind, each in zip((FORWARD, BACKWARD, WGRAD), seconds, strict=False)
        })  # fmt: skip
    for sharing in (ComputeSharing(1.0, (0, 0, 0, 0)), ComputeSharing(4.0, (0, 1, 2, 3))):
        found = simulate_shared_pipeline(chunks, parts, pipeline, micro, StageSpeeds(sharing, stages, 1))
        plain = pass_spans(chunks, pipeline, micro)
        assert [(span.stage, span.what) for span in found.spans] == [(span.stage, span.what) for span in plain]
        assert [span.start_s for span in found.spans] == pytest.approx([span.start_s for span in plain])
        assert found.ends == pytest.approx(pipeline_time(chunks, stages, micro, 0.0, schedule).ends)


def test_one_microbatch_through_two_stages_on_one_core_takes_half_and_no_less_than_the_speedup_lets_it() -> None:
    pipeline = Pipeline(2, ("1",), ONE_F_ONE_B)
    chunks = [ChunkTimes(0.0, 0.0, send_s=0.0, gradient_send_s=0.0)] * 2
    parts = [{FORWARD: (ProgramPart(4.0, True),), BACKWARD: (ProgramPart(8.0, True),)}] * 2
    for speedup, step_s in ((1.0, 24.0), (1.5, 16.0), (2.0, 12.0), (3.0, 12.0)):
        paces = StageSpeeds(ComputeSharing(speedup, (0, 0)), 2, 1)
        assert max(simulate_shared_pipeline(chunks, parts, pipeline, 1, paces).ends) == pytest.approx(step_s)


def test_a_stage_computes_at_the_pace_of_its_slowest_rank() -> None:
    # Stages of two ranks; units 0 and 1 have one rank of stage 0 and one of stage 1, but rank 3 is alone on unit 2.
    paces = StageSpeeds(ComputeSharing(2.0, (0, 1, 0, 2)), 2, 2)
    assert paces.of((0,)) == (1.0,)  # rank 1 has nobody to wait for
    assert paces.of((1,)) == (1.0,)
    assert StageSpeeds(ComputeSharing(2.0, (0, 1, 0, 1)), 2, 2).of((0,)) == (2.0,)
    assert StageSpeeds(ComputeSharing(3.0, (0, 0, 0, 0)), 4, 1).of((0, 2, 3)) == pytest.approx((4 / 3,) * 3)
    assert StageSpeeds(ComputeSharing(3.0, (0, 0, 0, 0)), 4, 1).of((1,)) == (3.0,)


def test_cores_of_unused_ranks_are_available_to_others() -> None:
    assert StageSpeeds(ComputeSharing(2.0, (0, 1, 0, 1)), 2, 1).of((0, 1)) == (2.0, 2.0)


def test_a_message_begins_when_it_is_asked_for() -> None:
    # Stage 1 asks for its second input when its first pass is over, at 1 + 2 + 4 s; stage 0 had it long before.
    second, fourth = (ProgramPart(1.0, True),), (ProgramPart(4.0, True),)
    parts = [{FORWARD: second, BACKWARD: second}, {FORWARD: fourth, BACKWARD: second}]
    chunks = [ChunkTimes(0.0, 0.0, send_s=2.0, gradient_send_s=0.0)] * 2
    paces = StageSpeeds(ComputeSharing(1.0, (0, 0)), 2, 1)
    spans = simulate_shared_pipeline(chunks, parts, Pipeline(2, ("1",), GPIPE), 2, paces).spans
    found = {(span.what.kind, span.stage, span.what.micro): span.start_s for span in spans}
    assert [found[FORWARD, stage, micro] for stage in (0, 1) for micro in (0, 1)] == [0.0, 1.0, 3.0, 9.0]
