"""What the task of a search tells while it works, and the curve that it keeps."""

from __future__ import annotations

from math import isfinite
from typing import Any

import pytest

from autosbp.service.jobs import tasks
from tests.service import documents

pytestmark = pytest.mark.integration


class Told:
    """A context that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.best: list[float] = []

    def progress(self, fraction: float | None, message: str, **figures: float) -> bool:
        assert fraction is None or 0.0 <= fraction <= 1.0
        self.messages.append(message)
        self.best += [figures["best_step_time_s"]] if figures else []
        return True

    def cancelled(self) -> bool:
        return False


@pytest.mark.parametrize("more", [{}, {"num_points": 3}])
def test_the_best_step_that_is_told_only_falls_and_is_the_plans(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, int]
) -> None:
    monkeypatch.setattr("autosbp.search.solvers.solver_state.PROGRESS_INTERVAL_S", 0.0)
    inputs: dict[str, Any] = {"graph": documents.graph(), "cluster": documents.cluster(), "calibration": None}
    told = Told()
    found = tasks.search({**inputs, "options": {**documents.OPTIONS, "memory_limit_bytes": 4_500_000}, **more}, told)
    finite = [best_s for best_s in told.best if isfinite(best_s)]
    assert {"baselines", "search"} <= set(told.messages)
    assert finite == sorted(finite, reverse=True)
    assert told.best[len(told.best) - len(finite) :] == finite  # once there is one, it is told of
    fastest = found["plans"][0]["step_time_s"]
    assert finite[-1] == fastest
    assert found["curve"][-1][1] == fastest
    assert [best_s for _, best_s in found["curve"]] == sorted((b for _, b in found["curve"]), reverse=True)
