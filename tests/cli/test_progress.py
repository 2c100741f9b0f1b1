"""What commands say while they work and of the time that it took, and how their help is grouped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import typer

from autosbp.cli import app
from autosbp.cli._progress import JobProgress, SearchProgress, WallTime
from autosbp.client import Job

SEARCHED = (
    ("baselines", float("inf")),
    ("search", 0.5),
    ("search", 0.49999),
    ("search", 0.25),
    ("fewer devices", 0.25),
)
JOB = Job("job-1", "search", "queued", None, None, "", {}, None, {})


def test_a_search_by_a_service_says_what_one_by_the_library_says(capsys: pytest.CaptureFixture[str]) -> None:
    library, service = SearchProgress(), JobProgress()
    for stage, best_s in SEARCHED:
        assert library.report(stage, best_s)
    own = capsys.readouterr().err
    assert own == "search: 500 ms per step\nsearch: 250 ms per step\n"
    for stage, best_s in SEARCHED[1:]:
        figures = {"best_step_time_s": best_s}
        service.report(replace(JOB, state="running", message=stage, figures=figures))
    assert capsys.readouterr().err == own


def test_other_jobs_say_each_step_once_with_how_far_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    progress = JobProgress()
    running = replace(JOB, kind="calibrate", state="running", message="all_reduce over 2x2", progress=0.25)
    for seen in (replace(JOB, kind="calibrate"), running, running, replace(running, state="succeeded", progress=1.0)):
        progress.report(seen)
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["calibrate queued", "calibrate running: [25 %] all_reduce over 2x2"]
    assert len(said) == 3 and "%" not in said[2]


def test_a_wall_time_beyond_the_limit_is_explained_by_its_parts() -> None:
    at = iter((0.0, 1.5, 10.0, 10.5, 21.0, 22.0, 22.01))
    times = WallTime(lambda: next(at))
    for part in ("loading", "capturing the model", "building the problem", "search", "search", "finishing"):
        times.end(part)
    assert times.explanation(22.5) is None
    parts = "loading 1.5 s, capturing the model 8.5 s, building the problem 0.5 s, search 11.5 s"
    assert times.explanation(20.0) == (
        f"took 22.0 s ({parts}): --time-limit 20 s ends the search, after what has begun"
    )


@pytest.mark.parametrize("name", ["plan", "trial", "calibrate", "serve", "estimate", "explain"])
def test_options_of_help_are_grouped(name: str) -> None:
    program: Any = typer.main.get_command(app)
    options = [each for each in program.commands[name].params if each.param_type_name == "option"]
    assert [each.name for each in options if each.rich_help_panel is None] == []
    assert len({each.rich_help_panel for each in options}) >= 2
