"""``--precision``: planned, explained, compared, tried and exported from the captured graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.integration

MODEL = "zoo:gpt2-demo"


@pytest.fixture(scope="module")
def mixed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("precision") / "plan.json"
    done = run(
        *("plan", MODEL, "--cluster", "local:2", "--global-batch", 8, "--precision", "bf16-mixed", "-o", path),
        *("--baselines", "data_parallel"),
    )
    assert done.exit_code == 0, done.stderr
    assert "precision bf16-mixed, 128 tokens a sample" in done.stdout and "tokens/s" in done.stdout
    return path


def test_devices_with_tensor_cores_train_in_mixed_precision_by_default(run: Run) -> None:
    done = run("plan", "zoo:mlp-small", "--cluster", "dgx-h100:1", "--baselines", "none", "--json")
    document = json.loads(done.stdout)
    assert document["precision"] == document["options"]["precision"] == "bf16-mixed"
    assert document["tokens_per_s"] is None and document["samples_per_s"] > 0 and 0 < document["mfu"] < 1


def test_explain_and_diff_say_the_precision(run: Run, folder: Path, mixed: Path) -> None:
    found = json.loads(run("explain", mixed, "--model", MODEL, "--json").stdout)
    assert found["precision"] == "bf16-mixed" and found["sequence_length"] == 128 and found["tokens_per_s"] > 0
    assert any(call["kind"] for call in found["collectives"])
    choices = json.loads(run("diff", mixed, folder / "plan.json", "--json").stdout)["choices"]
    assert choices["precision"] == {"a": "bf16-mixed", "b": "fp32"}


def test_a_trial_of_the_captured_model_trains_in_the_plan_s_precision(run: Run, mixed: Path) -> None:
    done = run("trial", mixed, "--model", MODEL, "--steps", 2, "--warmup", 1, "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["collectives_match"] and report["loss_difference"] < 5e-3
    assert report["memory_bytes"] == pytest.approx(report["predicted_memory_bytes"], rel=0.01)


def test_estimates_follow_the_precision(run: Run) -> None:
    def state(*options: str) -> tuple[int, int]:
        found = json.loads(run("estimate", MODEL, *options, "--json").stdout)
        return found["parameter_bytes"], found["memory_breakdown"]["optimizer"]

    parameters, optimizer = state()
    assert state("--precision", "bf16-mixed") == (parameters // 2, optimizer * 3 // 2)
    assert state("--precision", "bf16") == (parameters // 2, optimizer // 2)
    assert state("--cluster", "dgx-h100:1") == state("--precision", "bf16-mixed")


@pytest.mark.parametrize("command", [("plan", "--cluster", "local:2"), ("estimate",)])
def test_an_unknown_precision_is_refused_by_name(run: Run, command: tuple[str, ...]) -> None:
    name, *options = command
    done = run(name, MODEL, *options, "--precision", "fp8")
    assert done.exit_code == 2 and "precision" in done.stderr and "bf16-mixed" in done.stderr


@pytest.mark.parametrize(("precision", "rate"), [("tf32", "tensorfloat32"), ("fp8-mixed", "peak_flops.float8")])
@pytest.mark.parametrize("command", ("plan", "estimate", "tune"))
def test_a_precision_needs_a_device_that_has_its_rate(run: Run, command: str, precision: str, rate: str) -> None:
    done = run(command, MODEL, "--cluster", "summit:1", "--precision", precision)
    assert done.exit_code == 2 and rate in done.stderr and precision in done.stderr


def test_a_plan_in_float8_is_exported_but_not_trained(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    asked = ("zoo:llama-demo", "--cluster", "dgx-h100:1", "--global-batch", 64, "--precision", "fp8-mixed")
    done = run("plan", *asked, "--time-limit", 2, "-o", path)
    assert done.exit_code == 0 and "fp8-mixed" in done.stdout, done.stderr
    for command in (
        ("trial", path, "--model", "zoo:llama-demo"),
        ("train", path, "--model", "zoo:llama-demo", "--data", path),
    ):
        refused = run(*command)
        assert refused.exit_code != 0 and "fp8-mixed" in refused.stderr and "torchtitan or Megatron" in refused.stderr
