"""``autosbp explain``: show what a plan does and where its step time comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._calibration_report import Report, show_calibration
from autosbp.cli._exit_codes import console, print_json
from autosbp.cli._files import (
    ModelSizes,
    check_output,
    find_plan_graph,
    graph_source,
    is_calibration,
    read_calibration,
    read_plan,
    read_plan_graph,
)
from autosbp.cli._layer_table import axis_phrases, axis_titles, group_by_family
from autosbp.cli._option_checks import refuse_unused
from autosbp.cli._options import (
    AsJson,
    Calibration,
    GraphFile,
    ImageSize,
    ModelOption,
    PlanOrId,
    SeqLen,
    Server,
)
from autosbp.cli._plan import show
from autosbp.cli._text_tables import table
from autosbp.cli._what_if import explain_what_if, show_what_if
from autosbp.cli._why import explain_why, show_why
from autosbp.errors import InputError
from autosbp.plan.throughput import THROUGHPUT
from autosbp.report.findings import certificate, findings, link_findings, purposes
from autosbp.report.traffic import collective_traffic, link_seconds
from autosbp.utils.formatting import num_bytes, percent, seconds

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration as CostsFrom
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan.plan import Plan

Program = Annotated[
    bool, typer.Option("--program", help="Print the program of one rank (see --rank); requires --graph or --model.")
]
Rank = Annotated[int, typer.Option("--rank", help="Rank whose program --program prints.")]
Why = Annotated[
    str | None,
    typer.Option(
        "--why",
        metavar="OP",
        help="Cost of other layouts of an op, a parameter or a name pattern; requires --graph or --model.",
    ),
]
WhatIf = Annotated[
    bool,
    typer.Option(
        "--what-if", help="Step time with faster links, a faster device or more memory; requires --graph or --model."
    ),
]
Factor = Annotated[
    float, typer.Option("--factor", metavar="X", help="Improvement factor that --what-if applies to each resource.")
]
Most = Annotated[int, typer.Option("--most", metavar="N", help="Maximum number of layouts that --why shows per op.")]


@dataclass(frozen=True, slots=True)
class _Question:
    """The question about a plan; at most one of ``program``, ``why`` and ``what_if`` is set."""

    program: bool
    rank: int
    why: str | None
    most: int
    what_if: bool
    factor: float

    def __post_init__(self) -> None:
        asked = [
            name for name, given in (("program", self.program), ("why", self.why), ("what-if", self.what_if)) if given
        ]
        if len(asked) > 1:
            raise InputError(asked[1], self.why or True, f"--{' and --'.join(asked)} exclude each other; use one")


def explain(
    plan: PlanOrId,
    graph: GraphFile = None,
    model: ModelOption = None,
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    program: Program = False,
    rank: Rank = 0,
    why: Why = None,
    most: Most = 12,
    what_if: WhatIf = False,
    factor: Factor = 2.0,
    calibration: Calibration = None,
    report: Report = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Explain a plan: how tensors are sharded and where time and memory go. Or show the fits of a calibration.

    Also say what limits the plan. With the graph, list every collective of a step; --program prints what one rank runs;
    --why OP prints the cost of other layouts of an op, with all other layouts re-optimized; --what-if prints what
    better hardware would save. For a calibration, --report writes a page of its points and fits; the FILE.partial of an
    interrupted calibration can also be explained. With --server, PLAN may be the id of a strategy or calibration that
    the service stores: graph and calibration come from the service, which also answers --why and --what-if.
    """
    check_output(report)
    measured = _load_calibration_if_any(plan, server)
    if measured is not None:
        refuse_unused(
            *(explain, "a calibration takes only --report"), graph=graph, model=model, seq_len=seq_len,
            image_size=image_size, program=program, rank=rank, why=why, most=most, what_if=what_if, factor=factor,
            calibration=calibration,
        )  # fmt: skip
        show_calibration(measured, report, as_json)
        return
    if report is not None:
        raise InputError("report", str(report), "--report is for calibrations, not for plans")
    question, sizes = _Question(program, rank, why, most, what_if, factor), ModelSizes(seq_len, image_size)
    source = graph_source(graph, model, sizes)
    _refuse_unused(question)
    if server is not None:
        if calibration is not None:
            raise InputError("calibration", calibration, "a service uses the strategy's own; omit this or --server")
        _explain_remotely(server, plan, source, sizes, question, as_json)
        return
    if program:
        refuse_unused(explain, "--program prints no costs; omit it", calibration=calibration)
    elif source is None:
        refuse_unused(explain, "requires --graph or --model", calibration=calibration)
    found, costs = read_plan(plan), read_calibration(calibration)
    if why is not None:
        logical = read_plan_graph(found, graph, model, sizes, "--why")
        explain_why(found, logical, why, costs, most=most, as_json=as_json)
    elif what_if:
        logical = read_plan_graph(found, graph, model, sizes, "--what-if")
        explain_what_if(found, logical, costs, factor=factor, as_json=as_json)
    elif program:
        _show_program(found, read_plan_graph(found, graph, model, sizes, "--program"), rank, as_json)
    else:
        _show_explanation(found, find_plan_graph(found, graph, model, sizes), costs, as_json)


