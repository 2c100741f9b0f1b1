"""Certificates of ``exact`` are accepted by a checker that shares nothing with it, and wrong ones are not."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autosbp.errors import CertificateError, InfeasibleError, InputError, UnverifiedError
from autosbp.search import (
    Certificate,
    Edge,
    SearchOptions,
    SearchProblem,
    check_certificate,
    cost_of,
    memory_of,
    search,
)
from autosbp.search.certificate import CP_SAT, ENUMERATION, RELAXATION
from autosbp.testing.searcher_conformance import random_problem
from benchmarks.search_blocks import block_problem
from tests.tiers import form

pytestmark = pytest.mark.integration

SEARCH = Path(__file__).parents[3] / "autosbp" / "search"
FORBIDDEN_SHARES = (0.0, 0.1, 0.5)
MEMORY_SHARES = (None, 0.05, 0.2, 0.3, 0.5)
TIGHT = tuple(range(60))


def small(seed: int, num_variables: int, memory_share: float | None) -> SearchProblem:
    return random_problem(
        np.random.default_rng(seed),
        num_variables=num_variables,
        max_domain=2 + seed % 4,
        forbidden_probability=FORBIDDEN_SHARES[seed % 3],
        memory_share=memory_share,
    )


def certificate_of(problem: SearchProblem, options: SearchOptions | None = None) -> Certificate:
    found = search(problem, "exact", options).certificate
    assert found is not None
    return found


def test_the_checker_shares_no_code_with_the_searchers() -> None:
    files = [SEARCH / "certificate.py", *SEARCH.glob("checker/*.py")]
    assert len(files) == 6
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("autosbp"):
                part = node.module.removeprefix("autosbp.search.")
                assert part in ("autosbp.errors", "_base", "certificate") or part.startswith("checker."), (file, part)


def test_every_certificate_of_10_000_random_problems_is_accepted() -> None:
    """The short form has a fifth of them."""
    closed: Counter[str] = Counter()
    count = form(2_000, 10_000)
    for seed in range(count):
        problem = small(seed, seed // 12 % 7, MEMORY_SHARES[seed // 84 % 5])
        try:
            found = certificate_of(problem)
        except InfeasibleError:
            closed["infeasible"] += 1
            continue
        check_certificate(problem, found)
        closed[found.closed_by] += 1
        closed["priced"] += found.price_s_per_byte > 0.0
    assert closed[RELAXATION] > count / 2
    assert min(closed[ENUMERATION], closed["priced"]) > 0.03 * count
    assert closed["infeasible"] < count / 10


def test_exact_equals_brute_force_on_200_random_problems_with_memory_limits() -> None:
    for seed in range(200):
        problem = small(seed, 5, MEMORY_SHARES[1 + seed % 4])
        optimum = brute_force(problem)
        if math.isinf(optimum):
            with pytest.raises(InfeasibleError):
                search(problem, "exact")
            continue
        result = search(problem, "exact")
        assert result.cost_s == pytest.approx(optimum, rel=1e-12)
        assert result.lower_bound_s == result.cost_s


def brute_force(problem: SearchProblem) -> float:
    """The definition on all assignments at once, a dim for each variable."""
    count = problem.num_variables
    sizes = [len(costs) for costs in problem.unary_s]
    costs, memory = np.full(sizes, problem.fixed_s), np.full(sizes, problem.fixed_memory_bytes)
    for i in range(count):
        shape = [-1 if axis == i else 1 for axis in range(count)]
        costs = costs + problem.unary_s[i].reshape(shape)
        memory = memory + problem.memory_bytes[i].reshape(shape)
    for edge in problem.edges:
        table = edge.table if edge.u < edge.v else edge.table.T
        costs = costs + table.reshape([sizes[axis] if axis in (edge.u, edge.v) else 1 for axis in range(count)])
    limit = problem.memory_limit_bytes
    return float(costs[memory <= limit].min(initial=math.inf)) if limit is not None else float(costs.min())


@pytest.mark.parametrize("share", [None, 0.5, 0.9])
def test_certificates_of_repeated_blocks_are_accepted_with_their_gap(share: float | None) -> None:
    """Far more assignments than anything enumerates; under a limit the bound is the relaxation's."""
    problem = block_problem(12, 6, 12)
    if share is not None:
        limit = int(share * search(problem, "exact").memory_bytes)
        problem = dataclasses.replace(problem, memory_limit_bytes=limit)
    found = certificate_of(problem, SearchOptions(gap_tolerance=0.004))
    check_certificate(problem, found)
    assert found.closed_by == RELAXATION
    assert (found.price_s_per_byte > 0.0) == (share is not None)
    for more in (1e-6, 1e-3):
        with pytest.raises(CertificateError):
            check_certificate(problem, dataclasses.replace(found, bound_s=found.bound_s * (1.0 + more)))
        if share is not None:
            with pytest.raises(CertificateError, match="the relaxation at"):
                wrong = dataclasses.replace(found, price_s_per_byte=found.price_s_per_byte * (1.0 + more))
                check_certificate(problem, wrong)


