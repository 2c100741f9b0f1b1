"""``autosbp tune``: find the fastest strategy by trials on real ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._exit_codes import console, note, print_json
from autosbp.cli._files import ModelSizes, check_output, read_calibration, read_model, write_json, write_text
from autosbp.cli._launchers import LAUNCHERS, LOOPBACK, Interface, launcher_of
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
from autosbp.cli._plan_options import (
    Baselines,
    BucketBytes,
    DataParallel,
    Deterministic,
    MemoryLimit,
    Recompute,
    Stages,
    Storage,
    TensorParallel,
    TimeLimit,
    baseline_names,
)
from autosbp.cli._text_tables import table
from autosbp.cli._trial import Imports
from autosbp.errors import InputError, TrialError
from autosbp.graph_sources import factory_module
from autosbp.utils.formatting import seconds
from autosbp.utils.tempdirs import temporary_folder

if TYPE_CHECKING:
    from autosbp.plan.plan import Plan
    from autosbp.search.plan_options import PlanOptions
    from autosbp.tuning.options import TuneOptions
    from autosbp.tuning.tuner import TuningState

Trials = Annotated[int, typer.Option("--trials", metavar="N", help="Maximum number of trials, including failed ones.")]
Minutes = Annotated[
    float | None,
    typer.Option("--minutes", metavar="M", help="Time limit in minutes, including earlier runs in the same --workdir."),
]
Proposer = Annotated[
    str,
    typer.Option(
        "--proposer",
        help="How strategies are proposed: ranked (a ranking model that learns from trials), random (the guided sampler "
        "alone) or tpe (Optuna; needs the extra tune).",
    ),
]
TuneSeed = Annotated[int, typer.Option("--seed", help="Random seed of samples, parameters and batches.")]
TuneSteps = Annotated[int, typer.Option("--steps", help="Maximum number of timed steps per trial.")]
TuneWarmup = Annotated[int, typer.Option("--warmup", help="Number of untimed warm-up steps per trial.")]
MaxTrialSeconds = Annotated[
    float,
    typer.Option("--trial-seconds", metavar="S", help="Seconds after which a trial starts no further step."),
]
TrialTimeout = Annotated[float, typer.Option("--trial-timeout", metavar="S", help="Seconds after which a trial fails.")]
TuneWorkdir = Annotated[
    Path | None,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Folder for trials and logs; a later run with the same options resumes there.",
        show_default=False,
    ),
]
TuneReport = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.svg", help="Write charts of best so far, hit rate and ranking accuracy."),
]
TuneLauncher = Annotated[
    str,
    typer.Option(
        "--launcher",
        help="local: one rank per device, all on this machine. emulated: network namespaces as nodes, with the link "
        "speeds of the cluster file (root only).",
    ),
]
_SHOWN = 8
"""Number of strategies in the printed table."""


@dataclass(frozen=True, slots=True)
class _TuneRequest:
    """Model, cluster and options of a tuning search, local or in a service."""

    model: str
    cluster: str
    calibration: str | None
    sizes: ModelSizes
    options: PlanOptions
    tuning: TuneOptions


def tune(
    model: Model,
    cluster: Cluster,
    calibration: Calibration = None,
    trials: Trials = 200,
    minutes: Minutes = None,
    proposer: Proposer = "ranked",
    global_batch: GlobalBatch = None,
    micro_batch: MicroBatch = None,
    seed: TuneSeed = 0,
    time_limit: TimeLimit = 20.0,
    optimizer: Optimizer = "adamw",
    precision: Precision = "auto",
    memory_limit_bytes: MemoryLimit = None,
    baselines: Baselines = None,
    stages: Stages = None,
    storage: Storage = None,
    recompute: Recompute = None,
    bucket_bytes: BucketBytes = None,
    deterministic: Deterministic = False,
    data_parallel: DataParallel = None,
    tensor_parallel: TensorParallel = None,
    steps: TuneSteps = 5,
    warmup: TuneWarmup = 1,
    trial_seconds: MaxTrialSeconds = 2.0,
    trial_timeout: TrialTimeout = 60.0,
    launcher: TuneLauncher = "local",
    interface: Interface = LOOPBACK,
    workdir: TuneWorkdir = None,
    imports: Imports = None,
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    report: TuneReport = None,
    output: Output = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest strategy by trials: measure the plan, its baselines, and strategies chosen by a ranking model.

    Ranks keep running between trials. A failed trial counts against --trials and is stored with the end of its log.
    Exits with 4 if every trial failed.
    """
    from autosbp.search.plan_options import DEFAULT_BASELINES, PlanOptions
    from autosbp.tuning.charts import search_charts
    from autosbp.tuning.options import TuneOptions
    from autosbp.tuning.trial_pool import TrialEffort

    for path in (output, report):
        check_output(path)
    options = PlanOptions(
        global_batch, micro_batch, seed=seed, time_limit_s=time_limit, optimizer=optimizer, precision=precision,
        memory_limit_bytes=memory_limit_bytes, stages=stages, storage=storage, recompute=recompute,
        baselines=DEFAULT_BASELINES if baselines is None else baseline_names(baselines),
        bucket_bytes=bucket_bytes, deterministic=deterministic, data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
    )  # fmt: skip
    effort = TrialEffort(steps, warmup, trial_seconds, trial_timeout)
    asked = _TuneRequest(
        model, cluster, calibration, ModelSizes(seq_len, image_size), options,
        TuneOptions(trials, minutes, proposer, seed, effort),
    )  # fmt: skip
    if server is None:
        plan, summary = _tune_locally(asked, launcher, interface, workdir, imports or ())
    else:
        unused = {"launcher": launcher, "interface": interface, "workdir": workdir, "imports": imports}
        refuse_unused(tune, "not used by a service, which starts ranks itself; omit this or --server", **unused)
        plan, summary = _tune_remotely(asked, server)
    if report is not None:
        write_text(report, search_charts(summary))
        note(f"wrote {report}")
    if output is not None:
        write_json(output, plan.to_dict())
        note(f"wrote {output}")
    if as_json:
        print_json({"plan": plan.summary(), **summary})
    else:
        _show(summary)


