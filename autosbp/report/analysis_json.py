"""JSON documents of analyses of a plan: the cost of other layouts, and of faster hardware."""

from __future__ import annotations

from typing import Any

from autosbp.plan.plan import Plan
from autosbp.search.what_if import HardwareChange
from autosbp.search.why import CostedSignature, OpAlternatives


def why_document(plan: Plan, found: tuple[OpAlternatives, ...], step: float) -> dict[str, Any]:
    """Document of each op's alternatives; times and bytes are None if no strategy with the signature fits.

    Args:
        plan: the plan.
        found: the alternatives of each op.
        step: step time in seconds of the plan's strategy under the current cost model, from which an earlier release's
            may differ.
    """
    ops = [
        {
            "op": each.op,
            "reads": list(each.reads),
            "num_signatures": each.num_signatures,
            "alternatives": [_entry(one, step) for one in each.found],
        }
        for each in found
    ]
    mesh = [name for name, *_ in plan.document["strategy"]["mesh"]["axes"]]
    return {"plan_id": plan.stored_id, "step_time_s": step, "axes": mesh, "ops": ops}


def _entry(one: CostedSignature, step_s: float) -> dict[str, Any]:
    costs = one.costs
    return {
        "signature": one.signature,
        "chosen": one.chosen,
        "step_time_s": costs.step_time_s if costs else None,
        "difference_s": costs.step_time_s - step_s if costs else None,
        "gap": one.gap,
        "comm_bytes_per_device": costs.comm_bytes_per_device if costs else None,
        "memory_bytes_per_device": costs.memory_bytes_per_device if costs else None,
        "changes": {name: {"plan": old, "instead": new} for name, (old, new) in one.changes.items()},
        "reason": one.reason,
    }


def what_if_document(plan: Plan, found: tuple[HardwareChange, ...], step: float, *, calibrated: bool) -> dict[str, Any]:
    """Document of the step time after each hardware change, largest saving first.

    Args:
        plan: the plan.
        found: the hardware changes.
        step: step time in seconds of the plan's strategy under the current cost model, from which an earlier release's
            may differ.
        calibrated: whether costs come from a calibration rather than the data sheet.
    """
    changes = [
        {
            "change": each.name,
            "factor": each.factor,
            "same_strategy_step_time_s": each.same.step_time_s,
            "step_time_s": each.best.step_time_s,
            "saves": 1 - each.best.step_time_s / step if step else 0.0,
            "memory_bytes_per_device": each.best.memory_bytes_per_device,
            "stages": each.strategy.num_stages,
            "mesh": [[axis.name, axis.size] for axis in each.strategy.mesh.axes],
            "micro_batch": each.strategy.micro_batch,
        }
        for each in sorted(found, key=lambda one: one.best.step_time_s)
    ]
    costs = "calibration, scaled" if calibrated else "data sheet"
    return {"plan_id": plan.stored_id, "step_time_s": step, "costs": costs, "changes": changes}
