"""Strategies that an earlier release stored, which searched by a sum in which nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import undefer
from starlette.testclient import TestClient

from autosbp.plan.plan import OLDER_OBJECTIVE_WARNING, Plan
from autosbp.service.models import DEFAULT_TENANT, JobRow, SearchRow, StrategyRow, TrialRow
from autosbp.service.services.job_kinds import kinds
from autosbp.service.settings import Settings
from autosbp.service.web.number_format import seconds
from tests.earlier_plans import OVERLAP, earlier_plan
from tests.service import documents
from tests.service.conftest import running, state_of

pytestmark = pytest.mark.integration

HTML = {"accept": "text/html"}


@dataclass(frozen=True)
class Stored:
    """A service, the plan that its search found, and the same as an earlier release stored it."""

    client: TestClient
    plan: dict[str, Any]
    earlier: dict[str, Any]
    trial: str


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("earlier"), cancel_grace_s=1.0)
    table = dict(kinds(settings))
    table["trial"] = replace(table["trial"], target="tests.service.tasks:quick_trial")
    with running(settings, table) as client:
        plan = searched(client)
        earlier = earlier_plan(plan)
        yield Stored(client, plan, earlier, store(client, plan, earlier))


def searched(client: TestClient) -> dict[str, Any]:
    calibration = client.post("/v1/calibrations", json=documents.calibration()).json()
    asked = {
        "model_id": client.post("/v1/models", json=documents.graph()).json()["id"],
        "cluster_id": calibration["cluster_id"],
        "calibration_id": calibration["id"],
        "options": documents.OPTIONS,
    }
    done = documents.wait(client, client.post("/v1/searches", json=asked).json()["id"])
    assert done["state"] == "succeeded", done
    plan: dict[str, Any] = client.get(f"/v1/strategies/{done['result']['strategy_id']}").json()
    return plan


def store(client: TestClient, plan: dict[str, Any], earlier: dict[str, Any]) -> str:
    """The earlier strategy with its search and a trial; the trial's id."""
    sums = ("step_time_s", "simulated_step_time_s", "comm_bytes_per_device", "memory_bytes_per_device")
    with state_of(client).database.of(DEFAULT_TENANT).write() as session:
        row = session.scalars(select(StrategyRow).where(StrategyRow.id == plan["plan_id"])).one()
        same = (
            "model_id",
            "cluster_id",
            "calibration_id",
            "searcher",
            "comm_bytes_per_device",
            "memory_bytes_per_device",
        )
        copied = {name: getattr(row, name) for name in same}
        session.add(
            StrategyRow(id=earlier["plan_id"], step_time_s=earlier["simulated_step_time_s"], plan=earlier, **copied)
        )
        session.flush()
        search = session.scalars(select(SearchRow).where(SearchRow.strategy_id == plan["plan_id"])).one()
        job = session.scalars(select(JobRow).options(undefer(JobRow.result)).where(JobRow.id == search.job_id)).one()
        sum_s = earlier["step_time_s"]
        job.result = {**job.result, "curve": [[0.1, 2 * sum_s], [0.2, sum_s]]}
        search.strategy_id = earlier["plan_id"]
        trial = TrialRow(
            id="tri-0123456789abcdef",
            strategy_id=earlier["plan_id"],
            job_id=job.id,
            options={"steps": 3, "warmup": 1, "seed": 0},
            predicted={name: earlier[name] for name in sums},
        )
        session.add(trial)
        return trial.id


def test_an_earlier_strategy_is_returned_as_stored(stored: Stored) -> None:
    found = stored.client.get(f"/v1/strategies/{stored.earlier['plan_id']}").json()
    assert found == stored.earlier
    assert Plan.from_dict(found).stored_id == found["plan_id"]


