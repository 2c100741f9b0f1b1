"""Conformance checks of searchers. ``check_searcher`` runs all of them; each check can be used alone.

@pytest.mark.parametrize("name", SEARCHERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_searchers_conform(name, check):
    check(SEARCHERS[name])
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np

from autosbp.errors import InfeasibleError, InputError
from autosbp.search import (
    Edge,
    Searcher,
    SearchOptions,
    SearchProblem,
    SearchResult,
    check_certificate,
    cost_of,
    memory_of,
)
from autosbp.utils.parallel import single_process

SEEDS = range(4)
STOP_SLACK_S = 2.0  # a searcher checks the clock only between chunks of work


def random_problem(
    rng: np.random.Generator,
    num_variables: int = 5,
    max_domain: int = 5,
    edge_probability: float = 0.5,
    forbidden_probability: float = 0.0,
    memory_share: float | None = None,
) -> SearchProblem:
    """A random problem with costs in [0, 1), occasional parallel edges, and few distinct tables.

    Args:
        rng: random generator.
        num_variables: number of variables.
        max_domain: size limit of a domain.
        edge_probability: probability of an edge for each pair of variables.
        forbidden_probability: probability that a table entry is inf; the assignment of all zeros is never forbidden.
        memory_share: position of the memory limit between the least (0) and the greatest (1) memory; None for no limit.
    """
    sizes = [int(rng.integers(1, max_domain + 1)) for _ in range(num_variables)]
    shared = {size: (rng.random(size), rng.integers(0, 1000, size)) for size in sorted(set(sizes))}
    tables: dict[tuple[int, int], np.ndarray[tuple[int, int], np.dtype[np.float64]]] = {}
    edges = []
    for u, v in itertools.combinations(range(num_variables), 2):
        for _ in range(2 if rng.random() < 0.1 else 1):
            if rng.random() >= edge_probability:
                continue
            a, b = (u, v) if rng.random() < 0.5 else (v, u)
            if (sizes[a], sizes[b]) not in tables or rng.random() < 0.5:
                table = rng.random((sizes[a], sizes[b]))
                table[rng.random(table.shape) < forbidden_probability] = math.inf
                table[0, 0] = min(table[0, 0], 2.0)
                tables[sizes[a], sizes[b]] = table
            edges.append(Edge(a, b, tables[sizes[a], sizes[b]]))
    memory = [shared[size][1] if rng.random() < 0.5 else rng.integers(0, 1000, size) for size in sizes]
    fixed_memory = int(rng.integers(0, 100))
    limit = None
    if memory_share is not None:
        least, greatest = sum(int(use.min()) for use in memory), sum(int(use.max()) for use in memory)
        limit = fixed_memory + least + round(memory_share * (greatest - least))
    return SearchProblem(
        names=tuple(f"v{i}" for i in range(num_variables)),
        unary_s=tuple(shared[size][0] if rng.random() < 0.5 else rng.random(size) for size in sizes),
        memory_bytes=tuple(memory),
        edges=tuple(edges),
        memory_limit_bytes=limit,
        fixed_s=float(rng.random()),
        fixed_memory_bytes=fixed_memory,
    )


def check_result(problem: SearchProblem, result: SearchResult) -> None:
    """Check the claims of a result: cost, memory, limit, bound, gap, trace."""
    assert len(result.assignment) == problem.num_variables
    assert result.cost_s == cost_of(problem, result.assignment)
    assert math.isfinite(result.cost_s)
    assert result.memory_bytes == memory_of(problem, result.assignment)
    assert problem.memory_limit_bytes is None or result.memory_bytes <= problem.memory_limit_bytes
    assert result.lower_bound_s <= result.cost_s
    assert (result.gap == 0.0) == (result.lower_bound_s == result.cost_s)
    assert result.gap >= 0.0
    times, costs = [t for t, _ in result.trace], [c for _, c in result.trace]
    assert times == sorted(times)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == result.cost_s
    assert result.evaluations >= 1


def check_claims_hold(searcher: Searcher) -> None:
    for seed in SEEDS:
        problem = random_problem(np.random.default_rng(seed), forbidden_probability=0.05)
        result = searcher(problem, SearchOptions(seed=seed))
        check_result(problem, result)
        if result.certificate is not None:
            check_certificate(problem, result.certificate)


def check_is_deterministic(searcher: Searcher) -> None:
    for seed in SEEDS:
        problem = random_problem(np.random.default_rng(seed), memory_share=0.6)
        first, second = (searcher(problem, SearchOptions(seed=7)) for _ in range(2))
        timeless = [dataclasses.replace(r, search_s=0.0, trace=()) for r in (first, second)]
        assert timeless[0] == timeless[1]
        assert [c for _, c in first.trace] == [c for _, c in second.trace]


def check_two_cores_find_what_one_does(searcher: Searcher) -> None:
    """Check a problem large enough for searchers that can use a second process to start one."""
    problem = random_problem(np.random.default_rng(6), num_variables=15, max_domain=5, memory_share=0.7)
    for limit in (None, 200_000):
        options = SearchOptions(seed=3, max_evaluations=limit)
        together = searcher(problem, options)
        with single_process():
            single = searcher(problem, options)
        for name in ("assignment", "cost_s", "lower_bound_s", "evaluations", "stopped"):
            assert getattr(together, name) == getattr(single, name)
        assert [c for _, c in together.trace] == [c for _, c in single.trace]
        check_result(problem, together)


def check_respects_memory_limit(searcher: Searcher) -> None:
    for seed in SEEDS:
        problem = random_problem(np.random.default_rng(seed), memory_share=0.4)
        check_result(problem, searcher(problem, SearchOptions(seed=seed)))


def check_uses_or_survives_a_start(searcher: Searcher) -> None:
    """The result is at least as good as a feasible start; a forbidden start is replaced."""
    problem = random_problem(np.random.default_rng(1))
    start = tuple(len(costs) - 1 for costs in problem.unary_s)
    assert searcher(problem, SearchOptions(start=start)).cost_s <= cost_of(problem, start)
    table = np.array([[math.inf, 1.0], [1.0, math.inf]])
    unary = (np.zeros(2), np.zeros(2))
    memory = (np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64))
    forbidden = SearchProblem(("a", "b"), unary, memory, (Edge(0, 1, table),))
    assert searcher(forbidden, SearchOptions(start=(0, 0))).cost_s == 1.0


def check_stops_at_time_limit(searcher: Searcher) -> None:
    result = _long_run(searcher, SearchOptions(time_limit_s=0.2))
    assert result.search_s <= 0.2 + STOP_SLACK_S
    assert result.stopped in ("time_limit", "done")


def check_stops_when_progress_says_so(searcher: Searcher) -> None:
    calls: list[tuple[float, float]] = []

    def progress(cost_s: float, bound_s: float) -> bool:
        calls.append((cost_s, bound_s))
        return False

    result = _long_run(searcher, SearchOptions(time_limit_s=30.0, progress=progress))
    assert len(calls) <= 1
    assert result.stopped == ("cancelled" if calls else "done")


def check_raises_when_memory_cannot_fit(searcher: Searcher) -> None:
    problem = random_problem(np.random.default_rng(3))
    least = problem.fixed_memory_bytes + sum(int(use.min()) for use in problem.memory_bytes)
    try:
        searcher(dataclasses.replace(problem, memory_limit_bytes=least - 1), SearchOptions())
    except InfeasibleError as error:
        assert (error.constraint, error.limit, error.needed) == ("memory_limit_bytes", least - 1, least)
    else:
        raise AssertionError("a memory limit below the least memory was accepted")


def check_raises_when_all_is_forbidden(searcher: Searcher) -> None:
    memory = (np.zeros(1, dtype=np.int64),) * 2
    edge = Edge(0, 1, np.full((1, 1), math.inf))
    try:
        searcher(SearchProblem(("a", "b"), (np.zeros(1),) * 2, memory, (edge,)), SearchOptions())
    except InfeasibleError as error:
        assert error.constraint == "cost_s"
    else:
        raise AssertionError("a forbidden assignment was returned")


def check_raises_when_a_domain_is_empty(searcher: Searcher) -> None:
    unary, memory = (np.zeros(2), np.zeros(0)), (np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64))
    for edges in ((), (Edge(0, 1, np.zeros((2, 0))),)):
        try:
            searcher(SearchProblem(("a", "b"), unary, memory, edges), SearchOptions())
        except InfeasibleError as error:
            assert (error.constraint, error.limit, error.needed) == ("unary_s[1]", 0, 1)
            assert "b has no value" in error.detail
        else:
            raise AssertionError("a variable without a value was given one")


def check_handles_no_and_one_variable(searcher: Searcher) -> None:
    empty = SearchProblem((), (), (), (), fixed_s=2.0, fixed_memory_bytes=3)
    for limit in (None, 10):
        result = searcher(empty, SearchOptions(max_evaluations=limit))
        assert (result.assignment, result.cost_s, result.memory_bytes) == ((), 2.0, 3)
    one = SearchProblem(("a",), (np.array([3.0, 1.0, 2.0]),), (np.array([1, 9, 2]),), (), memory_limit_bytes=5)
    result = searcher(one, SearchOptions())
    assert (result.assignment, result.cost_s, result.memory_bytes) == ((2,), 2.0, 2)


def check_refuses_bad_input(searcher: Searcher) -> None:
    problem = random_problem(np.random.default_rng(2))
    bad: list[tuple[str, SearchProblem, SearchOptions]] = [
        ("seed", problem, SearchOptions(seed=-1)),
        ("time_limit_s", problem, SearchOptions(time_limit_s=0.0)),
        ("start", problem, SearchOptions(start=())),
        ("fixed_s", dataclasses.replace(problem, fixed_s=math.nan), SearchOptions()),
    ]
    for field, wrong, options in bad:
        try:
            searcher(wrong, options)
        except InputError as error:
            assert error.field == field
        else:
            raise AssertionError(f"a bad {field} was accepted")


def _long_run(searcher: Searcher, options: SearchOptions) -> SearchResult:
    """Run on the largest problem that every searcher accepts; most take long for it."""
    problem = random_problem(np.random.default_rng(5), num_variables=24, max_domain=3, edge_probability=0.8)
    while problem.num_assignments > 400_000_000:
        problem = dataclasses.replace(
            problem,
            names=problem.names[:-1],
            unary_s=problem.unary_s[:-1],
            memory_bytes=problem.memory_bytes[:-1],
            edges=tuple(e for e in problem.edges if max(e.u, e.v) < problem.num_variables - 1),
        )
    result = searcher(problem, options)
    check_result(problem, result)
    return result


CHECKS: tuple[Callable[[Searcher], None], ...] = (
    check_claims_hold,
    check_is_deterministic,
    check_two_cores_find_what_one_does,
    check_respects_memory_limit,
    check_uses_or_survives_a_start,
    check_stops_at_time_limit,
    check_stops_when_progress_says_so,
    check_raises_when_memory_cannot_fit,
    check_raises_when_all_is_forbidden,
    check_raises_when_a_domain_is_empty,
    check_handles_no_and_one_variable,
    check_refuses_bad_input,
)


def check_searcher(searcher: Searcher) -> None:
    """Run every check.

    Raises:
        AssertionError: if part of the contract in ``autosbp.search`` is violated.
    """
    for check in CHECKS:
        check(searcher)
