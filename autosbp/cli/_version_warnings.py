"""Warnings about plans whose costs come from another release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autosbp.cli._exit_codes import note
from autosbp.report.findings import STEP_TIME_RTOL
from autosbp.utils.formatting import seconds

if TYPE_CHECKING:
    from autosbp.plan.plan import Plan


def note_other_release(plan: Plan, step_s: float) -> None:
    """Warn if the plan's stored step time differs from the one that this release predicts, ``step_s`` seconds."""
    then = plan.document["step_time_s"]
    if abs(step_s - then) > STEP_TIME_RTOL * then:
        note(f"warning: this plan was costed by another release ({seconds(then)}, now {seconds(step_s)}); plan again")
