"""``autosbp trial``: run a plan, measure it, and fail if a gate fails."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._ci_labels import CiLabels, resolve_labels
from autosbp.cli._exit_codes import GATE_FAILED, console, note, print_json
from autosbp.cli._files import ModelSizes, graph_source, read_plan, read_plan_graph
from autosbp.cli._launchers import LOOPBACK, Interface, Launcher, check_launcher, rank_launcher
from autosbp.cli._module_losses import compare_with_module
from autosbp.cli._option_checks import refuse_unused
from autosbp.cli._options import AsJson, Baseline, GraphFile, ImageSize, ModelOption, PlanFile, SeqLen, Server
from autosbp.cli._report_sinks import ReportSinks
from autosbp.cli._text_tables import table
from autosbp.errors import AutosbpError, InputError
from autosbp.graph_sources import factory_module
from autosbp.report.trial_gates import Gate, GateLimits, NoReference, ReferenceTrial, all_passed, check_gates, fraction
from autosbp.utils.formatting import num_bytes, seconds
from autosbp.utils.tempdirs import temporary_folder

if TYPE_CHECKING:
    from autosbp.graph.ir import LogicalGraph
    from autosbp.plan.plan import Plan

Steps = Annotated[int, typer.Option("--steps", help="Number of timed steps.")]
Warmup = Annotated[int, typer.Option("--warmup", help="Number of untimed warm-up steps.")]
Seed = Annotated[int, typer.Option("--seed", help="Random seed of parameters and batches.")]
MaxStepTime = Annotated[
    float | None, typer.Option("--max-step-time", metavar="S", help="Gate: maximum median step time in seconds.")
]
MaxLossDifference = Annotated[
    float | None,
    typer.Option(
        "--max-loss-difference",
        metavar="R",
        help="Gate: maximum relative difference of the losses from single-device training.",
    ),
]
MaxRegression = Annotated[
    str | None,
    typer.Option(
        "--max-regression",
        metavar="P%",
        help="Gate: maximum slowdown of the median step against --baseline-report or, with --server, against "
        "the median of the last 5 passed trials labelled --baseline-label, of this strategy if there are "
        "any, else of a model of this name on this cluster.",
    ),
]
MaxPredictionError = Annotated[
    str | None,
    typer.Option(
        "--max-prediction-error", metavar="P%", help="Gate: maximum relative error of the predicted step time."
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="With --server: label of the trial; default: the branch, tag or change request of the CI job.",
    ),
]
BaselineLabel = Annotated[
    str | None,
    typer.Option(
        "--baseline-label",
        metavar="NAME",
        help="Label of the trials to compare with; default: the target branch, else the default branch, else "
        "the trial's own label.",
    ),
]
BaselineReport = Annotated[
    Path | None,
    typer.Option(
        "--baseline-report", metavar="FILE", help="Report of an earlier trial (from --report) to compare with."
    ),
]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Also write the JSON result to a file.")]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML with one test case per gate.")
]
Github = Annotated[
    bool, typer.Option("--github", help="In GitHub Actions: write to the job summary and annotate failed gates.")
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", help="With --server: wait for the trial and check its gates, or only print its id."
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="S",
        help="Time limit in seconds (default: 600). With --server, time in the queue counts and there is no default.",
    ),
]
Workdir = Annotated[
    Path | None,
    typer.Option("--workdir", metavar="DIR", help="Folder for request, log and result.", show_default=False),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Module with custom ops for the ranks to import; the module of a factory MODEL is imported "
        "automatically. Repeatable.",
    ),
]
_MAX_TIMEOUT_S = 1e6
_DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class _TrialRequest:
    """The options of a trial, local or in a service."""

    plan: str
    baseline: str | None
    graph: str | None
    model: str | None
    sizes: ModelSizes
    effort: dict[str, Any]
    timeout_s: float | None
    limits: GateLimits
    baseline_report: Path | None
    labels: CiLabels

    @property
    def ways(self) -> dict[str, Any]:
        """Arguments of the service's trial besides the strategy."""
        return {"baseline": self.baseline, "label": self.labels.own, **self.effort}

    @property
    def source(self) -> str | None:
        """File or MODEL that the plan's graph is read from."""
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
    """Train for some steps under a plan and compare the measurements with the predictions.

    Exits with 1 if a gate fails: a limit given here, or collectives other than those that the cost model charged. A
    plan holds only the hash of its graph: give --graph or --model. With --server, PLAN may be the id of a strategy that
    the service stores. See docs/how-to/ci.md for gates in CI.
    """
    begun_s = time.monotonic()
    reports = ReportSinks(report, junit, github)
    reports.check()
    try:
        check_launcher(launcher)
        if timeout is not None and not 0 < timeout <= _MAX_TIMEOUT_S:
            raise InputError("timeout", str(timeout), f"expected more than 0 and at most {_MAX_TIMEOUT_S:g} seconds")
        if server is not None:
            unused = {"launcher": launcher, "interface": interface, "workdir": workdir, "imports": imports}
            refuse_unused(trial, "a service uses its own launcher; omit this or --server", **unused)
        else:
            refuse_unused(trial, "labels require --server", label=label, baseline_label=baseline_label)
        if not wait:
            refuse_unused(trial, "not used with --no-wait; omit it", timeout=timeout)
        limits = GateLimits(
            max_step_time,
            max_loss_difference,
            fraction(max_regression, "max_regression"),
            fraction(max_prediction_error, "max_prediction_error"),
        )
        effort = {"steps": steps, "warmup": warmup, "seed": seed}
        asked = _TrialRequest(
            *(plan, baseline, graph, model, ModelSizes(seq_len, image_size), effort, timeout, limits, baseline_report),
            resolve_labels(label, baseline_label, os.environ),
        )
        if not wait:
            return _submit_without_waiting(server, asked, reports, as_json)
        if server is not None:
            result, gates, compared = _run_remotely(server, asked)
        else:
            result, earlier = _run_locally(asked, launcher, interface, workdir, imports or ())
            gates = check_gates(result, limits, earlier)
            compared = None if isinstance(earlier, NoReference) else earlier.to_dict()
    except AutosbpError as error:
        reports.failed(error, plan, time.monotonic() - begun_s)
        raise
    document = {**result, "gates": {gate.name: gate.to_dict() for gate in gates}, "compared_with": compared}
    reports.judged(document, gates, time.monotonic() - begun_s)
    if as_json:
        print_json(document)
    else:
        _show(result, gates)
    return 0 if all_passed(gates) else GATE_FAILED


