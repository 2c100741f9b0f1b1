"""Export of plans to other tools: configurations of trainers, a DTensor program, a trace of the predicted step."""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.costmodel.calibration import Calibration
from autosbp.errors import InputError, UnsupportedError
from autosbp.export._accelerate import export_accelerate
from autosbp.export._base import Exporter
from autosbp.export._deepspeed import export_deepspeed
from autosbp.export._dtensor import export_dtensor
from autosbp.export._megatron import export_megatron
from autosbp.export._perfetto import export_perfetto
from autosbp.export._torchtitan import export_torchtitan
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Plan

__all__ = ["EXPORTERS", "Exporter", "export_plan"]

EXPORTERS: Mapping[str, Exporter] = {
    "accelerate": export_accelerate,
    "deepspeed": export_deepspeed,
    "dtensor": export_dtensor,
    "megatron": export_megatron,
    "perfetto": export_perfetto,
    "torchtitan": export_torchtitan,
}


def export_plan(
    target: str, plan: Plan, graph: LogicalGraph | None = None, calibration: Calibration | None = None
) -> dict[str, str]:
    """Export a plan to another tool.

    Args:
        target: a key of ``EXPORTERS``.
        plan: the plan.
        graph: the plan's graph, with symbolic dims.
        calibration: calibration of the plan's costs; only ``perfetto`` needs it.

    Returns:
        Contents of the files by name (see ``Exporter``).

    Raises:
        InputError: the target is unknown, or the graph or calibration is missing or not the plan's.
        UnsupportedError: the target cannot express the plan, or the plan has a synchronization strategy.
    """
    if target not in EXPORTERS:
        raise InputError("to", target, f"expected one of {', '.join(EXPORTERS)}")
    if plan.strategy.sync is not None and target != "perfetto":
        raise UnsupportedError(f"{target} cannot express how the plan synchronizes gradients; plan without --builder")
    return EXPORTERS[target](plan, graph, calibration)
