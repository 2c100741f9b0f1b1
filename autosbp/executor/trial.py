"""``run_trial``: a measured run of a plan on real ranks. Does not import torch in the caller's process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autosbp.costmodel.stages import Stages
from autosbp.errors import InputError, TrialError
from autosbp.graph.ir import LogicalGraph
from autosbp.jsonio import canonical, check_integer, loads
from autosbp.plan import Plan
from autosbp.sbp.program import program_items
from autosbp.schedules import require_runtime
from autosbp.torchrun import MAX_LOCAL_RANKS, Launch, check_devices, run_ranks

LIBRARIES: Mapping[str, str] = {"torchvision": "torchvision", "transformers": "transformers.integrations.moe"}
"""Modules that define the ops of well-known namespaces."""
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
        plan: of ``graph``; checked by its hash.
        steps: timed steps after ``warmup``; 20 or more for numbers that are quoted.
        workdir: gets ``request.json``, ``result.json`` and ``ranks.log``.
        log: called with each line that the ranks print.
        cancelled: asked ten times a second; True ends the run.
        launch: how the ranks are started; all on this machine by default.
        libraries: modules that every rank imports first, because they define the graph's custom ops.
        max_ranks: that ``launch`` can start.
        resume: ``workdir`` may be that of the very same run, begun before, whose ranks ``launch`` finds again: what they
            need or have written stays.

    Returns:
        step time (median and IQR in seconds), memory, losses, the difference to single-device training, the collectives
        that rank 0 issued, and whether every rank issued exactly those that the plan charged.

    Raises:
        InputError: the plan is of another graph, or needs more ranks or devices than there are.
        UnsupportedError: no runtime runs the plan's schedule.
        TrialError: a rank failed, the time ran out, or the run was cancelled; with the end of the log.
    """
    check_integer("steps", steps, 1, 100_000)
    check_integer("warmup", warmup, 1, 10_000)
    check_integer("seed", seed, 0, 2**53)
    if plan.document["provenance"]["graph_hash"] != graph.graph_hash:
        raise InputError("graph", graph.graph_hash, f"the plan's graph {plan.document['provenance']['graph_hash']}")
    for module in libraries:
        if not _MODULE.fullmatch(module):
            raise InputError("libraries", module, "the name of a module, such as package.module, is expected")
    known = {LIBRARIES.get(node.op.partition(".")[0], "") for node in graph.nodes} - {""}
    strategy = plan.strategy
    if strategy.num_devices > max_ranks:
        raise InputError("cluster", strategy.num_devices, f"at most {max_ranks} ranks can start here")
    if plan.cluster.device.kind == "cuda":
        check_devices("cluster", plan.cluster.name, launch, strategy.num_devices)
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    if strategy.pipeline is None:
        list(program_items(bound, strategy))
    else:
        require_runtime(strategy.pipeline.schedule.name)
        Stages(bound, strategy)
    workdir.mkdir(parents=True, exist_ok=True)
    result_path = workdir / "result.json"
    request = {"plan": plan.to_dict(), "graph": graph.to_dict(), "steps": steps, "warmup": warmup, "seed": seed}
    request["libraries"] = [*libraries, *sorted(known)]
    _put(workdir / "request.json", canonical(request), result_path, resume=resume)
    tail = _Tail(workdir / "ranks.log", log)

    def follow() -> bool:
        tail.read()
        return not (cancelled is not None and cancelled())

    outcome = launch(
        "autosbp.executor.worker",
        [str(workdir / "request.json"), str(result_path)],
        strategy.num_devices,
        workdir / "ranks.log",
        timeout_s=timeout_s,
        poll=follow,
    )
    tail.read()
    if outcome.reason:
        raise TrialError(f"trial of {plan.plan_id}: {outcome.reason}\nend of the ranks' log:\n{outcome.log_tail}")
    result: dict[str, Any] = loads(result_path.read_text(), "trial result")
    return result


def _put(path: Path, request: bytes, result_path: Path, *, resume: bool) -> None:
    """Write the request whole, and remove an earlier result, unless both may be of ranks that are found again."""
    if resume and path.exists() and path.read_bytes() == request:
        return
    result_path.unlink(missing_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_bytes(request)
    draft.replace(path)


class _Tail:
    """Passes on the lines that a growing file gains."""

    def __init__(self, path: Path, log: Callable[[str], None] | None) -> None:
        self.path, self.log, self.at, self.rest = path, log, 0, b""

    def read(self) -> None:
        if self.log is None or not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.at)
            data = file.read()
        self.at += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.log(line.decode(errors="replace"))
