"""``autosbp explain --why``: what other layouts of an op would cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autosbp.cli._format import table
from autosbp.cli._layers import family
from autosbp.cli._releases import note_other_release
from autosbp.cli._run import console, print_json
from autosbp.units import num_bytes, seconds

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan import Plan


FAMILIES = 4
"""Kinds of ops and parameters that a row names; ``--json`` has all."""


def explain_why(
    plan: Plan, graph: LogicalGraph, name: str, calibration: Calibration | None, *, most: int, as_json: bool
) -> None:
    """Tables of each op's alternatives, or the object of ``why_document``."""
    from autosbp.answers import why_document
    from autosbp.api import predict_costs, why

    found = why(graph, plan, name, calibration, most=most)
    step = predict_costs(graph, plan.strategy, plan.cluster, calibration).step_time_s
    note_other_release(plan, step)
    show_why(why_document(plan, found, step), as_json)


def show_why(document: Mapping[str, Any], as_json: bool) -> None:
    """Print what ``why_document`` made, here or in a service."""
    if as_json:
        print_json(document)
    else:
        _show(document)


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
