"""``autosbp plan``: search the fastest strategy, here or by a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._files import ModelSizes, check_output, read_calibration, read_model, read_plan, write_json
from autosbp.cli._format import table
from autosbp.cli._options import (
    AsJson,
    Calibration,
    Cluster,
    GlobalBatch,
    ImageSize,
    MicroBatch,
    Model,
    Optimizer,
    Output,
    SeqLen,
    Server,
)
from autosbp.cli._pareto import front_paths, left_of_others, show_front
from autosbp.cli._run import console, note, print_json
from autosbp.errors import InfeasibleError, InputError
from autosbp.findings import certificate, findings
from autosbp.jsonio import check_integer
from autosbp.units import num_bytes, percent, seconds

if TYPE_CHECKING:
    from autosbp.plan import Plan
    from autosbp.search.plan_options import PlanOptions

Searcher = Annotated[str, typer.Option("--searcher", help="auto, exact, exhaustive, random, and others.")]
Seed = Annotated[int, typer.Option("--seed", help="Same input, seed and calibration give the same plan.")]
TimeLimit = Annotated[
    float,
    typer.Option(
        "--time-limit", metavar="S", help="Seconds after which the best so far is the answer, once what has begun ends."
    ),
]
MemoryLimit = Annotated[
    int | None, typer.Option("--memory-limit-bytes", help="Per device; by default the device's memory.")
]

GapTolerance = Annotated[
    float,
    typer.Option(
        "--gap-tolerance",
        help="Relative gap that may be left open; above the usual, search ends when a plan is that near to the least work.",
    ),
]
Pin = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="NAME=LAYOUT",
        help="A layout that is given, not searched: head.weight=S0, 'tables.*=S0 -> B', linear_1=P. May be repeated.",
    ),
]
Baselines = Annotated[
    str | None,
    typer.Option(
        "--baselines",
        metavar="NAME,...",
        help="What to compare with: data_parallel, zero1, zero2, zero3, fsdp2, megatron, megatron_sp, megatron_lm, "
        "one_weird_trick, summa_2d, alpa_like, autoddl_tied, or none.",
    ),
]
Stages = Annotated[
    int | None, typer.Option("--stages", help="Of a pipeline; 1 forbids pipelines. By default as many as are fastest.")
]
Schedule = Annotated[
    list[str] | None,
    typer.Option(
        "--schedule",
        help="gpipe, 1f1b, interleaved_1f1b, zero_bubble; by default any of these. Also message_driven, which no trial runs "
        "yet. May be repeated.",
    ),
]
Storage = Annotated[
    str | None,
    typer.Option("--storage", help="Of parameters: as_used, step (ZeRO-2) or use (ZeRO-3). By default the fastest."),
]
Recompute = Annotated[
    int | None,
    typer.Option(
        "--recompute",
        metavar="K",
        help="Run every K repeated blocks forward again for backward; 0 forbids it. By default as many as memory asks for.",
    ),
]
Offload = Annotated[
    bool,
    typer.Option("--offload", help="Optimizer state may be on the hosts, where the cluster's file tells of them."),
]
BucketBytes = Annotated[
    int | None,
    typer.Option(
        "--bucket-bytes",
        metavar="BYTES",
        help="The most that gradients are reduced in together; by default 25 MiB, or less where that does not fit.",
    ),
]

Deterministic = Annotated[
    bool,
    typer.Option("--deterministic", help="Only what gives the same bits in every run; trials of the plan enforce it."),
]

DataParallel = Annotated[
    int | None,
    typer.Option("--data-parallel", metavar="N", help="Devices of a stage that split the batch; 1 forbids it."),
]
TensorParallel = Annotated[
    int | None,
    typer.Option("--tensor-parallel", metavar="N", help="Devices of a stage that split parameters; 1 forbids it."),
]
Stage = Annotated[
    list[str] | None,
    typer.Option(
        "--stage",
        metavar="NAME=K",
        help="The stage, from 0, of an op, of the ops that read a parameter, or of a pattern. May be repeated.",
    ),
]
Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="PLAN",
        help="An earlier plan, of another batch or links: costed anew, search begins with it. With --server, one that the "
        "service has, or its id.",
    ),
]
Pareto = Annotated[
    int | None,
    typer.Option(
        "--pareto", metavar="N", help="Up to N plans, 2 to 64, from the fastest to the one that takes least memory."
    ),
]


def plan(
    model: Model,
    cluster: Cluster,
    calibration: Calibration = None,
    global_batch: GlobalBatch = None,
    micro_batch: MicroBatch = None,
    searcher: Searcher = "auto",
    seed: Seed = 0,
    time_limit: TimeLimit = 20.0,
    optimizer: Optimizer = "adamw",
    memory_limit_bytes: MemoryLimit = None,
    gap_tolerance: GapTolerance = 2e-3,
    pin: Pin = None,
    baselines: Baselines = None,
    stages: Stages = None,
    schedule: Schedule = None,
    storage: Storage = None,
    recompute: Recompute = None,
    offload: Offload = False,
    bucket_bytes: BucketBytes = None,
    deterministic: Deterministic = False,
    data_parallel: DataParallel = None,
    tensor_parallel: TensorParallel = None,
    stage: Stage = None,
    start: Start = None,
    pareto: Pareto = None,
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    output: Output = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest way to train a model on a cluster, beside what users would otherwise choose.

    With --pareto, also plans that take less memory and more time; with -o plan.json they go to plan.2.json and so on.
    """
    from autosbp.schedules import RUNNABLE
    from autosbp.search.pareto import MAX_POINTS
    from autosbp.search.plan_options import DEFAULT_BASELINES, PlanOptions

    check_output(output)
    if pareto is not None:
        check_integer("pareto", pareto, 2, MAX_POINTS)
    options = PlanOptions(
        *(global_batch, micro_batch, searcher, seed, time_limit, optimizer, memory_limit_bytes, gap_tolerance),
        pins=_pairs(pin or [], "--pin", "NAME=LAYOUT", "pins"),
        baselines=DEFAULT_BASELINES if baselines is None else _names(baselines),
        stages=stages,
        storage=storage,
        recompute=recompute,
        offload=offload,
        bucket_bytes=bucket_bytes,
        deterministic=deterministic,
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        stage_of=_stages(stage or []),
        schedules=tuple(schedule) if schedule else RUNNABLE,
    )
    sizes = ModelSizes(seq_len, image_size)
    if start is not None:
        options.require_start()
    if server is None:
        plans = _plans_here(model, cluster, calibration, options, sizes, pareto, start)
    else:
        plans = _plans_there(model, cluster, calibration, options, sizes, pareto, start, server)
    document = plans[0].summary()
    if output is not None:
        for path, found in zip(front_paths(output, len(plans)), plans, strict=True):
            write_json(path, found.to_dict())
            note(f"wrote {path}")
        for path in left_of_others(output, len(plans)) if pareto is not None else ():
            note(f"{path} is not of this front, but of an earlier one")
    if as_json:
        warn(document)
        print_json(document if pareto is None else {**document, "pareto": [found.summary() for found in plans]})
    else:
        show(document)
        if pareto is not None:
            show_front(plans)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if "none" in names and len(names) > 1:
        raise InputError("baselines", text, "none stands alone")
    return () if names == ("none",) else names