def _run_locally(
    asked: _TrialRequest, launcher: str, interface: str, workdir: Path | None, imports: Sequence[str]
) -> tuple[dict[str, Any], ReferenceTrial | NoReference]:
    if asked.limits.regression is not None and asked.baseline_report is None:
        raise InputError("max_regression", None, "requires --baseline-report, or --server")
    found = read_plan(asked.plan, asked.baseline)
    about = {"model": found.document["model"], "cluster": found.cluster.name}
    earlier = _read_baseline_report(asked, about)
    graph = read_plan_graph(found, asked.graph, asked.model, asked.sizes, "a trial")
    own = None if asked.model is None else factory_module(asked.model)
    libraries = [*imports, *([own] if own else [])]
    with rank_launcher(launcher, found.cluster, interface) as ways:
        own_folder = {} if workdir is None else {"workdir": workdir}
        timeout_s = _DEFAULT_TIMEOUT_S if asked.timeout_s is None else asked.timeout_s
        result = _measure(found, graph, {**asked.effort, **ways, **own_folder}, timeout_s, libraries)
        if asked.model is not None:
            result = compare_with_module(result, found, graph, asked.model, asked.effort["seed"])
        return {**result, **about}, earlier


def _measure(
    plan: Plan, graph: LogicalGraph, ways: dict[str, Any], timeout_s: float, libraries: Sequence[str]
) -> dict[str, Any]:
    """Run the trial, in a temporary folder unless ``ways`` names a ``workdir``."""
    from autosbp import api

    with temporary_folder("autosbp-trial-") as folder:
        ways = {"workdir": folder, **ways}
        return api.run_trial(plan, graph, log=note, timeout_s=timeout_s, libraries=libraries, **ways)


