"""``run_trial``: a measured run of a plan on real ranks. Does not import torch in the caller's process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from autosbp.costmodel.pipeline_program import PipelineProgram
from autosbp.errors import InputError, TrialError
from autosbp.graph.ir import LogicalGraph
from autosbp.graph.precision import planned_graph, require_executor
from autosbp.launch.local import CANCELLED, MAX_LOCAL_RANKS, Launch, check_devices, run_ranks
from autosbp.plan.plan import Plan, Strategy
from autosbp.plan.schedules import require_runtime
from autosbp.program.program import program_items
from autosbp.sandbox.regular_files import open_regular, read_regular
from autosbp.utils.json_io import canonical, check_integer, loads

LIBRARIES: Mapping[str, str] = {"torchvision": "torchvision", "transformers": "transformers.integrations.moe"}
"""Modules that define the ops of well-known namespaces."""
_MOST_BYTES = 2**24  # read at once
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def run_trial(
    plan: Plan,
    graph: LogicalGraph,
    *,
    steps: int = 20,
    warmup: int = 3,
    seed: int = 0,
    timeout_s: float = 600.0,
    workdir: Path,
    log: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    launch: Launch = run_ranks,
    libraries: Sequence[str] = (),
    max_ranks: int = MAX_LOCAL_RANKS,
    resume: bool = False,
) -> dict[str, Any]:
    """Train under the plan's strategy with one rank per device and measure.

    Args:
        plan: a plan of ``graph``; checked by its hash.
        steps: timed steps after ``warmup``; use 20 or more for published numbers.
        workdir: gets ``request.json``, ``result.json`` and ``ranks.log``.
        log: called with each line that the ranks print.
        cancelled: called ten times a second; True ends the run.
        launch: starts the ranks; all on this machine by default.
        libraries: modules that every rank imports first, because they define the graph's custom ops.
        max_ranks: maximum number of ranks that ``launch`` can start.
        resume: ``workdir`` may belong to an earlier start of the same run, whose ranks ``launch`` finds again: their
            request and result are kept.

    Returns:
        Step time (median and IQR in seconds), memory, losses, the difference to single-device training, the collectives
        that rank 0 issued, and whether every rank issued exactly those that the plan charged.

    Raises:
        InputError: the plan is of another graph, or needs more ranks or devices than there are.
        UnsupportedError: no runtime runs the plan's schedule or precision.
        TrialError: a rank failed or the time ran out before everything was measured, or the run was cancelled; with the
            end of the log. If that happens while the losses are compared with one device, ``differs_as`` says so.
    """
    check_integer("steps", steps, 1, 100_000)
    check_integer("warmup", warmup, 1, 10_000)
    check_integer("seed", seed, 0, 2**53)
    require_executor(plan.precision)
    graph = planned_graph(graph, plan.document)
    imported = imported_libraries(graph, libraries)
    strategy = plan.strategy
    if strategy.num_devices > max_ranks:
        raise InputError("cluster", strategy.num_devices, f"this machine can start at most {max_ranks} ranks")
    if plan.cluster.device.kind == "cuda":
        check_devices("cluster", plan.cluster.name, launch, strategy.num_devices)
    check_strategy(graph, strategy)
    workdir.mkdir(parents=True, exist_ok=True)
    result_path = workdir / "result.json"
    request = {"plan": plan.to_dict(), "graph": graph.to_dict(), "steps": steps, "warmup": warmup, "seed": seed}
    request["libraries"] = imported
    _write_request(workdir / "request.json", canonical(request), result_path, resume=resume)
    tail = _LogFollower(workdir / "ranks.log", log)

    def follow() -> bool:
        tail.read()
        return not (cancelled is not None and cancelled())

    outcome = launch(
        "autosbp.executor.trial_worker",
        [str(workdir / "request.json"), str(result_path)],
        strategy.num_devices,
        workdir / "ranks.log",
        timeout_s=timeout_s,
        poll=follow,
    )
    tail.read()
    try:
        result: dict[str, Any] = loads(read_regular(result_path), "trial result")
    except OSError as error:
        reason = outcome.reason or f"the ranks wrote no result ({error.strerror})"
    else:
        # Written once everything is measured, and again once the losses are compared with one device.
        if outcome.reason and result.get("loss_difference") is None:
            result["differs_as"] = [f"The losses were not compared with one device: {outcome.reason}."]
        if outcome.reason != CANCELLED:
            return result
        reason = outcome.reason
    raise TrialError(f"trial of {plan.plan_id}: {reason}\nlast lines of the ranks' log:\n{outcome.log_tail}")


def imported_libraries(graph: LogicalGraph, libraries: Sequence[str]) -> list[str]:
    """Modules that ranks import: those given, and those that define the graph's ops of well-known namespaces.

    Raises:
        InputError: ``libraries`` holds something else than the names of modules.
    """
    for module in libraries:
        if not _MODULE.fullmatch(module):
            raise InputError("libraries", module, "expected the name of a module, such as package.module")
    known = {LIBRARIES.get(node.op.partition(".")[0], "") for node in graph.nodes} - {""}
    return [*libraries, *sorted(known)]


def check_strategy(graph: LogicalGraph, strategy: Strategy) -> None:
    """Reject a strategy whose program ranks could not build.

    Raises:
        InputError: it does not fit the graph.
        UnsupportedError: no runtime runs its pipeline schedule.
    """
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    if strategy.pipeline is None:
        list(program_items(bound, strategy))
    else:
        require_runtime(strategy.pipeline.schedule.name)
        PipelineProgram(bound, strategy)


def _write_request(path: Path, request: bytes, result_path: Path, *, resume: bool) -> None:
    """Write the request atomically and remove an earlier result, unless both may belong to resumed ranks."""
    if resume and path.exists() and path.read_bytes() == request:
        return
    result_path.unlink(missing_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_bytes(request)
    draft.replace(path)


class _LogFollower:
    """Passes new lines of a growing file to ``log``."""

    def __init__(self, path: Path, log: Callable[[str], None] | None) -> None:
        self.path, self.log, self.at, self.rest = path, log, 0, b""

    def read(self) -> None:
        if self.log is None:
            return
        data = b""
        with suppress(OSError), open_regular(self.path) as file:
            file.seek(self.at)
            data = file.read(_MOST_BYTES)
        self.at += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.log(line.decode(errors="replace"))