def _pairs(texts: list[str], option: str, form: str, member: str) -> dict[str, str]:
    """Of one name the same value twice is fine; two values are a contradiction, of which none is dropped in silence."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(option, text, f"{form} is expected")
        if pairs.setdefault(name, value) != value:
            raise InfeasibleError(f"{member}.{name}", value, None, f"{name} is given {pairs[name]}, too")
    return pairs


def _stages(texts: list[str]) -> dict[str, int]:
    pairs = _pairs(texts, "--stage", "NAME=K", "stage_of")
    for name, stage in pairs.items():
        if not (stage.isascii() and stage.isdigit() and len(stage) < 10):
            raise InputError("--stage", f"{name}={stage}", "NAME=K with a stage from 0 is expected")
    return {name: int(stage) for name, stage in pairs.items()}


def _plans_here(
    model: str,
    cluster: str,
    calibration: str | None,
    options: PlanOptions,
    sizes: ModelSizes,
    num_points: int | None,
    start: str | None,
) -> Sequence[Plan]:
    """The fastest plan; with ``num_points``, the front from it on."""
    from autosbp import api

    best = float("inf")

    def progress(stage: str, best_s: float) -> bool:
        nonlocal best
        if best_s < best * (1 - 1e-3):
            note(f"{stage}: {seconds(best_s)} a step")
            best = best_s
        return True

    earlier = None if start is None else read_plan(start).strategy
    there = api.load_cluster(cluster)
    measured = read_calibration(calibration)
    graph = read_model(model, sizes)
    note(f"searching strategies of {graph.name} on {there.name}: {there.num_devices} devices")
    if num_points is None:
        return [api.make_plan(graph, there, measured, options, progress, earlier)]
    return api.pareto_front(graph, there, measured, options, num_points, progress, earlier)


def _plans_there(
    model: str,
    cluster: str,
    calibration: str | None,
    options: PlanOptions,
    sizes: ModelSizes,
    num_points: int | None,
    start: str | None,
    server: str,
) -> Sequence[Plan]:
    from autosbp.cli._server import connected, id_of, post_calibration, post_cluster, post_model, wait
    from autosbp.plan import Plan

    start_id = None if start is None else id_of(start)
    with connected(server) as client:
        cluster_id = post_cluster(client, cluster)
        calibration_id = post_calibration(client, calibration)
        model_id = post_model(client, model, sizes)
        asked = (model_id, cluster_id, calibration_id, options.to_dict())
        ways: dict[str, Any] = {"num_points": num_points, "start_id": start_id}
        found_by = wait(client, lambda key: client.search(*asked, **ways, idempotency_key=key))
        search = client.get_search(found_by["search_id"])
        found = search["front"] or [str(search["strategy_id"])]
        return [Plan.from_dict(client.get_strategy(each)) for each in found]


def warn(document: Mapping[str, Any]) -> None:
    """The plan's warnings, on standard error."""
    for sentence in document.get("warnings", ()):
        note(f"warning: {sentence}")


