"""``autosbp explain --what-if``: step time on better hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autosbp.cli._exit_codes import console, note, print_json
from autosbp.cli._text_tables import table
from autosbp.cli._version_warnings import note_other_release
from autosbp.utils.formatting import percent, seconds

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan.plan import Plan

_WORDS = {"device": "device: compute and memory speed", "memory": "memory per device"}


def explain_what_if(
    plan: Plan, graph: LogicalGraph, calibration: Calibration | None, *, factor: float, as_json: bool
) -> None:
    """Print one row per hardware change or, with ``as_json``, the object of ``what_if_document``."""
    from autosbp.api import predict_costs, what_if
    from autosbp.report.analysis_json import what_if_document

    found = what_if(
        graph, plan, calibration, factor=factor, report=lambda name: note(f"searching with {factor:g} x {name}")
    )
    step = predict_costs(graph, plan.strategy, plan.cluster, calibration).step_time_s
    note_other_release(plan, step)
    show_what_if(what_if_document(plan, found, step, calibrated=calibration is not None), factor, as_json)


def show_what_if(document: Mapping[str, Any], factor: float, as_json: bool) -> None:
    """Print the result of ``what_if_document``, computed locally or by a service."""
    if as_json:
        print_json(document)
    else:
        _show(document, factor)


def _show(document: Mapping[str, Any], factor: float) -> None:
    out, step = console(), document["step_time_s"]
    out.print(f"{document['plan_id']}: {seconds(step)} per step; costs from the {document['costs']}", style="bold")
    rows = [
        (
            f"{factor:g} x {_WORDS.get(entry['change'], entry['change'])}",
            seconds(entry["same_strategy_step_time_s"]),
            seconds(entry["step_time_s"]),
            percent(step - entry["step_time_s"], step),
            str(entry["stages"]),
            " x ".join(str(size) for _, size in entry["mesh"]) or "1",
            str(entry["micro_batch"]),
        )
        for entry in document["changes"]
    ]
    columns = ("what if", "this strategy", "new search", "saves", "stages", "mesh", "microbatch")
    out.print(table("", columns, rows, 1))
