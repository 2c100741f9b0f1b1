"""What is asked for never beats what is free to choose; and what would is seen. More: ``make plans``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import plans
from benchmarks.plans import Case, Outcome, check, compare_outcomes, make_case

pytestmark = pytest.mark.integration

CASE = make_case(1, ("mlp-small",))


def outcome(asked: str, seconds: float | None, *, bound: float | None = 0.5, size: int = 100) -> Outcome:
    if seconds is None:
        return Outcome(asked, {}, 100, error="infeasible")
    return Outcome(asked, {}, 100, seconds, seconds, bound, size)


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        (outcome("2 stages", 1.0), []),
        (outcome("2 stages", 0.99), []),
        (outcome("2 stages", 0.9), ["slower"]),
        (outcome("2 stages", 0.4), ["bound", "slower"]),
        (outcome("2 stages", 0.4, size=101), []),
        (outcome("2 stages", None), []),
    ],
)
def test_strategies_of_a_subspace_are_in_the_whole_space(asked: Outcome, kinds: list[str]) -> None:
    assert [finding.kind for finding in compare_outcomes(CASE, outcome("nothing", 1.0), asked)] == kinds


def test_a_missing_plan_is_reported() -> None:
    free = outcome("nothing", None)
    assert [finding.kind for finding in compare_outcomes(CASE, free, outcome("2 stages", 1.0))] == ["missed"]
    assert not [*compare_outcomes(CASE, free, outcome("2 stages", 1.0, size=101))]


def test_a_case_is_a_function_of_its_seed() -> None:
    cases = [make_case(seed) for seed in (1, 1, 2)]
    assert cases[0] == cases[1] != cases[2]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.some(2)
def test_constrained_plans_are_never_faster_than_unconstrained_ones(seed: int) -> None:
    lines: list[str] = []
    case = replace(make_case(seed, ("mlp-small",)), num_asked=3)
    assert not check(case, lines.append), lines
    assert len(lines) >= 5


def test_wrong_bounds_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plans._planned

    def wrong(case: Case, *about: Any) -> Outcome:
        found = planned(case, *about)
        return found if found.step_time_s is None else replace(found, lower_bound_s=1.01 * found.step_time_s)

    monkeypatch.setattr(plans, "_planned", wrong)
    case = replace(make_case(2, ("mlp-small",)), num_asked=0, memory=None)
    assert {finding.kind for finding in check(case)} == {"bound"}
