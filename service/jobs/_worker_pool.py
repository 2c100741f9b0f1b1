"""Pool of worker processes: each runs one task at a time and is kept for the next job of its lane."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autosbp.service import tracing
from autosbp.service.jobs._base import Document, Interrupted, JobKind
from autosbp.service.jobs._worker_handle import Worker
from autosbp.service.problem_details import problem

_MESSAGE_POLL_S = 0.1
_MAX_STARTS, _BEGIN_S, _FAILURE_MEMORY_S = 3, 60.0, 30.0
_LANE_VARIABLES = {"measure": ("RAY_AUTH_TOKEN", "SLURM_CONF", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")}
"""Environment variables for launchers, which run in the worker processes of this lane; ranks do not get them."""


class WorkerDied(Exception):  # noqa: N818 - what happened, of which the caller makes an error or another attempt
    """A worker process ended while it ran a task; the message says how."""


class WorkerNotStarted(Interrupted):
    """No worker process could be started for the task."""


@dataclass(frozen=True, slots=True)
class TaskCallbacks:
    """Callbacks while a task runs.

    Args:
        check: returns whether cancellation was requested; raises ``Interrupted`` if the job is no longer ours.
        report: gets each ``progress`` message.
        started: called when the task has begun.
    """

    check: Callable[[], bool]
    report: Callable[[Document], None]
    started: Callable[[], None]


class WorkerPool:
    """Starts, keeps and ends worker processes. Thread-safe."""

    def __init__(self, owner: str, grace_s: float, variables: Sequence[str] = ()) -> None:
        self._owner, self._grace_s, self._variables = owner, grace_s, variables
        self._idle: dict[str, list[Worker]] = {}
        self._lock = threading.Lock()
        self._failure = (-math.inf, "")

    def unhealthy_reason(self) -> str | None:
        """Why starting a worker process failed in the last 30 s; None otherwise. Waiting jobs retry it."""
        failed_s, words = self._failure
        return words if time.monotonic() - failed_s < _FAILURE_MEMORY_S else None

    @property
    def idle_pids(self) -> list[int]:
        """Pids of the processes that wait for a task."""
        with self._lock:
            return [worker.pid for workers in self._idle.values() for worker in workers]

    def run(self, kind: JobKind, inputs: Document, outcome: Path, watch: TaskCallbacks) -> Document:
        """Run one task in a worker process and return its outcome.

        No process of an unfinished task is left when this returns or raises.

        Args:
            kind: the job's kind.
            inputs: the task's inputs.
            outcome: file to which the worker process writes the outcome of a finished task.
            watch: callbacks.

        Raises:
            WorkerDied: the process died while it ran the task.
            NotStarted: no process could be started.
        """
        worker = self._start_task(kind, inputs, outcome, watch)
        try:
            watch.started()
            found = self._follow(worker, kind, watch)
        except (EOFError, OSError):
            return _outcome_of_death(worker.kill(), kind)
        except BaseException:
            worker.kill()
            raise
        if found is None:
            worker.kill()
            return {"op": "cancelled"}
        if found["op"] == "overdue":
            worker.kill()
            return {"op": "failed", "problem": _too_large(f"the job ran for {kind.limits.wall_s:g} s")}
        with self._lock:
            self._idle.setdefault(kind.lane, []).append(worker)
        return found

    def close(self) -> None:
        """End the idle processes."""
        with self._lock:
            idle = [worker for workers in self._idle.values() for worker in workers]
            self._idle.clear()
        for worker in idle:
            worker.kill()

    def _start_task(self, kind: JobKind, inputs: Document, outcome: Path, watch: TaskCallbacks) -> Worker:
        """Give the task to an idle or new process and return it; idle processes that have died are replaced."""
        order = {**asdict(kind.limits), "target": kind.target, "inputs": inputs, "outcome": str(outcome)}
        order |= {"trace": tracing.traceparent()}
        starts, words = 0, ""
        while starts < _MAX_STARTS:
            with self._lock:
                idle = self._idle.get(kind.lane)
                worker = idle.pop() if idle else None
            starts += worker is None
            try:
                worker = worker or Worker(self._owner, (*_LANE_VARIABLES.get(kind.lane, ()), *self._variables))
            except OSError as error:
                words = str(error)
                continue
            if _send_task(worker, order, watch):
                self._failure = (-math.inf, "")
                return worker
            words = f"the last one ended with status {worker.kill()}"
        self._failure = time.monotonic(), f"cannot start worker processes: {words}"
        raise WorkerNotStarted(self._failure[1])

    def _follow(self, worker: Worker, kind: JobKind, watch: TaskCallbacks) -> Document | None:
        """Return the task's last message; None if it did not stop within its grace period after a cancel."""
        due_s = None if kind.limits.wall_s is None else time.monotonic() + kind.limits.wall_s
        stop_s: float | None = None
        while True:
            message = worker.receive(_MESSAGE_POLL_S)
            if message is not None and message["op"] != "progress":
                return message
            if message is not None:
                watch.report(message)
            now_s = time.monotonic()
            if watch.check() and stop_s is None:
                worker.send("cancel")
                stop_s = now_s + self._grace_s
            if stop_s is not None and now_s > stop_s:
                return None
            if due_s is not None and now_s > due_s:
                return {"op": "overdue"}


def _send_task(worker: Worker, order: Document, watch: TaskCallbacks) -> bool:
    """Give a process a task; return whether it began, which fails if the process is gone."""
    due_s = time.monotonic() + _BEGIN_S
    try:
        worker.send("run", **order)
        while time.monotonic() < due_s:
            watch.check()
            if worker.receive(_MESSAGE_POLL_S) is not None:
                return True
    except (EOFError, OSError):
        return False
    except BaseException:
        worker.kill()
        raise
    return False


def _outcome_of_death(status: int, kind: JobKind) -> Document:
    """Outcome of a process that exceeded its limit of processor time; raise ``WorkerDied`` for any other death."""
    if status == -signal.SIGXCPU and kind.limits.cpu_s is not None:
        return {"op": "failed", "problem": _too_large(f"the job used {kind.limits.cpu_s:g} s of CPU time")}
    raise WorkerDied(f"status {status}" + (" (out of memory?)" if status in (-6, -9) else ""))


def _too_large(detail: str) -> Document:
    return problem(500, f"{detail}, which is its limit", name="job-limit", title="The job is too large")
