"""Placed tensors on four real ranks: the cases of ``tests.eager.cases``, each a fact."""

from __future__ import annotations

import json

import pytest

from autosbp.launch.local import run_ranks
from tests.eager.cases import CASES

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("eager")
    outcome = run_ranks("tests.eager.worker", [str(folder / "result.json")], 4, folder / "log", timeout_s=200)
    assert outcome.reason == "", outcome.log_tail
    found: dict[str, str] = json.loads((folder / "result.json").read_text())
    return found


@pytest.mark.parametrize("case", CASES)
def test_on_four_ranks(failures: dict[str, str], case: str) -> None:
    assert failures[case] == ""
