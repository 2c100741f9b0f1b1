"""``autosbp trial``: run a plan, measure it, and fail where a gate is missed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._files import ModelSizes, graph_source, read_plan, read_plan_graph
from autosbp.cli._format import table
from autosbp.cli._gates import Earlier, Gate, Limits, Nothing, all_passed, check_gates, fraction
from autosbp.cli._labels import Labels, labels
from autosbp.cli._launchers import LOOPBACK, Interface, Launcher, check_launcher, ranks_of
from autosbp.cli._options import AsJson, Baseline, GraphFile, ImageSize, ModelOption, PlanFile, SeqLen, Server
from autosbp.cli._reports import Reports
from autosbp.cli._run import GATE_FAILED, console, note, print_json
from autosbp.cli._unused import refuse_unused
from autosbp.errors import AutosbpError, InputError
from autosbp.scratch import temporary_folder
from autosbp.sources import factory_module
from autosbp.units import num_bytes, seconds

if TYPE_CHECKING:
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan import Plan

Steps = Annotated[int, typer.Option("--steps", help="Timed steps.")]
Warmup = Annotated[int, typer.Option("--warmup", help="Steps before them.")]
Seed = Annotated[int, typer.Option("--seed", help="Of parameters and batches.")]
MaxStepTime = Annotated[
    float | None, typer.Option("--max-step-time", metavar="S", help="Gate: the median step takes no longer.")
]
MaxLossDifference = Annotated[
    float | None,
    typer.Option("--max-loss-difference", metavar="R", help="Gate: relative difference to one device's losses."),
]
MaxRegression = Annotated[
    str | None,
    typer.Option(
        "--max-regression",
        metavar="P%",
        help="Gate: the median step is at most so much slower than that of --baseline-report, or with --server than the median "
        "of the last 5 passed trials with --baseline-label of this strategy, else of a model of this name on this cluster.",
    ),
]
MaxPredictionError = Annotated[
    str | None,
    typer.Option("--max-prediction-error", metavar="P%", help="Gate: the median step is as predicted, within so much."),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="With --server: what the trial is run for; by default the branch, tag or change that CI tells of.",
    ),
]
BaselineLabel = Annotated[
    str | None,
    typer.Option(
        "--baseline-label",
        metavar="NAME",
        help="Label of the trials to compare with; by default the branch that the change is for, else the default branch, "
        "else its own.",
    ),
]
BaselineReport = Annotated[
    Path | None,
    typer.Option("--baseline-report", metavar="FILE", help="What --report wrote earlier: the trial to compare with."),
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write what --json prints to a file, too.")
]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML: a test case for each gate.")
]
Github = Annotated[
    bool, typer.Option("--github", help="In GitHub Actions: add to the job's summary, and annotate what failed.")
]
Wait = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="With --server: wait for the trial's end and judge it, or print its id."),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="S",
        help="Seconds after which the run fails: 600 by default. With --server, the time spent waiting for it counts, "
        "and there is no default.",
    ),
]
Workdir = Annotated[
    Path | None, typer.Option("--workdir", metavar="DIR", help="Keep request, log and result here.", show_default=False)
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="Defines custom ops; ranks import it. A factory's own is known."),
]
_LONGEST_S = 1e6
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the options say, of a trial here or by a service."""

    plan: str
    baseline: str | None
    graph: str | None
    model: str | None
    sizes: ModelSizes
    effort: dict[str, Any]
    timeout_s: float | None
    limits: Limits
    baseline_report: Path | None
    labels: Labels

    @property
    def ways(self) -> dict[str, Any]:
        """What a service is told besides the strategy."""
        return {"baseline": self.baseline, "label": self.labels.own, **self.effort}

    @property
    def source(self) -> str | None:
        """Where the plan's graph comes from."""
        return graph_source(self.graph, self.model, self.sizes)


