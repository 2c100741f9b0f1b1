"""Searches whose parts two processes share find what one finds, and end together."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import numpy as np
import pytest

from autosbp.search import SEARCHERS, SearchOptions, SearchProblem, SearchResult
from autosbp.search.solvers import parallel_restarts
from autosbp.search.solvers.parallel_restarts import run_parts
from autosbp.search.solvers.solver_state import SolverState
from autosbp.testing.searcher_conformance import check_result, random_problem
from autosbp.utils import parallel, serialization

SHARING = ("exhaustive", "random", "metropolis_hastings", "coordinate_descent")
PROBLEM = random_problem(np.random.default_rng(8), num_variables=10, max_domain=6, memory_share=0.6)
LONG = random_problem(np.random.default_rng(9), num_variables=24, max_domain=4, edge_probability=0.8, memory_share=0.9)
OPTIONS = {
    "as it is": SearchOptions(seed=5),
    "evaluations": SearchOptions(seed=5, max_evaluations=20_011),
    "few evaluations": SearchOptions(seed=5, max_evaluations=57),
    "start": SearchOptions(
        seed=5, max_evaluations=3_000, start=tuple(int(use.argmin()) for use in PROBLEM.memory_bytes)
    ),
}
two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs a second core"
)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Small problems are shared, too, and large ones enumerated; what the other processes handed over."""
    found, loads = [], serialization.loads

    def read(text: bytes) -> object:
        found.append(text)
        return loads(text)

    for name in ("MIN_PARALLEL_S", "TIMING_S"):
        monkeypatch.setattr(parallel_restarts, name, 0.0)
    monkeypatch.setattr("autosbp.search.solvers.coordinate_descent.VALUES_OF_PART", 100)
    monkeypatch.setattr("autosbp.search.solvers.exhaustive.MAX_ASSIGNMENTS", LONG.num_assignments)  # minutes of work
    monkeypatch.setattr(serialization, "loads", read)
    return found


def known(result: SearchResult) -> tuple[object, ...]:
    """All but times."""
    timeless = dataclasses.replace(result, search_s=0.0, trace=())
    return timeless, [cost for _, cost in result.trace]


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("name", SHARING)
def test_two_processes_find_what_one_does(answers: list[bytes], name: str, case: str) -> None:
    together = SEARCHERS[name](PROBLEM, OPTIONS[case])
    shared, answers[:] = len(answers), []
    with parallel.single_process():
        single = SEARCHERS[name](PROBLEM, OPTIONS[case])
    assert known(together) == known(single)
    assert not answers
    check_result(PROBLEM, together)
    if case == "as it is" and len(os.sched_getaffinity(0)) > 1:
        assert shared > 0


@two_cores
def test_the_other_process_takes_part(answers: list[bytes]) -> None:
    run, here = SolverState("random", PROBLEM, SearchOptions()), os.getpid()

    def part(_at: int, own: SolverState) -> float:
        own.offer([0] * PROBLEM.num_variables)
        time.sleep(0.02)
        return float(os.getpid() != here)

    notes = run_parts(run, part, 20)
    assert len(answers) == 1 and 3 < sum(notes) < 17
    assert run.evaluations == 20


@pytest.mark.parametrize("name", SHARING)
def test_problems_that_are_solved_at_once_start_no_process(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(parallel.os, "fork", lambda: pytest.fail("a fork"))
    small = random_problem(np.random.default_rng(2), num_variables=4, max_domain=4)
    SEARCHERS[name](small, SearchOptions(max_evaluations=2_000))


@pytest.mark.clock
@pytest.mark.parametrize("name", SHARING)
def test_both_processes_end_at_the_time_limit_with_the_best_so_far(answers: list[bytes], name: str) -> None:
    options = SearchOptions(time_limit_s=0.4, max_evaluations=10**12)
    result = SEARCHERS[name](LONG, options)
    assert result.stopped == "time_limit" and result.search_s < 1.4
    check_result(LONG, result)


@pytest.mark.parametrize("name", SHARING)
def test_both_processes_end_when_the_caller_says_so_and_one_tells(
    answers: list[bytes], tmp_path: Path, name: str
) -> None:
    told = tmp_path / "pids"
    costs: list[float] = []

    def progress(cost_s: float, _bound_s: float) -> bool:
        with told.open("a") as file:
            file.write(f"{os.getpid()}\n")
        costs.append(cost_s)
        return len(costs) < 4

    began = time.perf_counter()
    result = SEARCHERS[name](LONG, SearchOptions(time_limit_s=60.0, max_evaluations=10**12, progress=progress))
    assert result.stopped == "cancelled" and time.perf_counter() - began < 3.0
    assert told.read_text().split() == [str(os.getpid())] * 4
    assert costs == sorted(costs, reverse=True) and costs[-1] >= result.cost_s
    check_result(LONG, result)


@two_cores
def test_the_caller_ends_what_the_other_process_alone_still_does(answers: list[bytes]) -> None:
    here, words = os.getpid(), []

    def progress(cost_s: float, _bound_s: float) -> bool:
        words.append(cost_s)
        return len(words) < 5

    def part(_at: int, own: SolverState) -> float:
        own.offer([0] * PROBLEM.num_variables)
        while os.getpid() != here and not own.should_stop():
            time.sleep(0.01)
        time.sleep(0.2)
        return 1.0

    run = SolverState("random", dataclasses.replace(PROBLEM, memory_limit_bytes=None), SearchOptions(progress=progress))
    run_parts(run, part, 2, each_s=1.0)
    assert run.stopped == "cancelled" and len(words) == 5
    assert run.elapsed_s < 5.0


def test_parts_are_joined_in_their_order_however_long_each_takes() -> None:
    """An improvement of a later part that was there first counts from when the earlier parts were."""
    problem: SearchProblem = dataclasses.replace(PROBLEM, memory_limit_bytes=None)
    first, second = SolverState("random", problem, SearchOptions()), SolverState("random", problem, SearchOptions())
    run = SolverState("random", problem, SearchOptions())
    for at in range(40):
        rng = parallel_restarts.part_generator(0, at)
        own = first if at % 2 else second
        own.offer([int(rng.integers(len(costs))) for costs in problem.unary_s])
    late = tuple((at_s + 9.0, cost) for at_s, cost in first.trace)
    run.join(first.best, late, first.evaluations)
    run.join(second.best, second.trace, second.evaluations)
    result = run.result()
    check_result(problem, result)
    assert result.evaluations == 40
    assert result.cost_s == min(first.cost_s, second.cost_s)
    assert result.trace[-1][0] >= 9.0


def test_a_part_that_used_more_than_was_left_runs_again_with_that(answers: list[bytes]) -> None:
    """The parts of a wave are begun with what is left before it; 10 + 20 + 30 + 40 of 70 leaves 10 for the last."""
    budgets = []

    def part(at: int, own: SolverState) -> float:
        budgets.append((at, own.options.max_evaluations))
        for _ in range(10 * (at + 1)):
            if own.should_stop():
                break
            own.offer([0] * PROBLEM.num_variables)
        return float(own.evaluations)

    for _ in range(2):
        run = SolverState("random", PROBLEM, SearchOptions(max_evaluations=70))
        assert run_parts(run, part, 6, each_s=1.0) == [10, 20, 30, 10]
        assert (run.evaluations, run.stopped) == (70, "max_evaluations")
        assert (3, 10) in budgets
        with parallel.single_process():
            run = SolverState("random", PROBLEM, SearchOptions(max_evaluations=70))
            assert run_parts(run, part, 6, each_s=1.0) == [10, 20, 30, 10]
