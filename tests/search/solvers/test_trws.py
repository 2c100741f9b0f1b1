"""Messages: bounds, what they leave out, and what ``exact`` makes of them where elimination would take long."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from autosbp.errors import CertificateError, InfeasibleError
from autosbp.search import Certificate, Edge, SearchOptions, SearchProblem, check_certificate, cost_of, search
from autosbp.search.solvers import exact
from autosbp.search.solvers.elimination import effort_of, plan_problem
from autosbp.search.solvers.reduced_cost_fixing import canonical
from autosbp.search.solvers.trws import TrwsMessages, sweeps
from autosbp.testing.searcher_conformance import check_result, random_problem

pytestmark = pytest.mark.integration


@pytest.fixture
def by_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every elimination counts as hard."""
    monkeypatch.setattr(exact, "MAX_FAST_ADDITIONS", 0.0)
    monkeypatch.setattr(exact, "solve_forest", lambda _problem: None)


def small(seed: int, memory_share: float | None = None) -> SearchProblem:
    return random_problem(
        np.random.default_rng(seed),
        num_variables=2 + seed % 5,
        max_domain=4,
        edge_probability=(0.3, 0.6, 1.0)[seed % 3],
        forbidden_probability=(0.0, 0.2)[seed % 2],
        memory_share=memory_share,
    )


def chain_with_hub(layers: int, domain: int, seed: int = 0) -> SearchProblem:
    """A chain each variable of which reads one more, as decoder layers read what the encoder made."""
    rng = np.random.default_rng(seed)
    between, hub = rng.random((domain, domain)), rng.random((domain, domain))
    edges = [Edge(at, at + 1, between) for at in range(1, layers)]
    return SearchProblem(
        names=tuple(f"v{at}" for at in range(layers + 1)),
        unary_s=tuple(rng.random(domain) for _ in range(layers + 1)),
        memory_bytes=tuple(rng.integers(0, 100, domain) for _ in range(layers + 1)),
        edges=(*edges, *(Edge(0, at, hub) for at in range(1, layers + 1))),
    )


def costs_of_all(problem: SearchProblem) -> dict[tuple[int, ...], float]:
    return {
        values: cost_of(problem, values)
        for values in itertools.product(*(range(len(costs)) for costs in problem.unary_s))
    }


def test_the_bound_holds_and_no_assignment_as_good_as_known_loses_a_value() -> None:
    tight = 0
    for seed in range(200):
        problem = canonical(small(seed)).problem
        costs = costs_of_all(problem)
        least = min(costs.values())
        messages = TrwsMessages(problem, lambda: None)
        for _ in range(6):
            values = messages.sweep()
            assert messages.bound_s + problem.fixed_s <= least + 1e-9
            for upper in (least, 1.3 * least):
                if not math.isfinite(upper):
                    continue
                kept = messages.kept(upper - problem.fixed_s)
                for each, cost in costs.items():
                    if cost <= upper:
                        assert all(mask[value] for mask, value in zip(kept, each, strict=True))
        tight += math.isclose(costs[values], messages.bound_s + problem.fixed_s, rel_tol=1e-9)
    assert tight > 100


class Sweeping(TrwsMessages):
    """Bounds as given, one a sweep."""

    def __init__(self, bounds: list[float]) -> None:
        self.bounds, self.bound_s = bounds, -np.inf

    def sweep(self) -> tuple[int, ...]:
        self.bound_s = self.bounds.pop(0)
        return ()


def test_a_poor_assignment_does_not_end_sweeps_that_raise_the_bound() -> None:
    """What is known may be many times the optimum, so that a hundredth of the gap is more than any bound rises by."""
    known = iter([80.0, 80.0, 1.25])
    assert [*sweeps(Sweeping([1.0, 1.2, 1.25]), lambda: next(known))] == [(), (), ()]


@pytest.mark.some(2)
@pytest.mark.usefixtures("by_messages")
@pytest.mark.parametrize("memory_share", [None, 0.3, 0.6])
def test_exact_by_messages_equals_exhaustive(memory_share: float | None) -> None:
    shown = 0
    for seed in range(150):
        problem = small(seed, memory_share)
        try:
            truth = search(problem, "exhaustive")
        except InfeasibleError:
            with pytest.raises(InfeasibleError):
                search(problem, "exact")
            continue
        found = search(problem, "exact")
        check_result(problem, found)
        assert found.cost_s == pytest.approx(truth.cost_s, rel=1e-9)
        assert found.gap == 0.0
        assert found.certificate is not None
        check_certificate(problem, found.certificate)
        shown += found.certificate.shifts is not None
    assert shown > 20 or memory_share is not None


def test_a_value_read_by_every_layer_is_supported() -> None:
    problem = chain_with_hub(120, 150)
    whole = canonical(problem).problem
    assert effort_of(whole, plan_problem(whole)).additions > exact.MAX_FAST_ADDITIONS
    found = search(problem, "exact", SearchOptions(time_limit_s=60))
    assert found.gap == 0.0
    # The least over all values of the hub, a chain each.
    hub, between = problem.edges[-1].table, problem.edges[0].table
    least = np.inf
    for value, own in enumerate(problem.unary_s[0]):
        costs = problem.unary_s[1] + hub[value]
        for unary in problem.unary_s[2:]:
            costs = (costs[:, None] + between).min(axis=0) + unary + hub[value]
        least = min(least, own + float(costs.min()))
    assert found.cost_s == pytest.approx(least, rel=1e-12)
    assert found.certificate is not None
    check_certificate(problem, found.certificate)


@pytest.mark.usefixtures("by_messages")
def test_the_price_of_memory_is_found_by_messages() -> None:
    """Against elimination, which is exact at every price."""
    problem, options = chain_with_hub(20, 8), SearchOptions(time_limit_s=4)
    free = search(problem, "exact")
    least = sum(int(use.min()) for use in problem.memory_bytes)
    limited = replace(problem, memory_limit_bytes=(least + free.memory_bytes) // 2)
    found = search(limited, "exact", options)
    check_result(limited, found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "MAX_FAST_ADDITIONS", math.inf)
        known = search(limited, "exact", options)
    assert found.lower_bound_s <= known.cost_s * (1 + 1e-9)
    assert found.cost_s <= 1.01 * known.cost_s
    assert found.gap < 0.02


@pytest.mark.usefixtures("by_messages")
def test_shifts_prove_a_bound_without_elimination_and_altered_ones_do_not() -> None:
    problem = chain_with_hub(12, 6)
    certificate = search(problem, "exact").certificate
    assert certificate is not None and certificate.shifts is not None
    read = Certificate.read(json.loads(json.dumps(certificate.document())))
    assert read == certificate
    check_certificate(problem, read)
    u, v, own, other = certificate.shifts[3]
    wrong = {
        "of no edge": (v, u, other, own),
        "of other sizes": (u, v, own[:-1], other),
        "that takes too much": (u, v, tuple(each + 0.5 * (at == 2) for at, each in enumerate(own)), other),
    }
    for shift in wrong.values():
        altered = replace(certificate, shifts=(*certificate.shifts[:3], shift, *certificate.shifts[4:]))
        with pytest.raises(CertificateError):
            check_certificate(problem, altered)
    twice = replace(certificate, shifts=(*certificate.shifts, certificate.shifts[3]))
    with pytest.raises(CertificateError):
        check_certificate(problem, twice)