def _refuse_unused(question: _Question) -> None:
    """Refuse options that belong to another question."""
    if not question.program:
        refuse_unused(explain, "requires --program", rank=question.rank)
    if question.why is None:
        refuse_unused(explain, "requires --why OP", most=question.most)
    if not question.what_if:
        refuse_unused(explain, "requires --what-if", factor=question.factor)


def _load_calibration_if_any(source: str, server: str | None) -> CostsFrom | None:
    """The calibration in a file, in the folder of an interrupted run, or in the service under an id; None for a plan."""
    if server is not None:
        from autosbp.cli._remote import is_id, open_client
        from autosbp.costmodel.calibration import Calibration

        if is_id(source):
            if not source.startswith("cal-"):
                return None
            with open_client(server) as client:
                return Calibration.from_dict(client.get_calibration(source))
    if Path(source).is_dir():
        from autosbp.calibration import read_partial

        return read_partial(Path(source))
    return read_calibration(source) if is_calibration(source) else None


def _explain_remotely(
    server: str, plan: str, model: str | None, sizes: ModelSizes, question: _Question, as_json: bool
) -> None:
    """Explain a strategy that a service stores."""
    from autosbp.cli._remote import fetch_plan, find_or_search_strategy, open_client, wait_for_analysis

    with open_client(server) as client:
        strategy_id, document = find_or_search_strategy(client, plan, model, sizes)
        if question.why is not None:
            op, most = question.why, question.most
            found = wait_for_analysis(client, lambda key: client.why(strategy_id, op, most=most, idempotency_key=key))
            show_why(found, as_json)
        elif question.what_if:
            factor = question.factor
            found = wait_for_analysis(
                client, lambda key: client.what_if(strategy_id, factor=factor, idempotency_key=key)
            )
            show_what_if(found, question.factor, as_json)
        else:
            stored, logical, costs = fetch_plan(client, document)
            if question.program:
                _show_program(stored, logical, question.rank, as_json)
            else:
                _show_explanation(stored, logical, costs, as_json)


def _show_program(plan: Plan, graph: LogicalGraph, rank: int, as_json: bool) -> None:
    text = _program(plan, graph, rank)
    if as_json:
        print_json({"plan_id": plan.plan_id, "rank": rank, "program": text})
    else:
        console().out(text, highlight=False)


def _show_explanation(plan: Plan, graph: LogicalGraph | None, costs: CostsFrom | None, as_json: bool) -> None:
    document = explanation(plan, graph, costs)
    if as_json:
        print_json(document)
    else:
        _show(plan.document, document)


def _program(plan: Plan, graph: LogicalGraph, rank: int) -> str:
    """Program of one rank as text; with a pipeline, one program per chunk of the rank's stage."""
    from autosbp.costmodel.pipeline_program import PipelineProgram
    from autosbp.executor.lowering import lower

    strategy = plan.strategy
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    if strategy.pipeline is None:
        modules = [lower(bound, strategy, rank)]
    else:
        if not 0 <= rank < strategy.num_devices:
            raise InputError("rank", rank, f"expected 0 to {strategy.num_devices - 1}")
        stage, place = divmod(rank, strategy.mesh.size)
        defers = strategy.pipeline.schedule.splits_backward
        chunks = PipelineProgram(bound, strategy).of(stage)
        modules = [lower(chunk.graph, strategy, place, defers=defers) for chunk in chunks]
    return "\n".join(str(module.print_readable(print_output=False)) for module in modules)