def _tune_locally(
    asked: _TuneRequest, launcher: str, interface: str, workdir: Path | None, imports: Sequence[str]
) -> tuple[Plan, dict[str, Any]]:
    """Tune on this machine; returns the fastest strategy as a plan, and the summary of the trials."""
    from autosbp import api
    from autosbp.tuning.summary import tuning_summary

    if launcher not in LAUNCHERS:
        limit = f"expected one of {', '.join(LAUNCHERS)}, which can keep ranks running between trials"
        raise InputError("launcher", launcher, limit)
    there, measured = api.load_cluster(asked.cluster), read_calibration(asked.calibration)
    graph, own = read_model(asked.model, asked.sizes), factory_module(asked.model)
    note(f"tuning {graph.name} on {there.name}: {there.num_devices} devices, up to {asked.tuning.trials} trials")
    with _folder(workdir) as folder, launcher_of(launcher, there, interface) as launch:
        result = api.tune(
            graph, there, folder, measured, asked.options, asked.tuning, launch=launch, progress=_note_progress,
            libraries=[*imports, *([own] if own else [])],
        )  # fmt: skip
    if result.best is None:
        raise TrialError(f"all {len(result.trials)} trials failed; the last one: {result.trials[-1].error}")
    return result.plan, tuning_summary(result.trials, result.stopped)


def _tune_remotely(asked: _TuneRequest, server: str) -> tuple[Plan, dict[str, Any]]:
    """Tune in a service; returns the fastest strategy as a plan, and the summary of the trials."""
    from autosbp.cli._remote import open_client, post_calibration, post_cluster, post_model, wait
    from autosbp.plan.plan import Plan

    tuning = asked.tuning.to_dict()
    tuning |= tuning.pop("effort")
    with open_client(server) as client:
        cluster_id = post_cluster(client, asked.cluster)
        calibration_id = post_calibration(client, asked.calibration)
        ids = (post_model(client, asked.model, asked.sizes), cluster_id, calibration_id, asked.options.to_dict())
        found = wait(client, lambda key: client.search(*ids, tuning=tuning, idempotency_key=key))
        return Plan.from_dict(client.get_strategy(found["strategy_id"])), client.get_tuning(found["search_id"])


@contextmanager
def _folder(workdir: Path | None) -> Iterator[Path]:
    if workdir is not None:
        yield workdir
        return
    with temporary_folder("autosbp-tuning-") as folder:
        yield folder


def _note_progress(state: TuningState) -> bool:
    if state.num_trials:
        gain = f", {state.baseline_s / state.best_s:.2f} x the best baseline" if state.best_s < float("inf") else ""
        note(f"trial {state.num_trials} of {state.budget}: best {seconds(state.best_s)} per step{gain}")
    return True


def _show(summary: Mapping[str, Any]) -> None:
    out = console()
    best, baseline = summary["best"], summary["baseline"]
    first: dict[str, Mapping[str, Any]] = {}
    for row in summary["trials"]:
        if row["step_time_s"] is not None and row["origin"] != "confirmed":
            first.setdefault(row["strategy_id"], row)
    ranked = sorted(first.values(), key=lambda row: float(row["step_time_s"]))
    out.print(table("fastest strategies", ("", "measured", "predicted", "choices"), [*map(_row, ranked[:_SHOWN])], 1))
    text = f"best: {seconds(best['step_time_s'])} per step, from {best['origin']}"
    if baseline is not None:
        text += f"; {summary['speedup']:.3f} times the speed of the best baseline, {baseline['origin']}"
    out.print(text, style="bold", soft_wrap=True)
    out.print(f"{summary['num_trials']} trials, {summary['num_failed']} failed; stop reason: {summary['stopped']}")


def _row(row: Mapping[str, Any]) -> Sequence[str]:
    choices = row["choices"]
    shown = "" if choices is None else f"{choices['grid']}; {choices['storage']}; {choices['bucket_bytes'] >> 20} MiB"
    return row["origin"], seconds(row["step_time_s"]), seconds(row["predicted_step_time_s"]), shown