def show(document: Mapping[str, Any]) -> None:
    """The winner beside its baselines, its certificate, and where to look next."""
    warn(document)
    out = console()
    strategy = document["strategy"]
    out.print(
        f"{document['plan_id']}: {document['model']} on {document['cluster']['name']}, global batch "
        f"{strategy['global_batch']} in microbatches of {strategy['micro_batch']}",
        style="bold",
    )
    if "earlier_plan_id" in document:
        out.print(f"written by an earlier release as {document['earlier_plan_id']}", style="dim")
    columns = ("", "step time", "compute", "exposed comm", "hidden comm", "memory", "traffic", "feasible")
    out.print(table("", columns, _rows(document), 1))
    out.print(f"search: {certificate(document)}; {document['evaluations']} evaluations by {document['searcher']}")
    for sentence in findings(document):
        out.print(f"- {sentence}")
    out.print("next: autosbp explain PLAN, autosbp trial PLAN, autosbp export PLAN --to TOOL", style="dim")


def _rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The winner's row has its breakdown; a baseline's has what the plan keeps of it."""
    memory = document["memory_bytes_per_device"]
    rows: list[tuple[str, ...]] = [
        (
            "this plan",
            *_times(document),
            f"{num_bytes(memory)} ({percent(memory, document['memory_limit_bytes'])})",
            num_bytes(document["comm_bytes_per_device"]),
            "yes",
        )
    ]
    for name, entry in document["baselines"].items():
        rows.append(
            (
                name,
                *_times(entry),
                num_bytes(entry["memory_bytes_per_device"]),
                num_bytes(entry["comm_bytes_per_device"]),
                {True: "yes", False: "no", None: "not known"}[entry["feasible"]],
            )
        )
    return rows


def _times(costs: Mapping[str, Any]) -> tuple[str, ...]:
    parts = costs.get("breakdown") or {}
    shown = (parts.get(name) for name in ("compute_s", "exposed_comm_s", "hidden_comm_s"))
    return seconds(costs["step_time_s"]), *map(seconds, shown)
