"""What is said of a plan that another release costed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autosbp.cli._run import note
from autosbp.findings import SAME
from autosbp.units import seconds

if TYPE_CHECKING:
    from autosbp.plan import Plan


def note_other_release(plan: Plan, step_s: float) -> None:
    """Say so where the plan's costs are not those that its strategy has now."""
    then = plan.document["step_time_s"]
    if abs(step_s - then) > SAME * then:
        note(f"warning: another release costed this plan: {seconds(then)} then, {seconds(step_s)} now; plan again")
