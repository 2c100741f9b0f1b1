"""Measurement of a plan beside its baselines, for ``autosbp plan --verify`` and the demo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autosbp.cli._exit_codes import console, note
from autosbp.cli._launchers import rank_launcher
from autosbp.cli._text_tables import table
from autosbp.utils.formatting import seconds
from autosbp.utils.tempdirs import temporary_folder

if TYPE_CHECKING:
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan.plan import Plan
    from autosbp.tuning.comparison import MeasuredStrategy


@dataclass(frozen=True, slots=True)
class Verification:
    """Measurements of a plan and its baselines, and the verdict in words."""

    measured: Sequence[MeasuredStrategy]
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        return {"strategies": [each.to_dict() for each in self.measured], "verdict": self.verdict}

    def show(self) -> None:
        """Print a table and the verdict."""
        rows = [
            (
                "this plan" if at == 0 else each.name,
                seconds(each.predicted_step_time_s),
                seconds(each.step_time_s),
                f"{each.ratio:.3g} x",
                f"{each.loss_difference:.0e}",
                "as predicted" if each.collectives_match else "NOT AS PREDICTED",
            )
            for at, each in enumerate(self.measured)
        ]
        title = "interleaved trials on the same ranks; time per step, and its ratio to the plan's"
        console().print(table(title, ("", "predicted", "measured", "ratio", "loss", "collectives"), rows))
        console().print(self.verdict, soft_wrap=True, style="bold")


def verify_plan(plan: Plan, graph: LogicalGraph, model: str, launcher: str = "local", rounds: int = 3) -> Verification:
    """Measure the plan and its feasible baselines on ranks of this machine, or of emulated nodes."""
    from autosbp.graph_sources import factory_module
    from autosbp.report.verdict import verdict
    from autosbp.tuning.comparison import compare_strategies

    own = factory_module(model)
    with rank_launcher(launcher, plan.cluster) as ways, temporary_folder("autosbp-verify-") as folder:
        measured = compare_strategies(
            plan, graph, rounds=rounds, workdir=folder, launch=ways["launch"], libraries=[own] if own else [], log=note
        )
    return Verification(measured, verdict(plan, graph, measured))