def trial(
    plan: PlanFile,
    graph: GraphFile = None,
    model: ModelOption = None,
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    launcher: Launcher = "local",
    interface: Interface = LOOPBACK,
    steps: Steps = 20,
    warmup: Warmup = 3,
    seed: Seed = 0,
    baseline: Baseline = None,
    max_step_time: MaxStepTime = None,
    max_regression: MaxRegression = None,
    max_prediction_error: MaxPredictionError = None,
    max_loss_difference: MaxLossDifference = None,
    baseline_report: BaselineReport = None,
    label: Label = None,
    baseline_label: BaselineLabel = None,
    report: Report = None,
    junit: Junit = None,
    github: Github = False,
    timeout: Timeout = None,
    workdir: Workdir = None,
    imports: Imports = None,
    server: Server = None,
    wait: Wait = True,
    as_json: AsJson = False,
) -> int:
    """Train for some steps under a plan and compare with what was predicted.

    Exits with 1 when a gate fails: a limit given here, or collectives other than those that the plan was charged for.
    A plan holds the hash of its graph, not the graph: give --graph or --model. With --server, PLAN may be the id of a
    strategy that the service has. See docs/ci.md for gates in CI.
    """
    begun_s = time.monotonic()
    reports = Reports(report, junit, github)
    reports.check()
    try:
        check_launcher(launcher)
        if timeout is not None and not 0 < timeout <= _LONGEST_S:
            raise InputError("timeout", str(timeout), f"more than 0 and at most {_LONGEST_S:g} seconds is expected")
        if server is not None:
            unused = {"launcher": launcher, "interface": interface, "workdir": workdir, "imports": imports}
            refuse_unused(trial, "a service starts ranks in its own way: leave out --server", **unused)
        else:
            refuse_unused(trial, "a service keeps labels: give --server", label=label, baseline_label=baseline_label)
        if not wait:
            refuse_unused(trial, "--no-wait waits for nothing: leave it out", timeout=timeout)
        limits = Limits(
            max_step_time,
            max_loss_difference,
            fraction(max_regression, "max_regression"),
            fraction(max_prediction_error, "max_prediction_error"),
        )
        effort = {"steps": steps, "warmup": warmup, "seed": seed}
        asked = _Asked(
            *(plan, baseline, graph, model, ModelSizes(seq_len, image_size), effort, timeout, limits, baseline_report),
            labels(label, baseline_label, os.environ),
        )
        if not wait:
            return _start_there(server, asked, reports, as_json)
        if server is not None:
            result, earlier = _run_there(server, asked)
        else:
            result, earlier = _run_here(asked, launcher, interface, workdir, imports or ())
    except AutosbpError as error:
        reports.failed(error, plan, time.monotonic() - begun_s)
        raise
    gates = check_gates(result, limits, earlier)
    if server is not None:
        _keep_verdict(server, result["trial_id"], gates)
    compared = None if isinstance(earlier, Nothing) else earlier.to_dict()
    document = {**result, "gates": {gate.name: gate.to_dict() for gate in gates}, "compared_with": compared}
    reports.judged(document, gates, time.monotonic() - begun_s)
    if as_json:
        print_json(document)
    else:
        _show(result, gates)
    return 0 if all_passed(gates) else GATE_FAILED


def _run_here(
    asked: _Asked, launcher: str, interface: str, workdir: Path | None, imports: Sequence[str]
) -> tuple[dict[str, Any], Earlier | Nothing]:
    if asked.limits.regression is not None and asked.baseline_report is None:
        raise InputError("max_regression", None, "without --server it needs --baseline-report")
    found = read_plan(asked.plan, asked.baseline)
    about = {"model": found.document["model"], "cluster": found.cluster.name}
    earlier = _reported(asked, about)
    graph = read_plan_graph(found, asked.graph, asked.model, asked.sizes, "a trial")
    own = None if asked.model is None else factory_module(asked.model)
    libraries = [*imports, *([own] if own else [])]
    with ranks_of(launcher, found.cluster, interface) as ways:
        own_folder = {} if workdir is None else {"workdir": workdir}
        timeout_s = _TIMEOUT_S if asked.timeout_s is None else asked.timeout_s
        return {
            **_measure(found, graph, {**asked.effort, **ways, **own_folder}, timeout_s, libraries),
            **about,
        }, earlier