def coupled(seed: int, num_variables: int, max_domain: int, edge_probability: float) -> SearchProblem:
    return random_problem(
        np.random.default_rng(seed),
        num_variables=num_variables,
        max_domain=max_domain,
        edge_probability=edge_probability,
        memory_share=0.3,
    )


@pytest.mark.parametrize(
    ("num_variables", "max_domain", "edge_probability"), [(14, 6, 0.2), (20, 6, 0.1), (24, 4, 0.1)]
)
def test_results_closed_by_cp_sat_are_verified(num_variables: int, max_domain: int, edge_probability: float) -> None:
    for seed in range(1, 4):
        problem = coupled(seed, num_variables, max_domain, edge_probability)
        found = certificate_of(problem)
        assert found.closed_by == CP_SAT
        assert found.relaxed_bound_s < found.bound_s == found.cost_s
        check_certificate(problem, found)
        with pytest.raises(CertificateError, match="the relaxation proves"):
            check_certificate(problem, dataclasses.replace(found, closed_by=RELAXATION))


def test_proofs_beyond_the_node_limit_are_unverified() -> None:
    problem = coupled(7, 16, 5, 0.25)
    found = certificate_of(problem)
    check_certificate(problem, found)
    with pytest.raises(UnverifiedError, match="2 branch-and-bound nodes") as caught:
        check_certificate(problem, found, max_nodes=2)
    assert caught.value.proved_s == found.relaxed_bound_s


def tight_certificates() -> Iterator[tuple[SearchProblem, Certificate]]:
    """Small problems that have an assignment, with what ``exact`` hands out."""
    for seed in TIGHT:
        problem = small(seed, 3 + seed % 5, MEMORY_SHARES[seed % 5])
        with contextlib.suppress(InfeasibleError):
            yield problem, certificate_of(problem)


@pytest.mark.parametrize("more", [1e-7, 1e-3, 1.0])
def test_wrong_costs_bounds_and_prices_are_rejected(more: float) -> None:
    priced = 0
    for problem, found in tight_certificates():
        scale = 1.0 + more
        wrong = [
            ("cost_s", dataclasses.replace(found, cost_s=found.cost_s * scale)),
            ("cost_s", dataclasses.replace(found, cost_s=found.cost_s * (1.0 - more))),
            ("cost_s", dataclasses.replace(found, cost_s=found.cost_s * scale, bound_s=found.bound_s * scale)),
            ("bound_s", dataclasses.replace(found, bound_s=found.bound_s * scale)),
            ("relaxed_bound_s", dataclasses.replace(found, relaxed_bound_s=found.bound_s * scale)),
        ]
        if found.price_s_per_byte > 0.0:
            dearer = dataclasses.replace(found, price_s_per_byte=found.price_s_per_byte * scale)
            wrong.append(("relaxed_bound_s", dearer))
            priced += 1
        elif problem.memory_limit_bytes is None:
            wrong.append(("price_s_per_byte", dataclasses.replace(found, price_s_per_byte=more)))
        for field, certificate in wrong:
            with pytest.raises(CertificateError) as caught:
                check_certificate(problem, certificate)
            assert caught.value.field == field
    assert priced >= 5


