"""``autosbp trial``: run a plan, measure it, and fail where a gate is missed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autosbp.cli._files import ModelSizes, read_plan, read_plan_graph
from autosbp.cli._format import num_bytes, seconds, table
from autosbp.cli._launchers import LOOPBACK, Interface, Launcher, check_launcher, launcher_of
from autosbp.cli._options import AsJson, Baseline, GraphFile, ImageSize, ModelOption, PlanFile, SeqLen, Server, Timeout
from autosbp.cli._run import GATE_FAILED, console, note, print_json
from autosbp.errors import InputError
from autosbp.sources import factory_module

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
Workdir = Annotated[
    Path | None, typer.Option("--workdir", metavar="DIR", help="Keep request, log and result here.", show_default=False)
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="Defines custom ops; ranks import it. A factory's own is known."),
]
_LONGEST_S = 1e6


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
    max_loss_difference: MaxLossDifference = None,
    timeout: Timeout = 600.0,
    workdir: Workdir = None,
    imports: Imports = None,
    server: Server = None,
    as_json: AsJson = False,
) -> int:
    """Train for some steps under a plan and compare with what was predicted.

    Exits with 1 when a gate fails: a limit given here, or collectives other than those that the plan was charged for.
    A plan holds the hash of its graph, not the graph: give --graph or --model.
    """
    check_launcher(launcher)
    for field, limit in (("max_step_time", max_step_time), ("max_loss_difference", max_loss_difference)):
        if limit is not None and not limit >= 0:
            raise InputError(field, str(limit), "a number of at least 0 is expected")
    if not 0 < timeout <= _LONGEST_S:
        raise InputError("timeout", str(timeout), f"more than 0 and at most {_LONGEST_S:g} seconds is expected")
    effort = {"steps": steps, "warmup": warmup, "seed": seed}
    if server is not None:
        result = _run_there(server, plan, baseline, effort)
    else:
        found = read_plan(plan, baseline)
        graph_of_plan = read_plan_graph(found, graph, model, ModelSizes(seq_len, image_size), "a trial")
        own = None if model is None else factory_module(model)
        libraries = [*(imports or ()), *([own] if own else [])]
        with launcher_of(launcher, found.cluster, interface) as launch:
            ways = {"timeout_s": timeout, "launch": launch, "libraries": libraries}
            result = _run_here(found, graph_of_plan, workdir, {**effort, **ways})
    gates = check_gates(result, max_step_time, max_loss_difference)
    if as_json:
        print_json({**result, "gates": gates})
    else:
        _show(result, gates)
    return 0 if all(gate["passed"] for gate in gates.values()) else GATE_FAILED


def _run_here(plan: Plan, graph: LogicalGraph, workdir: Path | None, effort: dict[str, Any]) -> dict[str, Any]:
    from autosbp import api

    if workdir is not None:
        return api.run_trial(plan, graph, workdir=workdir, log=note, **effort)
    with tempfile.TemporaryDirectory(prefix="autosbp-trial-") as folder:
        return api.run_trial(plan, graph, workdir=Path(folder), log=note, **effort)


def _run_there(server: str, plan: str, baseline: str | None, effort: dict[str, int]) -> dict[str, Any]:
    """A trial of a strategy that the service holds: a plan that it made, or that plan's id."""
    from autosbp.cli._server import connected, is_id, wait

    plan_id = plan if is_id(plan) else read_plan(plan).plan_id
    with connected(server) as client:
        done = wait(client, client.trial(plan_id, baseline=baseline, **effort))
        result: dict[str, Any] = client.get_trial(done["trial_id"])["result"]
        return result


def check_gates(
    result: Mapping[str, Any], max_step_time_s: float | None, max_loss_difference: float | None
) -> dict[str, dict[str, Any]]:
    """Every gate with its limit, what was found, and whether it passed."""
    match = bool(result["collectives_match"])
    gates: dict[str, dict[str, Any]] = {"collectives_match": {"limit": 1, "value": int(match), "passed": match}}
    limits = {
        "max_step_time_s": (max_step_time_s, result["step_time_s"]["median"]),
        "max_loss_difference": (max_loss_difference, result["loss_difference"]),
    }
    for name, (limit, value) in limits.items():
        if limit is not None:
            gates[name] = {"limit": limit, "value": value, "passed": value <= limit}
    return gates


def _show(result: Mapping[str, Any], gates: Mapping[str, Mapping[str, Any]]) -> None:
    out = console()
    time = result["step_time_s"]
    rows = [
        ("step time (median)", seconds(result["predicted_step_time_s"]), seconds(time["median"])),
        ("interquartile range", "-", seconds(time["iqr"])),
        ("memory of a device", num_bytes(result["predicted_memory_bytes"]), num_bytes(result["memory_bytes"])),
    ]
    title = f"{result['plan_id']} on {result['num_ranks']} ranks, {time['steps']} steps"
    out.print(table(title, ("", "predicted", "measured"), rows))
    out.print(f"losses differ from one device's by {result['loss_difference']:.2g} relative")
    for name, gate in gates.items():
        passed = "passed" if gate["passed"] else "FAILED"
        out.print(f"gate {name}: {passed} ({gate['value']:.4g} against {gate['limit']:.4g})")
