"""What stages wait for each other: no simulated step of chunks that take anything is below it, and some are near."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from numpy.typing import NDArray

from autosbp.costmodel.pipeline_timing import ChunkTimes, pipeline_time
from autosbp.plan.schedules import (
    GPIPE,
    INTERLEAVED,
    MESSAGE_DRIVEN,
    ONE_F_ONE_B,
    RUNNABLE,
    ZERO_BUBBLE,
    PathWaits,
    Schedule,
    Wait,
)
from autosbp.search.bounds.bubble_bound import bubble_s
from autosbp.search.bounds.p2p_bound import waited_messages_per_cut
from autosbp.search.stages.schedule_candidates import ScheduleShape, schedule_shapes

Floats = NDArray[np.float64]
ALL = (*RUNNABLE, MESSAGE_DRIVEN.name)


def parts(seconds: Floats) -> tuple[float, Floats]:
    """Of all stages, and the least of any 1, 2, ... of them."""
    return float(seconds.sum()), np.cumsum(np.sort(seconds))[:-1]


def random_chunks(dice: np.random.Generator, shape: ScheduleShape, stages: int) -> tuple[Floats, ...]:
    """Forward, backward, what is put off, and messages ahead and back, by chunk of a stage and stage."""
    spread = dice.choice([0.0, 0.2, 0.9, 1.0])
    seconds = 1 + spread * dice.uniform(-1, 1, (5, shape.virtual, stages))
    if dice.random() < 0.3:
        seconds *= dice.random(seconds.shape) < 0.4  # many take nothing
    usual = np.array([1, dice.choice([0.1, 1, 2, 5]), dice.choice([0, 1]), 0.1, 0.1])
    forward, backward, later, ahead, back = seconds * usual[:, None, None]
    ahead[-1, -1] = back[0, 0] = 0.0
    return forward, backward, later * (shape.schedule.splits_backward), ahead, back


@pytest.mark.parametrize("seed", range(4))
def test_no_step_is_below_what_its_stages_work_and_wait(seed: int) -> None:
    dice = np.random.default_rng(seed)
    nearest: dict[str, float] = defaultdict(float)
    for _ in range(200):
        stages, rounds = int(dice.integers(2, 7)), int(dice.integers(1, 5))
        count = stages * rounds
        shape = dice.choice(np.array([*schedule_shapes(stages, count, ALL)], dtype=object))
        forward, backward, later, ahead, back = random_chunks(dice, shape, stages)
        columns = (column.ravel().tolist() for column in (forward, backward, later, ahead, back))
        chunks = [ChunkTimes(*each) for each in zip(*columns, strict=True)]
        once = dice.uniform(0, 3, stages) * dice.integers(0, 2)
        lag = int(dice.integers(stages)) if shape.schedule.splits_backward and dice.random() < 0.5 else None
        ends = pipeline_time(chunks, stages, count, 0.0, shape.schedule, lag).ends
        step_s = float((np.array(ends) + once).max())
        passes_s = count * float((forward + backward + later).sum())
        often = waited_messages_per_cut(shape, stages, count)
        sent_s = float(often[0] @ ahead.ravel()[:-1] + often[1] @ back.ravel()[1:])
        for waits in shape.schedule.waits(stages, shape.virtual):
            # Of what is put off, as much as is left out; ``bubble_s`` does not know how much that is.
            exact_s = passes_s + sent_s + waits.once * float(once.sum()) - waits.put_off * float(later.sum())
            exact_s += waits.forward.lower_bound_s(*parts(forward.sum(axis=0)))
            exact_s += waits.backward.lower_bound_s(*parts(backward.sum(axis=0)))
            found_s = bubble_s(
                waits, passes_s + float(once.sum()), passes_s, count,
                parts(forward.sum(axis=0)), parts(backward.sum(axis=0)),
            ) + sent_s  # fmt: skip
            assert found_s <= exact_s * (1 + 1e-9) + 1e-9, (shape, waits)
            assert exact_s <= stages * step_s * (1 + 1e-12), (shape, stages, count, waits)
            if step_s:
                nearest[shape.schedule.name] = max(nearest[shape.schedule.name], exact_s / stages / step_s)
    assert set(nearest) == set(ALL)
    assert min(near for schedule, near in nearest.items() if schedule != MESSAGE_DRIVEN.name) > 0.8


def test_of_equal_stages_the_waits_are_known() -> None:
    """Of p equal stages and m microbatches each stage waits (p - 1) / v passes, forward and back, under any schedule that puts
    nothing off: all of that is proved of GPipe's, most of the others'."""
    stages, each = 8, np.ones(8)

    def share(schedule: Schedule, virtual: int = 1) -> float:
        known = (stages - 1) * 3.0 * stages / virtual
        found = schedule.waits(stages, virtual)
        return (
            max(w.forward.lower_bound_s(*parts(each)) + w.backward.lower_bound_s(*parts(2 * each)) for w in found)
            / known
        )

    assert share(GPIPE) == pytest.approx(1.0)
    assert share(ONE_F_ONE_B) == pytest.approx(5 / 6)
    assert share(INTERLEAVED, 2) == share(INTERLEAVED, 8) == pytest.approx(7 / 12)
    assert share(ZERO_BUBBLE) == pytest.approx(5 / 6)


def test_delayable_work_is_not_part_of_the_bubble() -> None:
    """At the worst all that is put off is left out: then forward passes, and what is not put off, are sure."""
    none = np.zeros(1)
    waits = PathWaits(Wait(0.0, 0.0), Wait(0.0, 0.0), once=False, put_off=2.0)
    assert bubble_s(waits, 100.0, 40.0, 4, (2.0, none), (3.0, none)) == pytest.approx(0.5 * 40 + 0.5 * 4 * 5)
    assert bubble_s(waits, 100.0, 40.0, 2, (2.0, none), (3.0, none)) == pytest.approx(2 * 5)