def _run_remotely(server: str, asked: _TrialRequest) -> tuple[dict[str, Any], tuple[Gate, ...], dict[str, Any] | None]:
    """Run and judge a trial in a service, of a plan file or a strategy's id.

    Returns:
        The result, the gates, and the trial that the regression gate compared with.
    """
    from autosbp.cli._remote import find_or_search_strategy, open_client, wait_for_trial

    with open_client(server) as client:
        strategy_id, document = find_or_search_strategy(client, asked.plan, asked.source, asked.sizes)
        about = {"model": document["model"], "cluster": document["cluster"]["name"]}
        reported = _read_baseline_report(asked, about)
        trial_id = wait_for_trial(
            client,
            lambda key: client.trial(strategy_id, **asked.ways, idempotency_key=key),
            asked.timeout_s,
        )
        limits = _limits_for_service(asked.limits, reported)
        found = client.judge(
            trial_id,
            max_step_time_s=limits.step_time_s,
            max_loss_difference=limits.loss_difference,
            max_regression=limits.regression,
            max_prediction_error=limits.prediction_error,
            baseline_label=asked.labels.baseline,
        )
    result = {**(found["result"] or {}), **about, "trial_id": trial_id, "label": asked.labels.own}
    if isinstance(reported, ReferenceTrial):
        return result, check_gates(result, asked.limits, reported), reported.to_dict()
    judged = found["gates"] or []
    compared = next((gate["compared_with"] for gate in judged if "compared_with" in gate), None)
    gates = tuple(Gate(**{name: gate[name] for name in Gate.__slots__}) for gate in judged)
    return result, gates, compared


def _limits_for_service(limits: GateLimits, reported: ReferenceTrial | NoReference) -> GateLimits:
    """Limits for the service, which lacks the baseline report: the regression limit becomes a step-time limit."""
    if isinstance(reported, NoReference) or limits.regression is None:
        return limits
    slowest_s, asked_s = reported.step_time_s * (1 + limits.regression), limits.step_time_s
    return replace(limits, regression=None, step_time_s=slowest_s if asked_s is None else min(slowest_s, asked_s))


def _read_baseline_report(asked: _TrialRequest, about: Mapping[str, Any]) -> ReferenceTrial | NoReference:
    """Read the trial of ``--baseline-report``, before anything runs."""
    from autosbp.cli._reference_trial import read_report

    return NoReference() if asked.baseline_report is None else read_report(asked.baseline_report, about)


def _submit_without_waiting(server: str | None, asked: _TrialRequest, reports: ReportSinks, as_json: bool) -> int:
    """Queue a trial and print its ids without waiting."""
    from autosbp.cli._remote import find_or_search_strategy, open_client, trial_of

    if server is None:
        raise InputError("wait", False, "--no-wait requires --server")
    if asked.limits.asked or asked.baseline_report is not None or reports.asked:
        raise InputError("wait", False, "gates and reports require the trial's result; omit --no-wait")
    with open_client(server) as client:
        strategy_id, _ = find_or_search_strategy(client, asked.plan, asked.source, asked.sizes)
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
        ("memory per device", num_bytes(result["predicted_memory_bytes"]), num_bytes(result["memory_bytes"])),
    ]
    title = f"{result['plan_id']} on {result['num_ranks']} ranks, {step['steps']} steps"
    out.print(table(title, ("", "predicted", "measured"), rows))
    if result.get("loss_difference") is not None:
        out.print(f"losses differ from single-device losses by {result['loss_difference']:.2g} (relative)")
    for reason in result.get("differs_as", ()):
        out.print(reason, soft_wrap=True)
    for gate in gates:
        passed = "FAILED" if not gate.passed else "not evaluated" if gate.value is None else "passed"
        out.print(f"gate {gate.name}: {passed} ({gate.sentence})", soft_wrap=True)
