"""Trials teach versions of the calibration that their strategies were searched with."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.calibration_correction import TrialResidual, fit_correction
from autosbp.service.db import Database
from autosbp.service.models import DEFAULT_TENANT, CalibrationRow, JobRow, TrialRow
from autosbp.service.services import trial_feedback, trials
from autosbp.service.services._queries import existing, find
from autosbp.service.services.job_kinds import kinds
from autosbp.service.settings import Settings
from tests.service import documents
from tests.service.conftest import running, state_of

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service whose trials start no ranks."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("taught"))
    table = dict(kinds(settings))
    table["trial"] = replace(table["trial"], target="tests.service.tasks:quick_trial")
    with running(settings, table) as client:
        yield client


@pytest.fixture(scope="module")
def root(taught: TestClient) -> dict[str, Any]:
    answer: dict[str, Any] = taught.post("/v1/calibrations", json=documents.calibration()).json()
    return answer


def searched(client: TestClient, cluster_id: str, calibration_id: str | None) -> dict[str, Any]:
    model_id = client.post("/v1/models", json=documents.graph()).json()["id"]
    asked = {"model_id": model_id, "cluster_id": cluster_id, "options": documents.OPTIONS}
    job = client.post("/v1/searches", json={**asked, "calibration_id": calibration_id}).json()
    done = documents.wait(client, job["id"])
    assert done["state"] == "succeeded", done
    plan: dict[str, Any] = client.get(f"/v1/strategies/{done['result']['strategy_id']}").json()
    return plan


@pytest.fixture(scope="module")
def plan(taught: TestClient, root: dict[str, Any]) -> dict[str, Any]:
    return searched(taught, root["cluster_id"], root["id"])


def tried(client: TestClient, plan: dict[str, Any], **asked: Any) -> dict[str, Any]:
    """A trial's job, done."""
    answer = client.post("/v1/trials", json={"strategy_id": plan["plan_id"], **asked}).json()
    done = documents.wait(client, answer["id"])
    assert done["state"] == "succeeded", done
    return done


def versions(client: TestClient, root: dict[str, Any]) -> list[dict[str, Any]]:
    """Oldest first."""
    items: list[dict[str, Any]] = client.get("/v1/calibrations", params={"root_id": root["id"]}).json()["items"]
    return items[::-1]


def database(client: TestClient) -> Database:
    state = state_of(client)
    return state.database.of(DEFAULT_TENANT)


def test_every_trial_of_a_family_teaches_one_more_version(
    taught: TestClient, root: dict[str, Any], plan: dict[str, Any]
) -> None:
    baseline = sorted(plan["baseline_strategies"])[0]
    first = tried(taught, plan, steps=5)["result"]
    second = tried(taught, plan, steps=7, baseline=baseline)["result"]
    found = versions(taught, root)
    assert [each["num_trials"] for each in found] == [0, 1, 2]
    assert [each["id"] for each in found] == [root["id"], first["calibration_id"], second["calibration_id"]]
    assert {(each["root_id"], each["newest_id"]) for each in found} == {(root["id"], second["calibration_id"])}

    trials_of = [taught.get(f"/v1/trials/{result['trial_id']}").json() for result in (first, second)]
    experiences = [TrialResidual.from_dict(trial["result"]["experience"]) for trial in trials_of]
    assert [one.measured_s for one in experiences] == [0.015, 0.017]
    wanted = fit_correction(Calibration.from_dict(documents.calibration()), experiences)
    detail = taught.get(f"/v1/calibrations/{second['calibration_id']}").json()
    assert Calibration.from_dict(detail["document"]) == wanted
    assert taught.get(f"/v1/calibrations/{root['id']}").json()["document"] == documents.calibration()

    # A strategy of a later version teaches the same family, and is compared with what was measured at first.
    later = searched(taught, root["cluster_id"], second["calibration_id"])
    assert later["plan_id"] != plan["plan_id"]
    assert searched(taught, root["cluster_id"], root["id"]) == plan
    tried(taught, later, steps=5)
    assert [each["num_trials"] for each in versions(taught, root)] == [0, 1, 2, 3]


def test_a_trial_that_is_stored_twice_teaches_once(
    taught: TestClient, root: dict[str, Any], plan: dict[str, Any]
) -> None:
    job = tried(taught, plan, steps=9)
    before = versions(taught, root)
    with database(taught).write() as session:
        row = existing(session, JobRow, job["id"])
        trial = existing(session, TrialRow, row.payload["trial_id"])
        assert trial.result is not None
        assert trials.store(session, row, dict(trial.result)) == job["result"]
    assert versions(taught, root) == before


def test_concurrent_stores_teach_one_version(taught: TestClient, root: dict[str, Any], plan: dict[str, Any]) -> None:
    tried(taught, plan, steps=10)
    before = versions(taught, root)
    with database(taught).write() as session:
        session.delete(existing(session, CalibrationRow, before[-1]["id"]))

    def teach(_: int) -> str:
        with database(taught).write() as session:
            version = trial_feedback.store_corrected_version(session, root["id"])
            assert version is not None
            return version.id

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(teach, range(8))) == {before[-1]["id"]}
    assert [each["id"] for each in versions(taught, root)] == [each["id"] for each in before]


def test_mismatched_or_uncalibrated_trials_create_no_correction(
    taught: TestClient, root: dict[str, Any], plan: dict[str, Any]
) -> None:
    before = versions(taught, root)
    unmatched = tried(taught, plan, seed=1)["result"]
    assert "experience" not in taught.get(f"/v1/trials/{unmatched['trial_id']}").json()["result"]
    plain = tried(taught, searched(taught, root["cluster_id"], None))["result"]
    assert plain.keys() == {"trial_id"}
    assert versions(taught, root) == before


def test_only_the_newest_trials_teach(
    taught: TestClient, root: dict[str, Any], plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried(taught, plan, steps=11)
    last = tried(taught, plan, steps=12)
    monkeypatch.setattr(trial_feedback, "MAX_TRIALS", 1)
    with database(taught).write() as session:
        version = trial_feedback.store_corrected_version(session, root["id"])
        assert version is not None and version.num_trials == 1
        wanted = existing(session, TrialRow, last["result"]["trial_id"]).result
        assert wanted is not None
        only = fit_correction(
            Calibration.from_dict(documents.calibration()), [TrialResidual.from_dict(wanted["experience"])]
        )
        assert version.id == only.calibration_id
        session.rollback()
    with database(taught).read() as session:
        assert find(session, CalibrationRow, version.id) is None
