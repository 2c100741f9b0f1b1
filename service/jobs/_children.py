"""The worker processes of this service: one runs a task at a time, and is kept for the next job of its lane."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from service import tracing
from service.jobs._base import Document, JobKind
from service.jobs._handle import Worker
from service.problems import problem

_MESSAGE_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Watch:
    """What a task's surroundings say while it runs.

    Args:
        check: raises ``Interrupted`` when the task has lost its owner; else whether its end was asked for.
        report: is given each ``progress`` message.
        started: is called when the task has been handed over.
    """

    check: Callable[[], bool]
    report: Callable[[Document], None]
    started: Callable[[], None]


class Children:
    """Starts, keeps and ends worker processes. Thread-safe."""

    def __init__(self, owner: str, grace_s: float) -> None:
        self._owner, self._grace_s = owner, grace_s
        self._idle: dict[str, list[Worker]] = {}
        self._lock = threading.Lock()

    @property
    def idle_pids(self) -> list[int]:
        """Of the processes that wait for a task."""
        with self._lock:
            return [worker.pid for workers in self._idle.values() for worker in workers]

    def run(self, kind: JobKind, inputs: Document, outcome: Path, watch: Watch) -> Document:
        """Have a process run one task; the outcome, which is also in the file ``outcome`` if the task came to its end. When
        this returns or raises, nothing of a task that did not end is left."""
        worker = self._take(kind.lane)
        try:
            found = self._follow(worker, kind, inputs, outcome, watch)
        except (EOFError, OSError):
            return _death(worker.kill(), kind)
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
        """End the processes that wait for a task."""
        with self._lock:
            idle = [worker for workers in self._idle.values() for worker in workers]
            self._idle.clear()
        for worker in idle:
            worker.kill()

    def _take(self, lane: str) -> Worker:
        with self._lock:
            idle = self._idle.get(lane)
            return idle.pop() if idle else Worker(self._owner)

    def _follow(self, worker: Worker, kind: JobKind, inputs: Document, outcome: Path, watch: Watch) -> Document | None:
        """The task's last message; None when it did not stop in time after it was told to."""
        limits = asdict(kind.limits)
        wall_s = limits.pop("wall_s")
        due_s = None if wall_s is None else time.monotonic() + wall_s
        stop_s: float | None = None
        trace = tracing.traceparent()
        worker.send("run", target=kind.target, inputs=inputs, outcome=str(outcome), trace=trace, **limits)
        watch.started()
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


def _death(status: int, kind: JobKind) -> Document:
    """The outcome of a process that ended before its task."""
    if status == -signal.SIGXCPU and kind.limits.cpu_s is not None:
        return {"op": "failed", "problem": _too_large(f"the job used {kind.limits.cpu_s:g} s of processor time")}
    detail = f"the worker process ended with status {status}" + (" (out of memory?)" if status in (-6, -9) else "")
    return {"op": "failed", "problem": problem(500, detail, name="worker-died", title="The worker process died")}


def _too_large(detail: str) -> Document:
    return problem(500, f"{detail}, the most that it may", name="job-limit", title="The job is too large")
