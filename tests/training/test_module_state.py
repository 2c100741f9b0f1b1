"""State of a module on ranks against one device: running statistics, exports, averaged weights, scales of float16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from autosbp.api import PlanOptions, capture_module, load_cluster, make_plan
from autosbp.launch.local import run_ranks
from tests.training.state_models import BATCH, MODELS, STEPS, AverageWeights, batch

pytestmark = pytest.mark.integration

ROUNDING = 1e-9
TRAINED: dict[str, dict[str, Any]] = {
    "batch split": {"model": "conv-net with a shared norm", "data_parallel": 4},
    "microbatches": {"model": "conv-net", "data_parallel": 4, "micro_batch": 4, "storage": "use"},
    "channels split": {"model": "conv-net", "data_parallel": 1, "tensor_parallel": 4},
    "stages": {"model": "conv-net", "stages": 2, "micro_batch": 4, "schedules": ("1f1b",), "data_parallel": 2},
    "tied in stages": {"model": "language-model", "stages": 2, "micro_batch": 4, "schedules": ("1f1b",)},
    "tied on a grid": {"model": "language-model", "data_parallel": 2, "tensor_parallel": 2, "storage": "step"},
}
SCALED: dict[str, dict[str, Any]] = {
    "float16 sharded": {"data_parallel": 4, "storage": "step"},
    "float16 in stages": {"stages": 2, "micro_batch": 4, "schedules": ("1f1b",)},
}
SCALE, SCALED_STEPS = 2.0**21, 8


def planned(model: str, dtype: str, **constraints: Any) -> dict[str, Any]:
    module, example = MODELS[model](dtype)
    graph = capture_module(module, example, name=model, check=False)
    options = PlanOptions(global_batch=BATCH, baselines=(), **{"stages": 1, **constraints})
    return make_plan(graph, load_cluster("local:2x2"), None, options).document


def alone(model: str, micro_batch: int) -> dict[str, Any]:
    """The same steps on one device, its microbatches one after another."""
    module, _ = MODELS[model]("float64")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    average, losses = AverageWeights(module.parameters()), []
    count = BATCH // micro_batch
    for step in range(STEPS):
        parts = {name: each.split(micro_batch) for name, each in batch(model, step, "float64").items()}
        loss = sum(module(**{name: each[at] for name, each in parts.items()}) for at in range(count)) / count
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update()
        losses.append(float(loss.detach()))
    report = {"module": module, "losses": losses, "state": {**module.state_dict()}}
    report["state"] = {name: each.clone() for name, each in report["state"].items()}
    module.eval()
    with torch.no_grad():
        report["evaluated"] = float(module(**batch(model, 99, "float64")))
        for parameter, mean in zip(average.parameters, average.average, strict=True):
            parameter.copy_(mean)
        report["averaged"] = float(module(**batch(model, 99, "float64")))
    return report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    """One start of four ranks runs all cases."""
    request = {
        name: {"model": case["model"], "dtype": "float64", "plan": planned(dtype="float64", **case)}
        for name, case in TRAINED.items()
    }
    for name, case in SCALED.items():
        plan = planned("language-model", "float32", precision="fp16-mixed", **case)
        request[name] = {
            "model": "language-model", "dtype": "float32", "plan": plan, "scale": SCALE, "steps": SCALED_STEPS,
        }  # fmt: skip
    (folder / "request.json").write_text(json.dumps(request))
    arguments = [str(folder / "request.json"), str(folder / "result.json")]
    outcome = run_ranks("tests.training.state_worker", arguments, 4, folder / "log", timeout_s=300)
    assert outcome.reason == "", outcome.log_tail
    return list(json.loads((folder / "result.json").read_text()))


@pytest.mark.parametrize("name", TRAINED)
def test_state_evaluation_and_averages_equal_one_device(name: str, ranks: Any) -> None:
    case = TRAINED[name]
    expected = alone(case["model"], case.get("micro_batch", BATCH))
    seen = set()
    for rank in ranks:
        for key in ("losses", "evaluated", "averaged"):
            assert rank[name][key] == pytest.approx(expected[key], rel=ROUNDING), key
        for tensor, values in rank[name]["state"].items():
            seen.add(tensor)
            found = torch.tensor(values, dtype=torch.float64)
            torch.testing.assert_close(found, expected["state"][tensor].double(), rtol=ROUNDING, atol=1e-11)
    assert abs(expected["averaged"] - expected["evaluated"]) > 1e-6
    assert seen | {"scale", "unread", "head.weight"} >= set(expected["state"])


@pytest.mark.parametrize("name", TRAINED)
def test_the_modules_own_class_loads_an_export(name: str, folder: Path, ranks: Any) -> None:
    module, _ = MODELS[TRAINED[name]["model"]]("float64")
    tensors = load_file(folder / f"{name}.safetensors")
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"head.weight"}  # tied, and stored under its first name
    assert {name: each.dtype for name, each in tensors.items()} == {
        name: each.dtype for name, each in module.state_dict().items() if name in tensors
    }
    module.eval()
    with torch.no_grad():
        loss = float(module(**batch(TRAINED[name]["model"], 99, "float64")))
    assert loss == pytest.approx(ranks[0][name]["evaluated"], rel=ROUNDING)


@pytest.mark.parametrize("name", SCALED)
def test_float16_leaves_out_steps_that_overflow_on_every_rank(name: str, ranks: Any) -> None:
    module, _ = MODELS["language-model"]("float32")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    reports = [rank[name] for rank in ranks]
    steps = reports[0]["steps"]
    assert all([step["scale"] for step in report["steps"]] == [step["scale"] for step in steps] for report in reports)
    skipped = [at for at in range(SCALED_STEPS) if steps[at]["scale"] < (steps[at - 1]["scale"] if at else SCALE)]
    assert 0 < len(skipped) < SCALED_STEPS - 3
    for at, step in enumerate(steps):
        assert [report["steps"][at]["changed"] for report in reports] == [at not in skipped] * 4
        assert (step["norm"] in ("inf", "nan")) == (at in skipped)
        loss = module(**batch("language-model", at % STEPS, "float32"))
        loss.backward()
        assert step["loss"] == pytest.approx(float(loss.detach()), rel=2e-3)
        if at not in skipped:
            norm = torch.nn.utils.get_total_norm([each.grad for each in module.parameters() if each.grad is not None])
            assert float(step["norm"]) == pytest.approx(float(norm), rel=0.02)
            optimizer.step()
        optimizer.zero_grad()
    assert all(report["loaded"] for report in reports)
