"""``autosbp explain``: what a plan does and why it takes the time that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from autosbp.cli._format import table
from autosbp.cli._layers import axis_titles, groups, words
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
from autosbp.cli._run import console, print_json
from autosbp.cli._show_calibration import Report, show_calibration
from autosbp.cli._unused import refuse_unused
from autosbp.cli._what_if import explain_what_if, show_what_if
from autosbp.cli._why import explain_why, show_why
from autosbp.errors import InputError
from autosbp.findings import certificate, findings, of_links, purposes
from autosbp.traffic import issues, link_seconds
from autosbp.units import num_bytes, percent, seconds

if TYPE_CHECKING:
    from autosbp.costmodel.calibration import Calibration as CostsFrom
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan import Plan

Program = Annotated[bool, typer.Option("--program", help="Print the program of one rank; needs the graph.")]
Rank = Annotated[int, typer.Option("--rank", help="Whose program.")]
Why = Annotated[
    str | None,
    typer.Option(
        "--why", metavar="OP", help="What other layouts of an op, a parameter or a pattern would cost; needs the graph."
    ),
]
WhatIf = Annotated[
    bool,
    typer.Option("--what-if", help="What faster links, a faster device or more memory would buy; needs the graph."),
]
Factor = Annotated[float, typer.Option("--factor", metavar="X", help="How many times better --what-if makes each.")]
Most = Annotated[int, typer.Option("--most", metavar="N", help="Layouts that --why shows of an op.")]


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked of a plan; at most one of ``program``, ``why`` and ``what_if``."""

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
            raise InputError(asked[1], self.why or True, f"one of --{' and --'.join(asked)} is expected, not several")


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
    """Explain a plan: what splits what, where the time and memory go, what binds. Or a calibration: its fits.

    With the graph, also every collective of a step; with --program, what one rank runs; with --why OP, what other layouts
    of an op would cost with all else chosen anew; with --what-if, what better hardware would buy. With --report, a page with
    a calibration's points against its fits; one that ended early has left FILE.partial, which is explained as far as it goes.
    With --server, of a strategy or calibration that the service has: its graph and its calibration come from there, and it
    works out the answers to --why and --what-if.
    """
    check_output(report)
    measured = _measured(plan, server)
    if measured is not None:
        refuse_unused(
            *(explain, "of a calibration, --report alone is expected"), graph=graph, model=model, seq_len=seq_len,
            image_size=image_size, program=program, rank=rank, why=why, most=most, what_if=what_if, factor=factor,
            calibration=calibration,
        )  # fmt: skip
        show_calibration(measured, report, as_json)
        return
    if report is not None:
        raise InputError("report", str(report), "a report is made of a calibration, not of a plan")
    question, sizes = _Question(program, rank, why, most, what_if, factor), ModelSizes(seq_len, image_size)
    source = graph_source(graph, model, sizes)
    _refuse_unused(question)
    if server is not None:
        if calibration is not None:
            raise InputError("calibration", calibration, "a service uses the strategy's own: leave out --server")
        _explain_there(server, plan, source, sizes, question, as_json)
        return
    if program:
        refuse_unused(explain, "a program has no costs: leave it out", calibration=calibration)
    elif source is None:
        refuse_unused(explain, "--graph or --model is expected with it", calibration=calibration)
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
    """What only other questions need."""
    if not question.program:
        refuse_unused(explain, "--program is expected with it", rank=question.rank)
    if question.why is None:
        refuse_unused(explain, "--why OP is expected with it", most=question.most)
    if not question.what_if:
        refuse_unused(explain, "--what-if is expected with it", factor=question.factor)


def _measured(source: str, server: str | None) -> CostsFrom | None:
    """The calibration that a file is, that a folder has the beginning of, or that a service has under an id; None for a
    plan."""
    if server is not None:
        from autosbp.cli._server import connected, is_id
        from autosbp.costmodel.calibration import Calibration

        if is_id(source):
            if not source.startswith("cal-"):
                return None
            with connected(server) as client:
                return Calibration.from_dict(client.get_calibration(source))
    if Path(source).is_dir():
        from calibration import read_partial

        return read_partial(Path(source))
    return read_calibration(source) if is_calibration(source) else None


def _explain_there(
    server: str, plan: str, model: str | None, sizes: ModelSizes, question: _Question, as_json: bool
) -> None:
    """Of a strategy that a service has."""
    from autosbp.cli._server import answered, connected, fetched, stored_strategy

    with connected(server) as client:
        strategy_id, document = stored_strategy(client, plan, model, sizes)
        if question.why is not None:
            op, most = question.why, question.most
            found = answered(client, lambda key: client.why(strategy_id, op, most=most, idempotency_key=key))
            show_why(found, as_json)
        elif question.what_if:
            factor = question.factor
            found = answered(client, lambda key: client.what_if(strategy_id, factor=factor, idempotency_key=key))
            show_what_if(found, question.factor, as_json)
        else:
            stored, logical, costs = fetched(client, document)
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
    """What one rank runs; of a pipeline, one program for each chunk of its stage."""
    from autosbp.costmodel.stages import Stages
    from autosbp.executor.lowering import lower

    strategy = plan.strategy
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    if strategy.pipeline is None:
        modules = [lower(bound, strategy, rank)]
    else:
        if not 0 <= rank < strategy.num_devices:
            raise InputError("rank", rank, f"0 to {strategy.num_devices - 1} is expected")
        stage, place = divmod(rank, strategy.mesh.size)
        defers = strategy.pipeline.schedule.splits_backward
        chunks = Stages(bound, strategy).of(stage)
        modules = [lower(chunk.graph, strategy, place, defers=defers) for chunk in chunks]
    return "\n".join(str(module.print_readable(print_output=False)) for module in modules)


