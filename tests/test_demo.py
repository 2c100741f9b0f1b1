"""The demo, in its quick form: a real service, real ranks, every part once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autosbp.costmodel.calibration import Calibration
from autosbp.demo import run_demo
from autosbp.plan import Plan


@pytest.mark.slow
def test_the_demo_runs_to_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(tmp_path, quick=True) == 0
    shown = capsys.readouterr().out
    for row in ("autosbp", "data_parallel", "megatron"):
        assert row in shown
    assert "collectives issued equal collectives charged, on every rank: yes" in shown
    plan = Plan.from_dict(json.loads((tmp_path / "plan.json").read_text()))
    calibration = Calibration.from_dict(json.loads((tmp_path / "calibration.json").read_text()))
    assert plan.document["provenance"]["calibration_id"] == calibration.calibration_id
    bound, step = plan.document["lower_bound_s"], plan.document["step_time_s"]
    assert 0.0 < bound <= step  # times this rough may leave pipelines open, so that the bound is below
    assert plan.document["gap"] == pytest.approx((step - bound) / step, abs=1e-9)
    assert calibration.ops
