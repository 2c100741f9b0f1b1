"""The earlier trial report that ``autosbp trial`` compares with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.report.trial_gates import ReferenceTrial
from autosbp.utils.json_io import Fields, read_file


def read_report(path: Path, report: Mapping[str, Any]) -> ReferenceTrial:
    """Read the trial of ``--baseline-report``; ``InputError`` unless it has the same model and cluster as ``report``."""
    document = read_file(path)
    fields = Fields(document, "baseline_report", document if isinstance(document, Mapping) else ())
    for name in ("model", "cluster"):
        there = fields.text(name)
        if there != report[name]:
            raise InputError(f"baseline_report.{name}", there, f"expected a report for {name} {report[name]}")
    step = Fields(fields.mapping("step_time_s"), "baseline_report.step_time_s", fields.mapping("step_time_s"))
    return ReferenceTrial(step.positive("median"), f"{fields.text('plan_id')} in {path}")
