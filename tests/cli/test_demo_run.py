"""The demo, in its quick form: a real service, real ranks, every part once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autosbp.cli.demo_run import baselines_equal_to_plan, run_demo, this_machine
from autosbp.costmodel.calibration import Calibration
from autosbp.plan.plan import Plan
from autosbp.search.plan_options import DEFAULT_BASELINES

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_the_demo_runs_to_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(tmp_path, quick=True) == 0
    shown = capsys.readouterr().out
    for row in ("autosbp", *DEFAULT_BASELINES):
        assert row in shown
    assert "issued collectives equal predicted collectives on every rank: yes" in shown
    assert "a model for which data parallelism is slow" in shown and "interleaved trials" in shown
    plan = Plan.from_dict(json.loads((tmp_path / "plan.json").read_text()))
    same = baselines_equal_to_plan(plan.document, ("autosbp", *DEFAULT_BASELINES))
    assert same == [name for name in DEFAULT_BASELINES if plan.baseline_strategy(name) == plan.strategy]
    assert (f"{' and '.join(same)}: same strategy as autosbp's" in shown) == bool(same)
    calibration = Calibration.from_dict(json.loads((tmp_path / "calibration.json").read_text()))
    assert plan.document["provenance"]["calibration_id"] == calibration.calibration_id
    bound, step = plan.document["lower_bound_s"], plan.document["step_time_s"]
    assert 0.0 < bound <= step  # times this rough may leave pipelines open, so that the bound is below
    assert plan.document["gap"] == pytest.approx((step - bound) / step, abs=1e-9)
    assert calibration.ops


@pytest.mark.parametrize(
    ("listed", "cluster"),
    [
        # As nvidia-smi lists them: name, MiB.
        (["NVIDIA H200, 143771"] * 8, "dgx-h200:1x8"),
        (["NVIDIA H100 80GB HBM3, 81559"] * 4, "dgx-h100:1x4"),
        (["NVIDIA A100-SXM4-40GB, 40960"] * 3, "gcp-a100-16:1x2"),
        (["NVIDIA RTX 4090, 24564"] * 2, "this machine: 2 x NVIDIA RTX 4090"),
        (["NVIDIA H200, 143771"], "local:2x2"),
        ([], "local:2x2"),
    ],
)
def test_the_devices_of_this_machine_are_those_of_a_preset_where_there_is_one(
    listed: list[str], cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "".join(f"{line}\n" for line in listed) + "END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert this_machine().name == cluster
