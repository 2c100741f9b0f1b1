"""``autosbp export``: write a plan as the configuration of another tool, or as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from autosbp.cli._exit_codes import note, print_json
from autosbp.cli._files import ModelSizes, find_plan_graph, graph_source, read_calibration, read_plan, write_text
from autosbp.cli._option_checks import refuse_unused
from autosbp.cli._options import (
    AsJson,
    Baseline,
    Calibration,
    GraphFile,
    ImageSize,
    ModelOption,
    PlanOrId,
    SeqLen,
    Server,
)
from autosbp.errors import InputError

if TYPE_CHECKING:
    from autosbp.client import Target as Tool
    from autosbp.costmodel.calibration import Calibration as CalibrationData
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan.plan import Plan

Target = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="TOOL",
        help="torchtitan, megatron, deepspeed, accelerate, dtensor or perfetto.",
        show_default=False,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="PATH",
        help="Output file, or an existing folder for targets with several files.",
        show_default=False,
    ),
]

Exact = Annotated[
    bool,
    typer.Option("--exact", help="Fail if the tool cannot express the plan, instead of exporting the nearest plan."),
]


def export(
    plan: PlanOrId,
    to: Target,
    output: Folder = None,
    graph: GraphFile = None,
    model: ModelOption = None,
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    calibration: Calibration = None,
    baseline: Baseline = None,
    exact: Exact = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Write a plan as the configuration of another tool, or its predicted step as a trace.

    If the tool cannot express the plan, the fastest plan that it can express is exported instead, and the loss in step
    time is printed. With --exact or --server, this is an error that names the first difference. All targets but dtensor
    need the graph. With --server, PLAN may be the id of a strategy whose graph and calibration the service stores.
    """
    from autosbp.export import EXPORTERS, export_plan

    if to not in EXPORTERS:
        raise InputError("to", to, f"expected one of {', '.join(EXPORTERS)}")
    if to == "dtensor":
        refuse_unused(export, "not used with --to dtensor, which exports no costs; omit it", calibration=calibration)
    sizes = ModelSizes(seq_len, image_size)
    stated: dict[str, object] = {}
    if server is None:
        found = read_plan(plan, baseline)
        logical = find_plan_graph(found, graph, model, sizes)
        measured = read_calibration(calibration)
        if exact:
            plan_id, files = found.plan_id, export_plan(to, found, logical, measured)
        else:
            plan_id, files, stated = _export_nearest(to, found, logical, measured)
    elif calibration is not None:
        raise InputError("calibration", calibration, "a service uses the strategy's own: leave out --server")
    else:
        plan_id, files = _export_remotely(server, plan, graph_source(graph, model, sizes), sizes, to, baseline)
    if output is not None:
        _write(files, output)
    if as_json:
        print_json({"plan_id": plan_id, "to": to, "files": files, **stated})
    elif output is None:
        for text in files.values():
            typer.echo(text, nl=False)


def _export_nearest(
    to: str, plan: Plan, graph: LogicalGraph | None, calibration: CalibrationData | None
) -> tuple[str, dict[str, str], dict[str, object]]:
    """Id and files of the nearest plan, and its differences; prints the loss to standard error."""
    from autosbp.export.nearest import export_nearest

    found = export_nearest(to, plan, graph, calibration)
    if not found.differences:
        return plan.plan_id, dict(found.files), {}
    note(f"{to} cannot express {plan.plan_id}; exported the nearest plan: {found.plan.document['strategy_summary']}")
    note(found.summary)
    stated = {"nearest_to": plan.plan_id, "loss": found.loss, "differences": list(found.differences)}
    return found.plan.plan_id, dict(found.files), stated


def _export_remotely(
    server: str, plan: str, model: str | None, sizes: ModelSizes, to: str, baseline: str | None
) -> tuple[str, dict[str, str]]:
    """Export with a service; returns the strategy's id and the files by name."""
    from autosbp.cli._remote import find_or_search_strategy, open_client

    with open_client(server) as client:
        strategy_id, _ = find_or_search_strategy(client, plan, model, sizes)
        return strategy_id, client.export(strategy_id, cast("Tool", to), baseline=baseline)


def _write(files: dict[str, str], output: Path) -> None:
    """Write the files into an existing folder, or a single file to the given path."""
    if not output.is_dir() and len(files) > 1:
        raise InputError("output", str(output), f"expected an existing folder for {', '.join(files)}")
    for name, text in files.items():
        path = output / name if output.is_dir() else output
        write_text(path, text)
        note(f"wrote {path}")
