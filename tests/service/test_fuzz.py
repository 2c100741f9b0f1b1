"""What schemathesis makes up from the OpenAPI document: no 5xx, and nothing that the document does not say.

The short form makes fewer requests. Other seeds, and more of each: ``make fuzz``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fuzz.__main__ import joined
from benchmarks.fuzz._server import Served, run_service
from benchmarks.fuzz.http import PHASES, attack
from tests.service.postgres import Postgres
from tests.tiers import form

pytestmark = pytest.mark.integration

SEED = 1


def check(service: Served, folder: Path, num_examples: int, phases: tuple[str, ...], at_least: int) -> None:
    found = attack(service, folder, SEED, num_examples, phases)
    assert not found["failures"] and not found["errors"], found["output"]
    assert {phase["status"] for phase in found["phases"].values()} == {"success"} and found["complete"], found["output"]
    assert (found["5xx"], found["violations"]) == (0, 0) and all(
        phase["requests"] for phase in found["phases"].values()
    )
    assert found["operations"] >= 38
    assert found["cases"] >= at_least
    assert not found["logged_errors"], service.log.read_text()


@pytest.mark.slow
def test_generated_requests_find_nothing(tmp_path: Path) -> None:
    with run_service(tmp_path) as service:
        check(service, tmp_path, *form((2, ("fuzzing", "stateful"), 80), (6, PHASES, 3000)))


@pytest.mark.slow
@pytest.mark.long
def test_requests_on_postgresql_with_waiting_jobs_find_nothing(postgres: Postgres, tmp_path: Path) -> None:
    with run_service(tmp_path, postgres.database()) as service:
        check(service, tmp_path, form(3, 8), ("fuzzing", "stateful"), form(100, 300))


def test_results_of_requests_and_of_documents_are_kept_beside_each_other() -> None:
    documents = {"requests": None, "documents": {"plans": {"findings": []}}, "passed": True}
    requests = {"requests": {"failures": ["one"], "errors": []}, "documents": {}, "passed": False}
    both = {**documents, "requests": requests["requests"], "passed": False}
    assert joined(requests, documents) == joined(documents, requests) == both
    assert joined(documents, {}) == documents