def explanation(plan: Plan, graph: LogicalGraph | None, calibration: CostsFrom | None = None) -> dict[str, Any]:
    """Build the document of ``--json``.

    With ``graph`` it includes the collectives; also time per link level, from ``calibration`` if given.
    """
    document = plan.document
    strategy = document["strategy"]
    stored, signatures = strategy["parameters"], strategy["signatures"]
    if graph is not None:  # a plan read from storage has lost the order of its layouts
        stored = _in_order(stored, [each.name for each in graph.parameters])
        signatures = _in_order(signatures, [each.name for each in graph.nodes])
    names = ("plan_id", "model", "step_time_s", "breakdown", "comm_bytes_per_device", "memory_bytes_per_device")
    found: dict[str, Any] = {
        **{name: document[name] for name in names},
        **({"earlier_plan_id": document["earlier_plan_id"]} if "earlier_plan_id" in document else {}),
        "memory_breakdown": document.get("memory_breakdown", {}),
        "memory_limit_bytes": document["memory_limit_bytes"],
        **{name: document[name] for name in (*THROUGHPUT, "precision") if name in document},
        **({"memory_reserve": document["memory_reserve"]} if "memory_reserve" in document else {}),
        "cluster": document["cluster"]["name"],
        "mesh": strategy["mesh"],
        "global_batch": strategy["global_batch"],
        "micro_batch": strategy["micro_batch"],
        **({"pipeline": strategy["pipeline"]} if "pipeline" in strategy else {}),
        **({"recompute": strategy["recompute"]} if "recompute" in strategy else {}),
        **({"offload": True} if strategy.get("offload") else {}),
        **({"bucket_bytes": strategy["bucket_bytes"]} if "bucket_bytes" in strategy else {}),
        "parameters": [_group(group) for group in group_by_family(stored)],
        "ops": [_group(group) for group in group_by_family(signatures)],
        "baselines": document["baselines"],
        "certificate": certificate(document),
        "findings": findings(document),
        "warnings": list(document.get("warnings", ())),
        "provenance": document["provenance"],
    }
    if graph is None:
        return found
    found["collectives"] = collective_traffic(plan, graph)
    links = link_seconds(plan, graph, calibration)
    if links is not None:
        found |= {"links": links, "findings": [*found["findings"], *link_findings(links, document["step_time_s"])]}
    return found


def _in_order(layouts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    places = {name: at for at, name in enumerate(names)}
    return dict(sorted(layouts.items(), key=lambda pair: places.get(pair[0], len(places))))


def _group(group: Any) -> dict[str, Any]:
    return {"name": group.name, "num_members": group.num_members, "layout": group.layout}


def _times(breakdown: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Parts of the step time: exposed communication also by purpose; hidden communication last, outside the sum."""
    return [
        ("compute", breakdown["compute_s"]),
        ("exposed communication", breakdown["exposed_comm_s"]),
        *((f"  {name}", value) for name, value in purposes(breakdown).items()),
        ("bubble", breakdown["bubble_s"]),
        ("optimizer", breakdown["optimizer_s"]),
        ("overlapped with the step: hidden communication", breakdown.get("hidden_comm_s", 0.0)),
    ]


def _show(plan: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    out = console()
    show(plan)
    if "pipeline" in found:
        pipeline = found["pipeline"]
        title = f"pipeline: {pipeline['num_stages']} stages, {len(pipeline['cuts']) + 1} chunks, {pipeline['schedule']}"
        if "weights_lag" in pipeline:
            title += f", weight gradients delayed by at most {pipeline['weights_lag']} backward passes"
        out.print(f"{title}; first ops of chunks: {', '.join(pipeline['cuts'])}")
    if "recompute" in found:
        runs = found["recompute"]
        out.print(f"recomputed: {len(runs)} segments, the first from {runs[0][0]} to {runs[0][1]}")
    if "offload" in found:
        out.print("optimizer state is in host memory")
    if "bucket_bytes" in found:
        out.print(f"gradients are reduced in buckets of up to {num_bytes(found['bucket_bytes'])}")
    step = found["step_time_s"]
    rows = [(name, seconds(value), percent(value, step)) for name, value in _times(found["breakdown"])]
    out.print(table("step time", ("", "time", "share"), rows))
    limit = found["memory_limit_bytes"]
    rows = [(name, num_bytes(size), percent(size, limit)) for name, size in found["memory_breakdown"].items()]
    rows += [
        (f"reserved: {name}", num_bytes(size), "in addition") for name, size in found.get("memory_reserve", {}).items()
    ]
    out.print(table("memory per device", ("", "bytes", "of the limit"), rows))
    axes = axis_titles(found["mesh"]["axes"])
    parameters = [
        (entry["name"], str(entry["num_members"]), *axis_phrases(entry["layout"])) for entry in found["parameters"]
    ]
    out.print(table("stored parameters by mesh axis", ("parameter", "tensors", *axes), parameters, 2 + len(axes)))
    ops = [(entry["name"], str(entry["num_members"]), entry["layout"]) for entry in found["ops"]]
    out.print(table(f"layouts of ops over {', '.join(axes)}", ("op", "ops", "inputs -> outputs"), ops, 3))
    if "collectives" in found:
        calls = [
            (
                entry["kind"],
                entry["phase"],
                ", ".join(entry["axes"]),
                str(entry["num_calls"]),
                num_bytes(entry["bytes_per_device"]),
            )
            for entry in found["collectives"]
        ]
        out.print(table("collectives per step", ("kind", "phase", "axes", "calls", "bytes per device"), calls, 3))
    if "links" in found:
        rows = [(name, seconds(spent), percent(spent, step)) for name, spent in found["links"].items()]
        title = "exposed and hidden communication by slowest link"
        out.print(table(title, ("level", "time", "of the step"), rows))
    sources = ", ".join(f"{name} {value}" for name, value in found["provenance"].items() if value is not None)
    out.print(f"from: {sources}", style="dim")
