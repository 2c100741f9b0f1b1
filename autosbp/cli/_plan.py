"""``autosbp plan``: search the fastest strategy, locally or with a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autosbp.cli._exit_codes import console, note, print_json
from autosbp.cli._files import ModelSizes, check_output, read_calibration, read_model, read_plan, write_json
from autosbp.cli._launchers import Launcher
from autosbp.cli._option_checks import refuse_unused
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
    Precision,
    SeqLen,
    Server,
)
from autosbp.cli._pairs import parse_pairs, parse_stages
from autosbp.cli._pareto import front_paths, show_front, stale_front_files
from autosbp.cli._plan_options import (
    Baselines,
    BucketBytes,
    Builder,
    Chunk,
    DataParallel,
    Deterministic,
    For,
    GapTolerance,
    MemoryLimit,
    Offload,
    Pareto,
    Pin,
    Recompute,
    Schedule,
    Searcher,
    Seed,
    Stage,
    Stages,
    Start,
    Storage,
    TensorParallel,
    TimeLimit,
    Verify,
    baseline_names,
)
from autosbp.cli._progress import SearchProgress, WallTime
from autosbp.cli._text_tables import table
from autosbp.cli._verification import verify_plan
from autosbp.errors import InputError
from autosbp.plan.synchronizers import SyncStrategy
from autosbp.report.findings import certificate, findings, training_terms
from autosbp.utils.formatting import count, num_bytes, percent, seconds
from autosbp.utils.json_io import check_integer

if TYPE_CHECKING:
    from autosbp.plan.plan import Plan
    from autosbp.search.plan_options import PlanOptions


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
    precision: Precision = "auto",
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
    builder: Builder = None,
    chunk: Chunk = None,
    pareto: Pareto = None,
    trainer: For = None,
    verify: Verify = False,
    launcher: Launcher = "local",
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    output: Output = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest way to train a model on a cluster, and compare it with common baselines.

    With --pareto, also find slower plans that need less memory; with -o plan.json they go to plan.2.json and so on.
    """
    from autosbp.plan.schedules import RUNNABLE
    from autosbp.search.pareto import MAX_POINTS
    from autosbp.search.plan_options import DEFAULT_BASELINES, PlanOptions
    from autosbp.search.problem.cost_weights import UNSHARDED

    check_output(output)
    if pareto is not None:
        check_integer("pareto", pareto, 2, MAX_POINTS)
    options = PlanOptions(
        *(global_batch, micro_batch, searcher, seed, time_limit, optimizer, memory_limit_bytes, gap_tolerance),
        pins=parse_pairs(pin or [], "--pin", "NAME=LAYOUT", "pins"),
        baselines=DEFAULT_BASELINES if baselines is None else baseline_names(baselines),
        stages=stages,
        # Builders synchronize replicas: parameters that are stored split have none.
        storage=UNSHARDED if builder is not None and storage is None else storage,
        recompute=recompute,
        offload=offload,
        bucket_bytes=bucket_bytes,
        deterministic=deterministic,
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        stage_of=parse_stages(stage or []),
        schedules=tuple(schedule) if schedule else RUNNABLE,
        precision=precision,
    )
    sizes = ModelSizes(seq_len, image_size)
    if start is not None:
        options.check_warm_start()
    if chunk is not None and builder is None:
        raise InputError("chunk", chunk, "requires --builder")
    if trainer is not None and (pareto, start, builder, server) != (None, None, None, None):
        raise InputError("for", trainer, "not allowed with --pareto, --start, --builder or --server")
    if verify and server is not None:
        raise InputError("verify", True, "measures on this machine; omit this or --server")
    if not verify:
        refuse_unused(plan, "requires --verify", launcher=launcher)
    times = WallTime()
    if server is None:
        plans = _plan_locally(
            model, cluster, calibration, options, sizes, pareto, start, trainer, builder, chunk, times
        )
    elif builder is not None:
        raise InputError("builder", builder, "a service plans without builders; omit this or --server")
    else:
        plans = _plan_remotely(model, cluster, calibration, options, sizes, pareto, start, server, times)
    if (explanation := times.explanation(time_limit * (pareto or 1))) is not None:
        note(explanation)
    document = plans[0].summary()
    if output is not None:
        for path, found in zip(front_paths(output, len(plans)), plans, strict=True):
            write_json(path, found.to_dict())
            note(f"wrote {path}")
        for path in stale_front_files(output, len(plans)) if pareto is not None else ():
            note(f"{path} belongs to an earlier front")
    verified = verify_plan(plans[0], read_model(model, sizes), model, launcher) if verify else None
    if as_json:
        warn(document)
        front = {} if pareto is None else {"pareto": [found.summary() for found in plans]}
        print_json({**document, **front, **({} if verified is None else {"verified": verified.to_dict()})})
    else:
        show(document)
        if pareto is not None:
            show_front(plans)
        if verified is not None:
            verified.show()


