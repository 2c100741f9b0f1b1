"""What a trial is compared with: the last ones of its kind that passed."""

from __future__ import annotations

import statistics
from datetime import UTC, datetime, timedelta

import pytest

from autosbp.report.trial_gates import GateLimits, NoReference, ReferenceTrial
from autosbp.service.db import Database
from autosbp.service.models import ClusterRow, JobRow, ModelRow, StrategyRow, TrialRow
from autosbp.service.services._queries import existing
from autosbp.service.services.gate_results import _has_limits, _reference_trial

Row = tuple[str, str | None, str | None, bool | None]
_STRATEGIES = {"plan-1": "tiny", "plan-2": "tiny", "plan-9": "other"}


def good(strategy: str = "plan-1", label: str | None = "main") -> Row:
    return strategy, None, label, True


def planted(database: Database, rows: list[Row]) -> None:
    """Trials, newest first, of two strategies of models of one name on one cluster, and of another; tri-0 is the newest."""
    costs = {"step_time_s": 1.0, "comm_bytes_per_device": 0, "memory_bytes_per_device": 0, "searcher": "exact"}
    with database.of("lab").write() as session:
        session.add(ClusterRow(id="clu-1", name="local:2", cluster_hash="h", num_devices=1, document={}))
        session.add(JobRow(id="job-1", kind="trial", payload={}, state="succeeded"))
        for plan, name in _STRATEGIES.items():
            session.add(ModelRow(id=f"m-{plan}", name=name, source="zoo", graph_hash=plan, summary={}, document={}))
        session.flush()
        for plan in _STRATEGIES:
            session.add(StrategyRow(id=plan, model_id=f"m-{plan}", cluster_id="clu-1", plan={}, **costs))
        session.flush()
        for age, (strategy, baseline, label, passed) in enumerate(rows):
            trial = TrialRow(id=f"tri-{age}", strategy_id=strategy, job_id="job-1", options={}, predicted={})
            trial.baseline, trial.label, trial.passed = baseline, label, passed
            trial.measured_step_time_s = 1.0 + age
            trial.created_at = datetime(2026, 1, 1, tzinfo=UTC) - timedelta(hours=age)
            session.add(trial)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([good()], ["tri-1"]),
        ([good("plan-2"), good()], ["tri-2"]),
        ([good("plan-9"), good("plan-2")], ["tri-2"]),
        ([("plan-1", None, "main", False), good()], ["tri-2"]),
        ([("plan-1", None, "main", None), good()], ["tri-2"]),
        ([good(label="7/merge"), good(label=None), good()], ["tri-3"]),
        ([("plan-1", "megatron", "main", True)], []),
        ([good(label="7/merge")], []),
        ([good()] * 7, ["tri-1", "tri-2", "tri-3", "tri-4", "tri-5"]),
    ],
    ids=[
        *(
            "of the strategy",
            "the strategy first",
            "of the model's name",
            "none that failed",
            "none that nobody judged",
        ),
        *("none of another label", "another baseline", "no label", "the last five"),
    ],
)
def test_a_trial_is_compared_with_the_last_ones_of_its_kind_that_passed(
    database: Database, rows: list[Row], found: list[str]
) -> None:
    planted(database, [("plan-1", None, "7/merge", None), *rows])
    with database.of("lab").read() as session:
        earlier = _reference_trial(session, existing(session, TrialRow, "tri-0"), "main")
    if not found:
        assert isinstance(earlier, NoReference)
        assert earlier.sentence.startswith("no earlier trial labelled main of tiny on local:2 passed its gates")
        return
    assert isinstance(earlier, ReferenceTrial) and list(earlier.trials) == found
    assert earlier.step_time_s == statistics.median(1.0 + int(name[4:]) for name in found)
    assert earlier.source.endswith(", ".join(found)) and "labelled main" in earlier.source


def test_losses_that_rounding_judges_are_no_limit_that_a_client_asked_for() -> None:
    gates = [{"name": "max_step_time_s", "limit": 0.5}, {"name": "max_loss_difference", "limit": 1e-5}]
    row = TrialRow(id="tri-1", result={"loss_bound": 1e-5}, gates=gates)
    assert _has_limits(row, GateLimits(step_time_s=0.5)) and _has_limits(row, GateLimits(0.5, 1e-5))
    assert not _has_limits(row, GateLimits(step_time_s=0.4)) and not _has_limits(row, GateLimits(0.5, 1e-6))
    row.result = {"loss_bound": 1e-6}
    assert not _has_limits(row, GateLimits(step_time_s=0.5))


def test_without_a_label_those_of_any_count_and_another_tenants_never_do(database: Database) -> None:
    planted(database, [("plan-1", None, None, None), good(label="x"), good(label=None)])
    with database.of("lab").read() as session:
        earlier = _reference_trial(session, existing(session, TrialRow, "tri-0"), None)
    assert isinstance(earlier, ReferenceTrial) and earlier.trials == ("tri-1", "tri-2")
