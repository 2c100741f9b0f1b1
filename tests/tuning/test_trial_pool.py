"""Ranks that stay up: what they measure, and what becomes of ranks that die or hang."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from autosbp.api import LogicalGraph, Plan, run_trial
from autosbp.errors import InputError, TrialError
from autosbp.tuning.trial_pool import TrialEffort, TrialPool
from autosbp.utils.processes import start_ticks

pytestmark = pytest.mark.integration

EFFORT = TrialEffort(steps=3, warmup=1, timeout_s=60.0)


@pytest.fixture(scope="module")
def pool(graph: LogicalGraph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialPool]:
    """Its ranks end with the module, and none is left."""
    with TrialPool(graph, 2, tmp_path_factory.mktemp("pool"), effort=EFFORT) as made:
        yield made
        ranks = ranks_of(made)
    assert ranks and all(start_ticks(pid) is None for pid in ranks)


def ranks_of(pool: TrialPool) -> list[int]:
    """Process ids of the running ranks: forks of a process with the same command line."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(pool.folder).encode() in (path / "cmdline").read_bytes():
                found[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in found.items() if parent in found]


def test_trials_after_each_other_equal_trials_of_their_own(
    pool: TrialPool, plan: Plan, graph: LogicalGraph, tmp_path: Path
) -> None:
    other = plan.with_baseline("fsdp2")
    assert other.strategy != plan.strategy
    results = [pool.measure(each.strategy) for each in (plan, other, plan)]
    alone = run_trial(other, graph, steps=3, warmup=1, workdir=tmp_path / "alone")
    assert pool.starts == 1
    assert results[1]["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert results[0]["losses"] == results[2]["losses"]
    for result in results:
        assert result["collectives_match"] and result["loss_difference"] < 1e-5
        assert len(result["times_s"]) == 3 and result["step_time_s"] > 0


def test_a_slow_trial_ends_after_its_first_timed_step(pool: TrialPool, plan: Plan) -> None:
    pool.effort = TrialEffort(steps=3, max_s=1e-6)
    assert len(pool.measure(plan.strategy)["times_s"]) == 1
    pool.effort = EFFORT


def test_a_killed_rank_fails_its_trial_and_the_next_one_runs(pool: TrialPool, plan: Plan) -> None:
    pool.measure(plan.strategy)
    first, starts = ranks_of(pool), pool.starts
    assert len(first) == 2
    os.kill(first[1], signal.SIGKILL)
    with pytest.raises(TrialError, match="(?s)a rank failed.*was killed by SIGKILL"):
        pool.measure(plan.strategy)
    assert all(start_ticks(pid) is None for pid in first)
    assert pool.measure(plan.strategy)["collectives_match"] and pool.starts == starts + 1


def test_a_hanging_rank_fails_its_trial_in_time_and_the_next_one_runs(pool: TrialPool, plan: Plan) -> None:
    pool.measure(plan.strategy)
    hanging = ranks_of(pool)
    os.kill(hanging[0], signal.SIGSTOP)
    pool.effort, began_s = TrialEffort(steps=3, timeout_s=2.0), time.monotonic()
    with pytest.raises(TrialError, match="timed out after 2 s"):
        pool.measure(plan.strategy)
    assert time.monotonic() - began_s < 30
    assert all(start_ticks(pid) is None for pid in hanging)
    pool.effort = EFFORT
    assert pool.measure(plan.strategy)["collectives_match"]


def test_a_strategy_for_other_devices_is_refused_without_ranks(graph: LogicalGraph, plan: Plan, tmp_path: Path) -> None:
    with TrialPool(graph, 4, tmp_path) as pool, pytest.raises(InputError, match="expected a strategy for 4 devices"):
        pool.measure(plan.strategy)
    assert pool.starts == 0
