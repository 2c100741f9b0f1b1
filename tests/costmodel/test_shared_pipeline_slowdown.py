"""Pipelines whose passes, messages and collectives slow each other down, against a simulation in small steps of time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from math import log

import pytest

from autosbp.costmodel.compute_contention import ComputeSharing, StageSpeeds
from autosbp.costmodel.contended_pipeline_timing import Parts, SharedTimeline, simulate_shared_pipeline
from autosbp.costmodel.link_contention import StageLinks
from autosbp.costmodel.overlap import Overlap
from autosbp.costmodel.pipeline_timing import ChunkTimes
from autosbp.costmodel.step_simulator import ProgramPart
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from autosbp.schedules.passes import BACKWARD, FORWARD, WGRAD, Pass, stage_passes

SCHEDULES = ((GPIPE, 1), (ONE_F_ONE_B, 1), (INTERLEAVED, 2), (ZERO_BUBBLE, 1), (ZERO_BUBBLE, 2))
CLUSTERS = ((4, 1), (2, 2))
TICK_S = 0.05


@dataclass(frozen=True)
class Case:
    """``work`` are the passes of each chunk, ``sends`` the seconds of its messages ahead and back."""

    pipeline: Pipeline
    num_micro: int
    work: tuple[dict[str, Parts], ...]
    sends: tuple[tuple[float, float], ...]
    cores: tuple[int, ...]
    counts: tuple[int, int]
    size: int
    speedup: float
    overlap: Overlap


@dataclass
class Actor:
    """A stage: the pass under way with what is left of its parts, and messages that wait for the one before them."""

    order: tuple[Pass, ...]
    at: int = 0
    left: list[ProgramPart] | None = None
    messages: list[tuple[Pass, float]] = field(default_factory=list)
    unasked: list[Pass] = field(default_factory=list)
    waits_for: Pass | None = None
    spans: list[tuple[Pass, float, float]] = field(default_factory=list)
    done_s: float = 0.0
    begun_s: float = 0.0


class Stepped:
    """Every tick, each rank looks at what its core and its links are busy with."""

    def __init__(self, case: Case) -> None:
        self.case, self.last = case, len(case.work) - 1
        self.stages = range(case.pipeline.num_stages)
        self.actors = [Actor(stage_passes(case.pipeline, stage, case.num_micro)) for stage in self.stages]
        self.blocks = case.pipeline.schedule in (GPIPE, ONE_F_ONE_B)
        self.there: set[Pass] = set()
        self.asked = {self.needs(actor.order[0]) for actor in self.actors}
        self.now_s = 0.0

    def needs(self, one: Pass) -> Pass | None:
        if one.kind == FORWARD:
            return Pass(FORWARD, one.chunk - 1, one.micro) if one.chunk else None
        if one.kind == WGRAD:
            return Pass(BACKWARD, one.chunk, one.micro)
        return (
            Pass(FORWARD, self.last, one.micro) if one.chunk == self.last else Pass(BACKWARD, one.chunk + 1, one.micro)
        )

    def takes_s(self, one: Pass) -> float | None:
        """None where a pass sends nothing."""
        if one.kind == FORWARD and one.chunk < self.last:
            return self.case.sends[one.chunk][0]
        return self.case.sends[one.chunk][1] if one.kind == BACKWARD and one.chunk > 0 else None

    def target(self, one: Pass) -> int:
        return (one.chunk + (1 if one.kind == FORWARD else -1)) % len(self.actors)

    def ranks(self, stage: int) -> range:
        return range(stage * self.case.size, (stage + 1) * self.case.size)

    def node(self, rank: int) -> int:
        return rank // self.case.counts[1]

    def run(self) -> list[Actor]:
        while any(actor.at < len(actor.order) or actor.left is not None or actor.messages for actor in self.actors):
            self.begin()
            self.tick()
        return self.actors

    def begin(self) -> None:
        for _ in self.stages:
            for actor in self.actors:
                if actor.left is None and actor.waits_for is None and actor.at < len(actor.order):
                    source = self.needs(actor.order[actor.at])
                    if source is None or source in self.there:
                        one = actor.order[actor.at]
                        actor.left = list(self.case.work[one.chunk][one.kind])
                        actor.begun_s = self.now_s

    def tick(self) -> None:
        computing = [at for at in self.stages if (left := self.actors[at].left) and left[0].computes]
        moving = {at: left[0].level for at in self.stages if (left := self.actors[at].left) and not left[0].computes}
        sending = {at: self.target(self.actors[at].messages[0][0]) for at in self.stages if self.actors[at].messages}
        cores, ends = Counter[int](), Counter[int]()
        for stage in computing:
            cores.update(self.case.cores[rank] for rank in self.ranks(stage))
        for stages, count in ((moving, 2), (sending, 1), (sending.values(), 1)):
            for stage in stages:
                for rank in self.ranks(stage):
                    ends[self.case.cores[rank]] += count
        speeds = {
            stage: min(self.speed(self.case.cores[rank], cores, ends) for rank in self.ranks(stage))
            for stage in computing
        }
        streams: dict[object, set[object]] = {("inside", at): self.inside(at, level) for at, level in moving.items()}
        streams |= {("message", at): self.across(at, to) for at, to in sending.items()}
        used = Counter(link for links in streams.values() for link in links)
        rates = {name: min([1.0 / used[link] for link in links], default=1.0) for name, links in streams.items()}
        self.now_s += TICK_S
        for stage in sending:
            self.send(stage, TICK_S * rates["message", stage])
        for stage, actor in enumerate(self.actors):
            if actor.left is not None:
                rate = speeds[stage] if stage in speeds else rates["inside", stage]
                self.work(actor, TICK_S * rate)

    def speed(self, core: int, cores: Counter[int], ends: Counter[int]) -> float:
        """Of all ranks of a core computing, one is p times slower than alone; communication is like more of them."""
        ranks, each, all_of_them = self.case.cores.count(core), self.case.overlap.message, self.case.overlap.compute
        part, taken = ends[core] / ranks, 0.0
        if part and each:
            taken = each * part ** max(1.0, log(all_of_them / each) / log(2.0)) if all_of_them else each * part
        return min(ranks / (cores[core] + ranks * taken), self.case.speedup)

    def inside(self, stage: int, level: int) -> set[object]:
        """Collectives across nodes use the links of the nodes, others those of their ranks."""
        names = {("node", self.node(rank)) if level == 0 else ("rank", rank) for rank in self.ranks(stage)}
        return {(way, name) for way in "<>" for name in names}

    def across(self, stage: int, target: int) -> set[object]:
        found: set[object] = set()
        for one, two in zip(self.ranks(stage), self.ranks(target), strict=True):
            near = self.node(one) == self.node(two)
            found.add((">", ("rank", one) if near else ("node", self.node(one))))
            found.add(("<", ("rank", two) if near else ("node", self.node(two))))
        return found

    def work(self, actor: Actor, seconds: float) -> None:
        assert actor.left is not None
        actor.left[0] = actor.left[0]._replace(seconds=actor.left[0].seconds - seconds)
        if actor.left[0].seconds <= 1e-9:
            actor.left.pop(0)
        if not actor.left:
            self.end(actor)

    def end(self, actor: Actor) -> None:
        one = actor.order[actor.at]
        actor.left, actor.at, actor.done_s = None, actor.at + 1, self.now_s
        actor.spans.append((one, actor.begun_s, self.now_s))
        more = actor.at < len(actor.order)
        goes_on = self.blocks and more and actor.order[actor.at].kind == one.kind
        actor.waits_for = None if goes_on else one
        if self.takes_s(one) is None or not self.blocks or one in self.asked:
            self.post(actor, one)
        else:
            actor.unasked.append(one)
        if self.blocks and more:
            wanted = self.needs(actor.order[actor.at])
            self.asked.add(wanted)
            for other in self.actors:
                if wanted in other.unasked:
                    other.unasked.remove(wanted)
                    self.post(other, wanted)

    def post(self, actor: Actor, one: Pass) -> None:
        actor.messages.append((one, self.takes_s(one) or 0.0))
        self.arrive(actor)

    def send(self, stage: int, seconds: float) -> None:
        actor = self.actors[stage]
        one, left_s = actor.messages[0]
        actor.messages[0] = (one, left_s - seconds)
        self.arrive(actor)

    def arrive(self, actor: Actor) -> None:
        while actor.messages and actor.messages[0][1] <= 1e-9:
            one, _ = actor.messages.pop(0)
            self.there.add(one)
            if actor.waits_for == one:
                actor.waits_for, actor.done_s = None, self.now_s


def drawn(seed: int) -> Case:
    draw = random.Random(seed)
    schedule, virtual = SCHEDULES[seed % len(SCHEDULES)]
    counts = draw.choice(CLUSTERS)
    stages, size = draw.choice(((2, 2), (4, 1), (2, 1)))
    pipeline = Pipeline(stages, tuple(map(str, range(1, stages * virtual))), schedule)
    kinds = (FORWARD, BACKWARD, WGRAD) if schedule == ZERO_BUBBLE else (FORWARD, BACKWARD)
    level = -1 if size == 1 else 0 if counts == (4, 1) else 1

    def parts() -> Parts:
        first = [ProgramPart(draw.uniform(5.0, 30.0), True)]
        if level < 0:
            return tuple(first)
        wait, rest = ProgramPart(draw.uniform(3.0, 30.0), False, level), ProgramPart(draw.uniform(5.0, 20.0), True)
        return tuple(draw.choice(([*first, wait], [*first, wait, rest], [wait, rest])))

    message = draw.uniform(0.2, 3.0)
    return Case(
        pipeline,
        stages * draw.choice((1, 2)),
        tuple({kind: parts() for kind in kinds} for _ in range(stages * virtual)),
        tuple((draw.uniform(0.0, 30.0), draw.uniform(0.0, 30.0)) for _ in range(stages * virtual)),
        draw.choice(((0, 1, 0, 1), (0, 0, 0, 0), (0, 1, 2, 3))),
        counts,
        size,
        draw.choice((1.0, 1.6, 4.0)),
        Overlap(draw.choice((0.0, 0.5, 3.0)) * message, 0.0, message),
    )


def simulated(case: Case, links: StageLinks | None = None) -> SharedTimeline:
    chunks = [ChunkTimes(0.0, 0.0, 0.0, ahead, back) for ahead, back in case.sends]
    paces = StageSpeeds(ComputeSharing(case.speedup, case.cores), case.pipeline.num_stages, case.size, case.overlap)
    return simulate_shared_pipeline(chunks, case.work, case.pipeline, case.num_micro, paces, links)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.some(3)
def test_pass_times_match_a_time_stepped_simulation(seed: int) -> None:
    case = drawn(seed)
    expected, found = Stepped(case).run(), simulated(case, StageLinks(case.counts, case.size))
    # Whatever ends within a tick ends with it: as much for each pass, part and message that others wait for.
    slack = TICK_S * 6 * sum(len(parts) for one in case.work for parts in one.values()) * case.num_micro
    for stage, actor in enumerate(expected):
        own = [span for span in found.spans if span.stage == stage]
        assert [span.what for span in own] == [one for one, _, _ in actor.spans]
        for span, (_, begun, ended) in zip(own, actor.spans, strict=True):
            assert abs(span.start_s - begun) <= slack and abs(span.end_s - ended) <= slack
    assert max(found.ends) == pytest.approx(max(actor.done_s for actor in expected), rel=0.02)


@pytest.mark.parametrize("seed", range(10))
def test_a_calibration_that_did_not_measure_messages_predicts_what_it_did(seed: int) -> None:
    case = drawn(seed)
    earlier = replace(case, overlap=Overlap(case.overlap.compute, 1.0))
    assert simulated(earlier) == simulated(replace(case, overlap=Overlap()))


@pytest.mark.parametrize("seed", range(10))
def test_sharing_a_link_or_core_never_speeds_up(seed: int) -> None:
    case = drawn(seed)
    alone = max(simulated(replace(case, overlap=Overlap())).ends)
    slowed = max(simulated(case).ends)
    assert alone * 0.9 <= slowed  # no order of passes changes, but what begins later may disturb less
    assert max(simulated(replace(case, overlap=Overlap()), StageLinks(case.counts, case.size)).ends) >= alone * 0.9


def test_communication_slows_a_rank_of_its_own_core_as_it_was_measured() -> None:
    overlap = Overlap(compute=6.0, network=0.5, message=1.5)
    alone = StageSpeeds(ComputeSharing(1.0, (0, 1)), 2, 1, overlap)
    assert alone.of((0,), (1, 1)) == pytest.approx((1 / 2.5,))  # one message
    assert alone.of((0, 1), (2, 2)) == pytest.approx((1 / 7,) * 2)  # both ways, as in an all-reduce
    assert alone.of((0,), (0, 2)) == (1.0,)


def test_communication_of_any_stage_slows_ranks_on_its_core() -> None:
    overlap = Overlap(compute=6.0, network=0.5, message=1.5)
    paces = StageSpeeds(ComputeSharing(2.0, (0, 1, 0, 1)), 2, 2, overlap)
    assert paces.of((0,), (0, 0)) == (2.0,)
    assert paces.of((0, 1), (1, 1)) == pytest.approx((1 / 2.5,) * 2)  # each rank one end, as it was measured
    assert paces.of((0,), (1, 1)) == pytest.approx((2 / (1 + 3.0),))
    assert paces.of((1,), (2, 0)) == pytest.approx((2 / (1 + 3.0),))  # a collective of the other stage: as many ends
    assert paces.of((0, 1), (2, 2)) == pytest.approx((1 / 7,) * 2)


def test_less_measured_for_an_all_reduce_than_for_two_messages_is_taken_for_noise() -> None:
    paces = StageSpeeds(ComputeSharing(1.0, (0,)), 1, 1, Overlap(compute=1.0, message=2.0))
    assert paces.of((0,), (2,)) == pytest.approx((1 / 5,))