def test_other_assignments_are_rejected_even_where_their_own_cost_is_claimed() -> None:
    consistent = 0
    for problem, found in tight_certificates():
        for i, costs in enumerate(problem.unary_s):
            values = list(found.assignment)
            values[i] = (values[i] + 1) % len(costs)
            other = tuple(values)
            if other == found.assignment:
                continue
            with pytest.raises(CertificateError):
                check_certificate(problem, dataclasses.replace(found, assignment=other))
            cost, memory = cost_of(problem, other), memory_of(problem, other)
            for closed_by in (RELAXATION, ENUMERATION):
                claim = dataclasses.replace(
                    found, assignment=other, cost_s=cost, memory_bytes=memory, bound_s=cost, closed_by=closed_by
                )
                with pytest.raises(CertificateError):
                    check_certificate(problem, claim)
            limit = problem.memory_limit_bytes
            consistent += math.isfinite(cost) and (limit is None or memory <= limit)
    assert consistent > 50


def test_a_value_that_the_optimum_may_hold_cannot_be_left_out() -> None:
    """Without the optimum's values the relaxation of the rest is higher: no proof of a bound of the whole."""
    problem = small(3, 4, None)
    found = certificate_of(problem)
    check_certificate(problem, found)
    sizes = [len(costs) for costs in problem.unary_s]
    others = [values for values in np.ndindex(*sizes) if values[0] != found.assignment[0]]
    second = min(others, key=lambda values: cost_of(problem, values))
    cost = cost_of(problem, second)
    left = (tuple(x for x in range(sizes[0]) if x != found.assignment[0]), *(tuple(range(size)) for size in sizes[1:]))
    claim = Certificate(second, cost, memory_of(problem, second), cost, cost, 0.0, RELAXATION, left)
    with pytest.raises(CertificateError, match="of variable 0 must not be excluded") as caught:
        check_certificate(problem, claim)
    assert caught.value.field == "left"


def test_a_certificate_reads_back_from_json_as_it_was() -> None:
    with_left = 0
    for seed in range(40):
        found = certificate_of(small(3 * seed, 6, 0.3))
        assert Certificate.read(json.loads(json.dumps(found.document()))) == found
        with_left += found.left is not None
    assert with_left > 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("assignment", [0.5]),
        ("cost_s", math.nan),
        ("closed_by", "faith"),
        ("left", {"lists": [], "of": [0]}),
        ("memory_bytes", 1.0),
    ],
)
def test_a_malformed_certificate_is_refused_by_field(field: str, value: object) -> None:
    document = certificate_of(small(0, 3, None)).document()
    with pytest.raises(InputError, match=f"certificate.{field}"):
        Certificate.read({**document, field: value})
    with pytest.raises(InputError, match="the fields"):
        Certificate.read({**document, "trust": True})


def test_tables_beyond_memory_are_reported_as_unverified() -> None:
    count, domain = 12, 30
    table = np.random.default_rng(0).random((domain, domain))
    problem = SearchProblem(
        tuple(map(str, range(count))), (np.zeros(domain),) * count, (np.zeros(domain, dtype=np.int64),) * count,
        tuple(Edge(u, v, table) for v in range(count) for u in range(v)),
    )  # fmt: skip
    assignment = (0,) * count
    cost = cost_of(problem, assignment)
    with pytest.raises(UnverifiedError, match="a table of"):
        check_certificate(problem, Certificate(assignment, cost, 0, 0.0, 0.0, 0.0))
