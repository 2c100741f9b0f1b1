from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autosbp.errors import InfeasibleError
from autosbp.search import SearchOptions, SearchProblem, SearchResult, search
from autosbp.testing.searchers import check_result, random_problem


@st.composite
def problems(draw: st.DrawFn) -> SearchProblem:
    return random_problem(
        np.random.default_rng(draw(st.integers(0, 2**32 - 1))),
        num_variables=draw(st.integers(0, 7)),
        max_domain=draw(st.integers(1, 5)),
        edge_probability=draw(st.sampled_from([0.2, 0.5, 1.0])),
        forbidden_probability=draw(st.sampled_from([0.0, 0.1, 0.6])),
        memory_share=draw(st.sampled_from([None, 0.05, 0.3, 0.5])),
    )


def outcome(problem: SearchProblem, searcher: str, options: SearchOptions) -> SearchResult | InfeasibleError:
    try:
        return search(problem, searcher, options)
    except InfeasibleError as error:
        return error


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), start_seed=st.none() | st.integers(0, 99))
def test_exact_equals_exhaustive(problem: SearchProblem, start_seed: int | None) -> None:
    start = None
    if start_seed is not None:
        rng = np.random.default_rng(start_seed)
        start = tuple(int(rng.integers(len(costs))) for costs in problem.unary_s)
    truth = outcome(problem, "exhaustive", SearchOptions())
    found = outcome(problem, "exact", SearchOptions(start=start))
    if isinstance(truth, InfeasibleError):
        assert isinstance(found, InfeasibleError)
        assert (found.constraint, found.limit, found.needed) == (truth.constraint, truth.limit, truth.needed)
        return
    assert isinstance(found, SearchResult)
    check_result(problem, found)
    assert found.cost_s == pytest.approx(truth.cost_s, rel=1e-9)
    assert found.gap == 0.0
