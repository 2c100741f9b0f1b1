"""The real service, killed where it hurts most: every accepted job ends, and runs to its end once."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosbp.errors import InputError
from autosbp.service.jobs._fault_injection import make_crash_hook
from benchmarks.chaos import real, scenarios
from tests.service.postgres import Postgres
from tests.tiers import form

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def check(found: scenarios.Found, kills: int) -> None:
    wanted = {"kills": kills, "lost": 0, "failed": 0, "twice": 0, "5xx": 0}  # in what time, `make chaos` says
    assert {name: found[name] for name in wanted} == wanted, found
    assert found["succeeded"] == found["accepted"] >= kills


def test_jobs_end_once_whatever_moment_the_service_dies_at(tmp_path: Path) -> None:
    """Where it hurts most; ``make chaos`` has every moment."""
    points = [("trial", "started"), ("calibrate", "ended")]
    points += form([], [("search", "accepted"), ("trial", "ended")])
    check(scenarios.crash_points(tmp_path, points), len(points))


def test_jobs_end_once_whatever_moment_a_worker_on_postgresql_dies_at(tmp_path: Path, postgres: Postgres) -> None:
    points = [("trial", "started"), *form([], [("search", "ended")])]
    check(scenarios.worker_crash_points(tmp_path, postgres, points), len(points))


@pytest.mark.long
def test_jobs_of_a_killed_worker_go_on_at_another(tmp_path: Path, postgres: Postgres) -> None:
    check(scenarios.worker_kills(tmp_path, postgres, 1, seed=0), 1)


def test_jobs_survive_immediate_stops_of_postgresql(tmp_path: Path, postgres: Postgres) -> None:
    check(scenarios.database_stops(tmp_path, postgres, 1, seed=0), 1)


@pytest.mark.long
def test_real_measurements_and_trials_run_once_whatever_moment_the_service_dies_at(tmp_path: Path) -> None:
    points = [("calibrate", "started"), ("trial", "ended"), *form([], [("search", "started")])]
    found = real.real_work(tmp_path, points, 0, seed=0)
    check(found, len(points))
    assert found["started"] == 2  # a search is no run
    assert found["taught"] == found["trials"] == 1, "a trial teaches its calibration once"


def test_a_crash_is_asked_for_by_the_name_of_a_moment() -> None:
    make_crash_hook(None)("search", "taken")
    make_crash_hook("search:taken")("trial", "taken")
    with pytest.raises(InputError, match="crash_at"):
        make_crash_hook("search:somewhere")