def _plan_locally(
    model: str,
    cluster: str,
    calibration: str | None,
    options: PlanOptions,
    sizes: ModelSizes,
    num_points: int | None,
    start: str | None,
    trainer: str | None,
    builder: str | None,
    chunk: int | None,
    times: WallTime,
) -> Sequence[Plan]:
    """Search locally: the fastest plan, that of a trainer, or the Pareto front of ``num_points`` that starts with it."""
    from autosbp import api
    from autosbp.search.sync_search import check_builder, with_builder

    check_builder(builder, chunk)

    times.end("loading")
    shown, has_problem = SearchProgress(), False

    def progress(stage: str, best_s: float) -> bool:
        nonlocal has_problem
        times.end(stage if has_problem else "building the problem")
        has_problem = True
        return shown.report(stage, best_s)

    earlier = None if start is None else read_plan(start).strategy
    there = api.load_cluster(cluster)
    measured = read_calibration(calibration)
    graph = read_model(model, sizes)
    times.end("capturing the model")
    note(f"searching strategies of {graph.name} on {there.name}: {there.num_devices} devices")
    if trainer is not None:
        return [api.plan_for(trainer, graph, there, measured, options, progress)]
    if num_points is None:
        plans = [api.make_plan(graph, there, measured, options, progress, earlier)]
    else:
        plans = list(api.pareto_front(graph, there, measured, options, num_points, progress, earlier))
    if builder is not None:
        plans = [with_builder(plan, graph, measured, builder, chunk) for plan in plans]
    times.end("finishing")
    return plans


def _plan_remotely(
    model: str,
    cluster: str,
    calibration: str | None,
    options: PlanOptions,
    sizes: ModelSizes,
    num_points: int | None,
    start: str | None,
    server: str,
    times: WallTime,
) -> Sequence[Plan]:
    """Search with a service: the fastest plan, or with ``num_points`` the Pareto front that starts with it."""
    from autosbp.cli._remote import id_of, open_client, post_calibration, post_cluster, post_model, wait
    from autosbp.plan.plan import Plan

    start_id = None if start is None else id_of(start)
    with open_client(server) as client:
        cluster_id = post_cluster(client, cluster)
        calibration_id = post_calibration(client, calibration)
        model_id = post_model(client, model, sizes)
        asked = (model_id, cluster_id, calibration_id, options.to_dict())
        ways: dict[str, Any] = {"num_points": num_points, "start_id": start_id}
        times.end("storing and capturing the model")
        found_by = wait(client, lambda key: client.search(*asked, **ways, idempotency_key=key), times)
        search = client.get_search(found_by["search_id"])
        found = search["front"] or [str(search["strategy_id"])]
        plans = [Plan.from_dict(client.get_strategy(each)) for each in found]
    times.end("fetching the plan")
    return plans


def warn(document: Mapping[str, Any]) -> None:
    """Print the plan's warnings on standard error."""
    for sentence in document.get("warnings", ()):
        note(f"warning: {sentence}")


def show(document: Mapping[str, Any]) -> None:
    """Print the plan with its baselines, its optimality certificate and findings."""
    warn(document)
    out = console()
    strategy = document["strategy"]
    if "strategy_summary" in document:
        out.print(document["strategy_summary"], style="bold")
    out.print(
        f"{document['plan_id']}: {document['model']} on {document['cluster']['name']}, global batch "
        f"{strategy['global_batch']} in microbatches of {strategy['micro_batch']}"
    )
    if "earlier_plan_id" in document:
        out.print(f"an earlier release wrote this as {document['earlier_plan_id']}", style="dim")
    out.print(f"- {training_terms(document)}")
    columns = ("", "step time", _rate_name(document), "compute", "exposed", "hidden", "memory", "traffic", "feasible")
    out.print(table("", columns, _rows(document), 1))
    out.print(f"search: {certificate(document)}; {document['evaluations']} evaluations by {document['searcher']}")
    for sentence in findings(document):
        out.print(f"- {sentence}")
    if "sync" in strategy:
        out.print(f"synchronization, {SyncStrategy.from_dict(strategy['sync'])}", highlight=False)
    out.print("next: autosbp explain PLAN, autosbp trial PLAN, autosbp export PLAN --to TOOL", style="dim")


def _rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the plan and its baselines, whose stored breakdown may be partial."""
    memory = document["memory_bytes_per_device"]
    rows: list[tuple[str, ...]] = [
        (
            "this plan",
            *_times(document, document),
            f"{num_bytes(memory)} ({percent(memory, document['memory_limit_bytes'])})",
            num_bytes(document["comm_bytes_per_device"]),
            "yes",
        )
    ]
    for name, entry in document["baselines"].items():
        rows.append(
            (
                name,
                *_times(entry, document),
                num_bytes(entry["memory_bytes_per_device"]),
                num_bytes(entry["comm_bytes_per_device"]),
                {True: "yes", False: "no", None: "unknown"}[entry["feasible"]],
            )
        )
    return rows


def _rate_name(document: Mapping[str, Any]) -> str:
    return "tokens/s" if document.get("tokens_per_s") else "samples/s"


def _times(costs: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Step time, throughput and parts of the step, of the plan or of one of its baselines."""
    parts, step_s = costs.get("breakdown") or {}, costs["step_time_s"]
    samples = plan["strategy"]["global_batch"] * (plan.get("sequence_length") or 1)
    rate = "-" if step_s is None else count(samples / step_s).strip()
    shown = (parts.get(name) for name in ("compute_s", "exposed_comm_s", "hidden_comm_s"))
    return seconds(step_s), rate, *map(seconds, shown)
