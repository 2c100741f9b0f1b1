"""A user's own module under a plan, against the same script on one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autosbp.api import PlanOptions, capture_module, load_cluster, make_plan
from autosbp.errors import InputError
from autosbp.launch.local import run_ranks
from autosbp.training import parallelize
from tests.training.user_model import LanguageModel, Sentences, example
from tests.training.worker import train

pytestmark = pytest.mark.integration

CASES: dict[str, dict[str, Any]] = {
    "ZeRO-2": {"data_parallel": 4, "storage": "step", "stages": 1},
    "ZeRO-3 in microbatches": {"data_parallel": 4, "storage": "use", "stages": 1, "micro_batch": 4},
    "tensor parallelism": {"data_parallel": 1, "tensor_parallel": 4, "stages": 1},
    "grid": {"data_parallel": 2, "tensor_parallel": 2, "stages": 1, "micro_batch": 4},
    "pipeline": {"stages": 2, "micro_batch": 4, "schedules": ("1f1b",), "storage": "as_used", "data_parallel": 2},
    "interleaved": {"stages": 2, "micro_batch": 4, "schedules": ("interleaved_1f1b",)},
    "zero bubble": {"stages": 2, "micro_batch": 2, "schedules": ("zero_bubble",), "storage": "step"},
}
MIXED = "mixed precision"


def planned(folder: Path, label: str, *, tied: bool, dtype: str) -> Path:
    module = LanguageModel(tied=tied).to(getattr(torch, dtype))
    graph = capture_module(module, example(), name="language-model")
    constraints = {"stages": 1, "storage": "step", "precision": "bf16-mixed"} if label == MIXED else CASES[label]
    options = PlanOptions(global_batch=8, baselines=(), **constraints)
    path = folder / f"{label}.json"
    path.write_text(json.dumps(make_plan(graph, load_cluster("local:2x2"), None, options).document))
    return path


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """One start of four ranks trains all cases."""
    folder = tmp_path_factory.mktemp("parallel")
    cases = []
    for at, label in enumerate(CASES):
        plan = planned(folder, label, tied=True, dtype="float64")
        cases.append({
            "plan": str(plan), "tied": True, "dtype": "float64", "own_rows": at % 2 == 0, "calls": 1 + at % 2,
            "meta": label == "ZeRO-2", "compiler": "aot_eager" if label == "grid" else None,
        })  # fmt: skip
    mixed = planned(folder, MIXED, tied=True, dtype="float32")
    cases.append({**cases[0], "plan": str(mixed), "dtype": "float32", "own_rows": True, "calls": 1, "meta": False})
    (folder / "request.json").write_text(json.dumps(cases))
    arguments = [str(folder / "request.json"), str(folder / "result.json")]
    outcome = run_ranks("tests.training.worker", arguments, 4, folder / "log", timeout_s=300)
    assert outcome.reason == "", outcome.log_tail
    ranks = json.loads((folder / "result.json").read_text())
    return {label: [rank[at] for rank in ranks] for at, label in enumerate([*CASES, MIXED])}


def alone(calls: int, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Any], LanguageModel]:
    """The same script on one device."""
    torch.manual_seed(0)
    model = LanguageModel().to(dtype)
    loader = DataLoader(Sentences(40), batch_size=8)

    def clip(max_norm: float, *_: Any) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    return train(model, loader, clip, calls), model


@pytest.mark.parametrize("label", CASES)
def test_a_users_script_trains_as_on_one_device(label: str, reports: dict[str, list[dict[str, Any]]]) -> None:
    calls = 1 + list(CASES).index(label) % 2
    expected, model = alone(calls)
    parameters = dict(model.named_parameters())
    seen = set()
    for rank in reports[label]:
        assert rank["losses"] == pytest.approx(expected["losses"], rel=1e-9)
        assert rank["norms"] == pytest.approx(expected["norms"], rel=1e-9)
        for name, values in rank["parameters"].items():
            seen.add(name)
            torch.testing.assert_close(
                torch.tensor(values, dtype=torch.float64), parameters[name].detach(), rtol=1e-8, atol=1e-10
            )
    assert seen == set(parameters)


def test_mixed_precision_trains_float32_weights_nearly_as_float32_does(
    reports: dict[str, list[dict[str, Any]]],
) -> None:
    expected, model = alone(1, torch.float32)
    parameters = dict(model.named_parameters())
    for rank in reports[MIXED]:
        assert rank["dtypes"] == ["torch.float32"]
        assert rank["losses"] == pytest.approx(expected["losses"], rel=0.02)
        assert rank["losses"] != pytest.approx(expected["losses"], rel=1e-6)  # it computed in half precision
        assert rank["norms"] == pytest.approx(expected["norms"], rel=0.05)
        for name, values in rank["parameters"].items():
            assert float((torch.tensor(values) - parameters[name].detach()).abs().mean()) < 5e-3


@pytest.mark.parametrize("label", CASES)
def test_evaluation_gives_the_loss_of_the_trained_module(label: str, reports: dict[str, list[dict[str, Any]]]) -> None:
    _, model = alone(1 + list(CASES).index(label) % 2)
    batch = next(iter(DataLoader(Sentences(40), batch_size=8)))
    with torch.no_grad():
        expected = float(model(**batch))
    assert [rank["evaluated"] for rank in reports[label]] == [pytest.approx(expected, rel=1e-9)] * 4


def test_ranks_load_only_the_samples_that_they_read(reports: dict[str, list[dict[str, Any]]]) -> None:
    assert [rank["rows"] for rank in reports["ZeRO-2"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [rank["rows"] for rank in reports["ZeRO-3 in microbatches"]] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [rank["rows"] for rank in reports["tensor parallelism"]] == [list(range(8))] * 4


@pytest.mark.parametrize("label", CASES)
def test_a_batch_that_does_not_fit_is_named(label: str, reports: dict[str, list[dict[str, Any]]]) -> None:
    for rank in reports[label]:
        unknown, samples, length, missing = rank["refusals"]
        assert "mask" in unknown and "labels, tokens" in unknown
        assert "(3, 16)" in samples and "8 samples" in samples
        assert "(8, 5)" in length and "(16,)" in length
        assert "the model needs the input" in missing


def test_a_plan_of_another_model_and_a_script_without_torchrun_are_refused(tmp_path: Path) -> None:
    plan = planned(tmp_path, "grid", tied=True, dtype="float32")
    with pytest.raises(InputError, match="the plan is of graph"):
        parallelize(LanguageModel(tied=False), plan, example=example())
    with pytest.raises(InputError, match="torchrun --nproc-per-node, 4 ranks"):
        parallelize(LanguageModel(), plan, example=example())
    with pytest.raises(InputError, match="example"):
        parallelize(LanguageModel(), plan)