def test_the_page_of_an_earlier_strategy_shows_its_simulated_step_without_a_bound(stored: Stored) -> None:
    text = stored.client.get(f"/strategies/{stored.earlier['plan_id']}", headers=HTML).text
    step_s = stored.plan["step_time_s"]
    for words in (
        *(stored.earlier["plan_id"], seconds(step_s), OLDER_OBJECTIVE_WARNING, "no bound"),
        f"{seconds(OVERLAP * step_s)} of communication",
        "These are step times without overlap, by which an earlier release searched.",
    ):
        assert words in text, words
    assert "Simulated step" not in text
    for part in ("timeline", "traffic", "sharding", "exports/perfetto"):
        assert stored.client.get(f"/strategies/{stored.earlier['plan_id']}/{part}").status_code == 200, part


def test_earlier_and_current_strategies_are_compared(stored: Stored) -> None:
    ids = stored.earlier["plan_id"], stored.plan["plan_id"]
    found = stored.client.get(f"/v1/strategies/{ids[0]}/diff/{ids[1]}").json()
    step_s = stored.plan["step_time_s"]
    assert (found["a"], found["b"], found["same"]) == (*ids, False)
    assert found["costs"]["step_time_s"] == {"a": step_s, "b": step_s}
    text = stored.client.get("/compare", params={"id": ids}, headers=HTML).text
    assert "The second takes 1 × as long as the first." in text and "Hidden communication" in text


def test_trials_of_an_earlier_strategy_use_its_simulated_step(stored: Stored) -> None:
    step_s = stored.plan["step_time_s"]
    text = stored.client.get(f"/trials/{stored.trial}", headers=HTML).text
    assert seconds(step_s) in text and seconds(stored.earlier["step_time_s"]) not in text
    known = stored.client.get(f"/v1/trials/{stored.trial}").json()["predicted"]
    assert known["simulated_step_time_s"] == step_s < known["step_time_s"]


@pytest.mark.parametrize("baseline", [None, "data_parallel"])
def test_a_new_trial_of_an_earlier_strategy_predicts_the_simulated_step(stored: Stored, baseline: str | None) -> None:
    asked = {"strategy_id": stored.earlier["plan_id"], "baseline": baseline, "steps": 3}
    job = stored.client.post("/v1/trials", json=asked).json()
    done = documents.wait(stored.client, job["id"])
    assert done["state"] == "succeeded", done
    trial = stored.client.get(job["resource"]).json()
    costs = stored.plan if baseline is None else stored.plan["baselines"][baseline]
    assert trial["predicted"].keys() == {"step_time_s", "comm_bytes_per_device", "memory_bytes_per_device"}
    assert trial["predicted"]["step_time_s"] == costs["step_time_s"]
    measured_s = trial["measured_step_time_s"]
    assert trial["relative_error"] == pytest.approx((measured_s - costs["step_time_s"]) / measured_s)
    assert (trial["result"]["plan_id"] == stored.earlier["plan_id"]) == (baseline is None)


def test_analyses_of_an_earlier_strategy_name_it(stored: Stored) -> None:
    asked = stored.client.post(f"/v1/strategies/{stored.earlier['plan_id']}/what-if", json={"factor": 2}).json()
    done = documents.wait(stored.client, asked["id"])
    assert done["state"] == "succeeded", done
    result = stored.client.get(f"/v1/analyses/{done['result']['analysis_id']}").json()["result"]
    assert result["plan_id"] == stored.earlier["plan_id"]
    assert result["step_time_s"] == pytest.approx(stored.plan["step_time_s"])


def test_an_earlier_strategy_is_a_warm_start(stored: Stored) -> None:
    row = next(
        one for one in stored.client.get("/v1/strategies").json()["items"] if one["id"] == stored.plan["plan_id"]
    )
    asked = {
        **{name: row[name] for name in ("model_id", "cluster_id", "calibration_id")},
        "options": documents.OPTIONS,
        "start_id": stored.earlier["plan_id"],
    }
    done = documents.wait(stored.client, stored.client.post("/v1/searches", json=asked).json()["id"])
    assert done["state"] == "succeeded", done
