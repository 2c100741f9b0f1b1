"""``autosbp explain --why``: cost of other layouts of an op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autosbp.cli._exit_codes import console, print_json
from autosbp.cli._layer_table import family
from autosbp.cli._text_tables import table
from autosbp.cli._version_warnings import note_other_release
from autosbp.utils.formatting import num_bytes, seconds

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan.plan import Plan


MAX_FAMILIES = 4
"""Maximum families of ops and parameters that a row names; ``--json`` lists all."""


def explain_why(
    plan: Plan, graph: LogicalGraph, name: str, calibration: Calibration | None, *, most: int, as_json: bool
) -> None:
    """Print a table of each op's alternatives or, with ``as_json``, the object of ``why_document``."""
    from autosbp.api import predict_costs, why
    from autosbp.report.analysis_json import why_document

    found = why(graph, plan, name, calibration, most=most)
    step = predict_costs(graph, plan.strategy, plan.cluster, calibration).step_time_s
    note_other_release(plan, step)
    show_why(why_document(plan, found, step), as_json)


def show_why(document: Mapping[str, Any], as_json: bool) -> None:
    """Print the result of ``why_document``, computed locally or by a service."""
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
        columns = ("inputs -> outputs", "step time", "difference", "", "traffic", "memory", "other changes")
        out.print(table("", columns, rows, 1))
        left = op["num_signatures"] - len(op["alternatives"])
        if left:
            out.print(
                f"{left} more layouts, none cheaper before the memory limit; show them with --most N", style="dim"
            )


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
    """Names with ops and parameters of one family merged: ``linear x3``."""
    counts: dict[str, int] = {}
    for name in names:
        counts[family(name)] = counts.get(family(name), 0) + 1
    shown = [f"{name} x{count}" if count > 1 else name for name, count in counts.items()]
    if len(shown) > MAX_FAMILIES:
        left = sum(list(counts.values())[MAX_FAMILIES - 1 :])
        shown = [*shown[: MAX_FAMILIES - 1], f"and {left} more"]
    return ", ".join(shown) or "-"
