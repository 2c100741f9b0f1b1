"""Tasks for the tests of the runner; each runs in the worker process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from autosbp.errors import CalibrationError, InfeasibleError
from autosbp.graph.discovered_rules import DiscoveredRule
from autosbp.plan.plan import Plan
from autosbp.service.jobs._base import CancelledError, JobKind, TaskContext
from tests.service import documents


def echo(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    context.progress(0.5, "half", best_s=1.5, bound_s=float("-inf"))
    return inputs


def hold(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Wait for the file ``gate``; stops when told to."""
    context.progress(None, "holding")
    while not Path(inputs["gate"]).exists():
        if context.cancelled():
            raise CancelledError
        time.sleep(0.02)
    return inputs


def nap(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Take so many seconds."""
    time.sleep(inputs["seconds"])
    return inputs


def stubborn(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Start a process in a session of its own, write its pid, and never stop."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(inputs["pid"]).write_text(str(child.pid))
    while True:
        time.sleep(1)


def deaf(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Write the pid, and hear nothing: no thread of this process runs again."""
    Path(inputs["pid"]).write_text(str(os.getpid()))
    libc = ctypes.PyDLL(None)  # keeps Python's lock while it waits
    libc.sleep(600)
    return {}


def greedy(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Take 8 GiB."""
    return {"size": len(bytearray(8 * 2**30))}


def busy(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Use the processor until the end."""
    while True:
        pass


def die(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    os._exit(7)


def keep_and_die(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """Die between the outcome's file and the word that there is one."""
    path = Path(inputs["path"])
    path.parent.mkdir(parents=True)
    path.write_text('{"op":"done","result":{"found":1}}')
    os._exit(7)


def infeasible(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    raise InfeasibleError("memory_limit_bytes", 10.0, 20.0)


def surprise(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    raise RuntimeError("a secret of the inside")


def no_json(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    return {"value": float("nan")}


def held_search(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """A real search behind the gate of ``hold``."""
    from autosbp.service.jobs import tasks

    hold({"gate": os.environ["TEST_GATE"]}, context)
    return tasks.search(inputs, context)


def surroundings(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """What this process, and its child that tries ops, have in their environment and of privileges."""
    from autosbp.discovery._child_process import run_trials

    told = Path(inputs["told"])

    def tell() -> DiscoveredRule:
        told.write_text(_surroundings())
        return DiscoveredRule(())

    list(run_trials([tell]))
    return {"worker": _surroundings(), "trial": told.read_text()}


def _surroundings() -> str:
    names = [Path("/proc/self/environ"), Path("/proc/self/status"), Path("/proc/self/oom_score_adj")]
    told = [
        *(name.read_text().strip() for name in names),
        f"Descriptors: {sorted(os.listdir('/proc/self/fd'), key=int)}",
    ]
    return "\n".join(told)


def quick_trial(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """A trial whose ranks are not started: a step takes 10 ms and one for each of the asked steps; seed 1 stands for
    collectives that did not match."""
    from autosbp.service.jobs import tasks

    def run(plan: Plan, _graph: object, *, steps: int, seed: int, **_: object) -> dict[str, Any]:
        times = {"median": 1e-2 + 1e-3 * steps}
        return {"plan_id": plan.plan_id, "collectives_match": seed != 1, "step_time_s": times}

    with patch("autosbp.api.run_trial", run):
        return tasks.trial(inputs, context)


def leaving(inputs: dict[str, Any], context: TaskContext) -> dict[str, Any]:
    """A calibration that leaves the files of two nodes, long ones if ``point_s`` is 0.4, and fails if it is 0.2."""
    folder = Path(inputs["workdir"])
    folder.mkdir(parents=True)
    for name, text in (("ranks.log", "a rank says something\n"), ("ranks.node1.log", ""), ("results.jsonl", "{}\n")):
        (folder / name).write_text(text)
    (folder / "request.json").write_text("no result")
    if inputs["effort"]["point_s"] == 0.4:
        (folder / "ranks.log").write_text("first\n" + "x" * 2**20 + "\nlast\n")
        (folder / "ranks.node1.log").write_text("x" * 2**20)
    if inputs["effort"]["point_s"] == 0.2:
        raise CalibrationError("no rank has responded")
    return documents.calibration("local:2")


def kind(name: str, resumable: bool = True) -> JobKind:
    """A kind whose input is the job's payload and whose result is what the task returned."""
    return JobKind(f"tests.service.tasks:{name}", lambda _, job: job.payload, lambda _, __, found: found, resumable)
