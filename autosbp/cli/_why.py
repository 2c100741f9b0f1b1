"""``autosbp explain --why``: what other layouts of an op would cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autosbp.cli._findings import note_other_release
from autosbp.cli._format import num_bytes, seconds, table
from autosbp.cli._layers import family
from autosbp.cli._run import console, print_json

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan import Plan
    from autosbp.search.why import Alternative, OpAlternatives


FAMILIES = 4
"""Kinds of ops and parameters that a row names; ``--json`` has all."""


def explain_why(
    plan: Plan, graph: LogicalGraph, name: str, calibration: Calibration | None, *, most: int, as_json: bool
) -> None:
    """Tables of each op's alternatives, or the object of ``why_document``."""
    from autosbp.api import predict_costs, why

    found = why(graph, plan, name, calibration, most=most)
    step = predict_costs(graph, plan.strategy, plan.cluster, calibration).step_time_s
    note_other_release(plan, step)
    document = why_document(plan, found, step)
    if as_json:
        print_json(document)
    else:
        _show(document)


def why_document(plan: Plan, found: tuple[OpAlternatives, ...], step: float) -> dict[str, Any]:
    """What ``--why --json`` prints; times and bytes are None where no strategy with the signature fits. ``step`` is that of
    the plan's strategy, costed now: an earlier release may have said otherwise."""
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
    return {"plan_id": plan.plan_id, "step_time_s": step, "axes": mesh, "ops": ops}


def _entry(one: Alternative, step_s: float) -> dict[str, Any]:
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


def _show(document: Mapping[str, Any]) -> None:
    out = console()
    for op in document["ops"]:
        reads = f" (reads {', '.join(op['reads'])})" if op["reads"] else ""
        out.print(f"{op['op']}{reads}: layouts over {', '.join(document['axes']) or 'one device'}", style="bold")
        rows = [_row(entry, document["step_time_s"]) for entry in op["alternatives"]]
        columns = ("inputs -> outputs", "step time", "difference", "", "traffic", "memory", "what else changes")
        out.print(table("", columns, rows, 1))
        left = op["num_signatures"] - len(op["alternatives"])
        if left:
            out.print(f"{left} more, which cost no less without the memory limit: --most N", style="dim")


def _row(entry: Mapping[str, Any], step_s: float) -> tuple[str, ...]:
    change = entry["difference_s"]
    return (
        f"{entry['signature']}{'  (the plan)' if entry['chosen'] else ''}",
        seconds(entry["step_time_s"]),
        "does not fit" if change is None else f"+{seconds(change)}" if change >= 0 else seconds(change),
        "" if change is None else f"{100 * change / step_s:+.2f} %",
        num_bytes(entry["comm_bytes_per_device"]),
        num_bytes(entry["memory_bytes_per_device"]),
        entry["reason"] or _families(entry["changes"]),
    )


def _families(names: Mapping[str, Any]) -> str:
    """Ops and parameters of one kind together: ``linear x3``."""
    counts: dict[str, int] = {}
    for name in names:
        counts[family(name)] = counts.get(family(name), 0) + 1
    shown = [f"{name} x{count}" if count > 1 else name for name, count in counts.items()]
    if len(shown) > FAMILIES:
        left = sum(list(counts.values())[FAMILIES - 1 :])
        shown = [*shown[: FAMILIES - 1], f"and {left} more"]
    return ", ".join(shown) or "-"