def _measure(
    plan: Plan, graph: LogicalGraph, ways: dict[str, Any], timeout_s: float, libraries: Sequence[str]
) -> dict[str, Any]:
    """Run it, in a folder that is gone afterwards where ``ways`` names none."""
    from autosbp import api

    with temporary_folder("autosbp-trial-") as folder:
        ways = {"workdir": folder, **ways}
        return api.run_trial(plan, graph, log=note, timeout_s=timeout_s, libraries=libraries, **ways)


def _run_there(server: str, asked: _Asked) -> tuple[dict[str, Any], Earlier | Nothing]:
    """A trial of a strategy that the service holds: a plan that it made, or that plan's id."""
    from autosbp.cli._earlier import passed_trials
    from autosbp.cli._server import connected, stored_strategy, wait_for_trial

    with connected(server) as client:
        strategy_id, document = stored_strategy(client, asked.plan, asked.source, asked.sizes)
        about = {"model": document["model"], "cluster": document["cluster"]["name"]}
        earlier = _reported(asked, about)
        trial_id = wait_for_trial(
            client,
            lambda key: client.trial(strategy_id, **asked.ways, idempotency_key=key),
            asked.timeout_s,
        )
        found = client.get_trial(trial_id)
        if isinstance(earlier, Nothing) and asked.limits.regression is not None:
            earlier = passed_trials(client, found, document, asked.labels.baseline)
        return {**(found["result"] or {}), **about, "trial_id": trial_id, "label": asked.labels.own}, earlier


def _keep_verdict(server: str, trial_id: str, gates: Sequence[Gate]) -> None:
    """Tell the service what came of the gates; a trial whose outcome it does not know is none to compare with."""
    from autosbp.cli._server import connected

    try:
        with connected(server) as client:
            client.judge(trial_id, [{"name": gate.name, **gate.to_dict()} for gate in gates])
    except AutosbpError as error:
        note(f"warning: the outcome of {trial_id} was not kept ({error}): later trials are not compared with it")


def _reported(asked: _Asked, about: Mapping[str, Any]) -> Earlier | Nothing:
    """The trial of ``--baseline-report``, read before anything runs."""
    from autosbp.cli._earlier import read_report

    return Nothing() if asked.baseline_report is None else read_report(asked.baseline_report, about)


def _start_there(server: str | None, asked: _Asked, reports: Reports, as_json: bool) -> int:
    """Queue a trial, and say which."""
    from autosbp.cli._server import connected, stored_strategy, trial_of

    if server is None:
        raise InputError("wait", False, "--no-wait needs --server")
    if asked.limits.asked or asked.baseline_report is not None or reports.asked:
        raise InputError("wait", False, "gates and reports need the trial's end: leave out --no-wait")
    with connected(server) as client:
        strategy_id, _ = stored_strategy(client, asked.plan, asked.source, asked.sizes)
        job = client.trial(strategy_id, **asked.ways)
    trial_id = trial_of(job)
    if as_json:
        print_json({"job_id": job.id, "trial_id": trial_id, "state": job.state})
    else:
        console().print(f"{trial_id} is {job.state}: {job.id}")
    return 0


def _show(result: Mapping[str, Any], gates: Sequence[Gate]) -> None:
    out = console()
    step = result["step_time_s"]
    rows = [
        ("step time (median)", seconds(result["predicted_step_time_s"]), seconds(step["median"])),
        ("interquartile range", "-", seconds(step["iqr"])),
        ("memory of a device", num_bytes(result["predicted_memory_bytes"]), num_bytes(result["memory_bytes"])),
    ]
    title = f"{result['plan_id']} on {result['num_ranks']} ranks, {step['steps']} steps"
    out.print(table(title, ("", "predicted", "measured"), rows))
    out.print(f"losses differ from one device's by {result['loss_difference']:.2g} relative")
    for reason in result.get("differs_as", ()):
        out.print(reason, soft_wrap=True)
    for gate in gates:
        passed = "not judged" if gate.value is None else "passed" if gate.passed else "FAILED"
        out.print(f"gate {gate.name}: {passed} ({gate.sentence})", soft_wrap=True)