def explanation(plan: Plan, graph: LogicalGraph | None, calibration: CostsFrom | None = None) -> dict[str, Any]:
    """What ``--json`` prints; of links, where the graph is there, and the calibration that the plan has."""
    document = plan.document
    strategy = document["strategy"]
    stored, signatures = strategy["parameters"], strategy["signatures"]
    if graph is not None:  # a plan that was stored has lost its order
        stored = _in_order(stored, [each.name for each in graph.parameters])
        signatures = _in_order(signatures, [each.name for each in graph.nodes])
    names = ("plan_id", "model", "step_time_s", "breakdown", "comm_bytes_per_device", "memory_bytes_per_device")
    found: dict[str, Any] = {
        **{name: document[name] for name in names},
        **({"earlier_plan_id": document["earlier_plan_id"]} if "earlier_plan_id" in document else {}),
        "memory_breakdown": document.get("memory_breakdown", {}),
        "memory_limit_bytes": document["memory_limit_bytes"],
        "cluster": document["cluster"]["name"],
        "mesh": strategy["mesh"],
        "global_batch": strategy["global_batch"],
        "micro_batch": strategy["micro_batch"],
        **({"pipeline": strategy["pipeline"]} if "pipeline" in strategy else {}),
        **({"recompute": strategy["recompute"]} if "recompute" in strategy else {}),
        **({"offload": True} if strategy.get("offload") else {}),
        **({"bucket_bytes": strategy["bucket_bytes"]} if "bucket_bytes" in strategy else {}),
        "parameters": [_group(group) for group in groups(stored)],
        "ops": [_group(group) for group in groups(signatures)],
        "baselines": document["baselines"],
        "certificate": certificate(document),
        "findings": findings(document),
        "warnings": list(document.get("warnings", ())),
        "provenance": document["provenance"],
    }
    if graph is None:
        return found
    found["collectives"] = issues(plan, graph)
    links = link_seconds(plan, graph, calibration)
    if links is not None:
        found |= {"links": links, "findings": [*found["findings"], *of_links(links, document["step_time_s"])]}
    return found


def _in_order(layouts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    places = {name: at for at, name in enumerate(names)}
    return dict(sorted(layouts.items(), key=lambda pair: places.get(pair[0], len(places))))


def _group(group: Any) -> dict[str, Any]:
    return {"name": group.name, "num_members": group.num_members, "layout": group.layout}


def _times(breakdown: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Parts of a step, exposed communication by purpose below its sum; and what is hidden, which is no part of it."""
    return [
        ("compute", breakdown["compute_s"]),
        ("exposed communication", breakdown["exposed_comm_s"]),
        *((f"  {name}", value) for name, value in purposes(breakdown).items()),
        ("bubble", breakdown["bubble_s"]),
        ("optimizer", breakdown["optimizer_s"]),
        ("beside the step: hidden communication", breakdown.get("hidden_comm_s", 0.0)),
    ]


def _show(plan: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    out = console()
    show(plan)
    if "pipeline" in found:
        pipeline = found["pipeline"]
        title = f"pipeline: {pipeline['num_stages']} stages, {len(pipeline['cuts']) + 1} chunks, {pipeline['schedule']}"
        if "weights_lag" in pipeline:
            title += f", whose gradients of weights wait for {pipeline['weights_lag']} backward passes at the most"
        out.print(f"{title}; chunks begin with {', '.join(pipeline['cuts'])}")
    if "recompute" in found:
        runs = found["recompute"]
        out.print(f"recomputed: {len(runs)} runs of ops, {runs[0][0]} to {runs[0][1]} first")
    if "offload" in found:
        out.print("optimizer state is on the hosts")
    if "bucket_bytes" in found:
        out.print(f"gradients are reduced in messages of up to {num_bytes(found['bucket_bytes'])}")
    step = found["step_time_s"]
    rows = [(name, seconds(value), percent(value, step)) for name, value in _times(found["breakdown"])]
    out.print(table("time of a step", ("", "time", "share"), rows))
    limit = found["memory_limit_bytes"]
    rows = [(name, num_bytes(size), percent(size, limit)) for name, size in found["memory_breakdown"].items()]
    out.print(table("memory of a device", ("", "bytes", "of the limit"), rows))
    axes = axis_titles(found["mesh"]["axes"])
    parameters = [(entry["name"], str(entry["num_members"]), *words(entry["layout"])) for entry in found["parameters"]]
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
        out.print(table("collectives of a step", ("kind", "phase", "axes", "calls", "bytes of a device"), calls, 3))
    if "links" in found:
        rows = [(name, seconds(spent), percent(spent, step)) for name, spent in found["links"].items()]
        title = "communication, exposed and hidden, by the slowest link that it crosses"
        out.print(table(title, ("level", "time", "of the step"), rows))
    sources = ", ".join(f"{name} {value}" for name, value in found["provenance"].items() if value is not None)
    out.print(f"from: {sources}", style="dim")
