"""The worker process: runs one task at a time for the job runner.

It has no database. A task's outcome is written to a file before it is sent, so that it survives the service. When the
runner's end of the pipe closes (the service stopped or died), the current task is asked to stop. After a grace period
the process ends with everything it started, so no work continues without an owner
(``autosbp.service.jobs._process_supervisor``).
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from autosbp.errors import AutosbpError
from autosbp.service import tracing
from autosbp.service.jobs._base import CancelledError, Document, Task
from autosbp.service.jobs._json_channel import Channel
from autosbp.service.jobs._processes import kill_tree
from autosbp.service.problem_details import json_safe, problem, problem_of
from autosbp.utils.json_io import canonical

_log = logging.getLogger("autosbp.service.jobs.worker")
_PROGRESS_INTERVAL_S = 0.2
_ORPHAN_GRACE_S = 5.0
_SPAN_INTERVAL_S = 0.5  # interval of sending spans; short, as a process may be killed soon after its task


class WorkerContext:
    """Progress and cancellation of the current task; implements ``TaskContext``."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._cancel, self._orphaned = threading.Event(), threading.Event()
        self._reported_s = -_PROGRESS_INTERVAL_S

    def progress(self, fraction: float | None, message: str, **figures: float) -> bool:
        """Send progress to the runner, at most every 0.2 s."""
        if time.monotonic() - self._reported_s >= _PROGRESS_INTERVAL_S:
            self._reported_s = time.monotonic()
            finite = {key: json_safe(float(value)) for key, value in figures.items()}
            try:
                self._channel.send("progress", progress=fraction, message=message, figures=finite)
            except OSError:
                self.mark_orphaned()
        return not self.cancelled()

    def cancelled(self) -> bool:
        """Whether the task should stop."""
        return self._cancel.is_set()

    def orphaned(self) -> bool:
        """Whether the runner is gone."""
        return self._orphaned.is_set()

    def cancel(self) -> None:
        """Ask the task to stop."""
        self._cancel.set()

    def mark_orphaned(self) -> None:
        """Mark the runner as gone and ask the task to stop."""
        self._orphaned.set()
        self._cancel.set()


def run(target: str, inputs: Document, context: WorkerContext) -> tuple[str, dict[str, Any]]:
    """Run the task ``target`` (``module:function``) and return the final message as (op, members)."""
    module, _, name = target.partition(":")
    try:
        task: Task = getattr(importlib.import_module(module), name)
        # if a cancel has arrived meanwhile, the runner drops the result
        return "done", {"result": task(inputs, context)}
    except CancelledError:
        return "cancelled", {}
    except MemoryError:
        detail = f"the job exceeded its memory limit of {_soft_rlimit(resource.RLIMIT_AS)} bytes"
        return "failed", {"problem": problem(500, detail, name="job-limit", title="The job is too large")}
    except Exception as error:
        if context.cancelled():
            return "cancelled", {}
        if not isinstance(error, AutosbpError):
            _log.exception("task %s failed", target)
        return "failed", {"problem": problem_of(error)}


def main(descriptor: int) -> None:
    """Serve the runner at the other end of the pipe ``descriptor`` until it closes."""
    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner handles Ctrl-C
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s:     %(name)s: %(message)s")
    channel = Channel(Connection(descriptor))
    work: queue.Queue[tuple[Document, WorkerContext]] = queue.Queue()
    threading.Thread(target=_listen, args=(channel, work), daemon=True).start()
    while True:
        order, context = work.get()
        limit(order["memory_bytes"], order["cpu_s"])
        with _traced(order["trace"], order["target"]):
            op, members = run(order["target"], order["inputs"], context)
        work.task_done()
        try:
            _reply(channel, order, {"op": op, **members})
        except OSError:
            return  # the runner is gone; its successor finds the outcome, or runs the job again


@contextmanager
def _traced(parent: str | None, target: str) -> Iterator[None]:
    """Run the task in a span whose context its ranks on this machine get by their environment."""
    if parent is None:
        yield
        return
    tracing.start_tracing(_SPAN_INTERVAL_S)
    with tracing.remote_child_span(parent, f"task {target.partition(':')[2]}", target=target):
        os.environ |= tracing.environment()
        try:
            yield
        finally:
            del os.environ[tracing.TRACEPARENT_VARIABLE]


def limit(memory_bytes: int | None, cpu_s: float | None) -> None:
    """Limit this process's address space, and the processor time it uses from now on; None is unlimited."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent_s = used.ru_utime + used.ru_stime
    _set_rlimit(resource.RLIMIT_AS, memory_bytes)
    _set_rlimit(resource.RLIMIT_CPU, None if cpu_s is None else math.ceil(spent_s + cpu_s))


def _set_rlimit(what: int, most: int | None) -> None:
    hard = resource.getrlimit(what)[1]
    most = hard if most is None or (hard != resource.RLIM_INFINITY and hard < most) else most
    resource.setrlimit(what, (most, hard))


def _soft_rlimit(what: int) -> int:
    return resource.getrlimit(what)[0]


def _reply(channel: Channel, order: Document, outcome: Document) -> None:
    try:
        if outcome["op"] != "cancelled":
            _write_outcome(Path(order["outcome"]), outcome)
    except (TypeError, ValueError) as error:
        _log.exception("the result of %s is not JSON", order["target"])
        outcome = {"op": "failed", "problem": problem_of(error)}
    except OSError as error:
        _log.warning("could not store an outcome: %s", error)
    channel.send(**outcome)


def _write_outcome(path: Path, outcome: Document) -> None:
    document = canonical(outcome)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(document)
    unfinished.replace(path)


def _listen(channel: Channel, work: queue.Queue[tuple[Document, WorkerContext]]) -> None:
    context = WorkerContext(channel)
    try:
        while True:
            message = channel.receive()
            if message["op"] == "run":
                context = WorkerContext(channel)
                channel.send("begun")  # from here on, the death of this process counts against the task
                work.put((message, context))
            else:
                context.cancel()
    except (EOFError, OSError):
        context.mark_orphaned()
        if work.unfinished_tasks:
            time.sleep(_ORPHAN_GRACE_S)
        kill_tree(os.getpid(), include_self=False)
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
