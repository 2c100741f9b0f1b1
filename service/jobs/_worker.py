"""The worker process: runs one task at a time, as the runner tells it to.

It holds no database. What a task found is written to a file before it is sent, so that it is not lost with the service.
When the runner's end of the pipe closes (the service stopped or died), the present task is told to stop, and after a grace
period the process ends with everything that it started: no work goes on without an owner (``service.jobs._reaper``).
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
from autosbp.jsonio import canonical
from service import tracing
from service.jobs._base import CancelledError, Document, Task
from service.jobs._channel import Channel
from service.jobs._processes import kill_tree
from service.problems import problem, problem_of, shown

_log = logging.getLogger("service.jobs.worker")
_PROGRESS_INTERVAL_S = 0.2
_ORPHAN_GRACE_S = 5.0
_SENT_S = 0.5  # between two sendings of spans: a process may be ended soon after its task


class Context:
    """Progress and cancellation of the present task; implements ``TaskContext``."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._cancel, self._orphaned = threading.Event(), threading.Event()
        self._reported_s = -_PROGRESS_INTERVAL_S

    def progress(self, fraction: float | None, message: str, **figures: float) -> bool:
        """Send progress on, at most every 0.2 s."""
        if time.monotonic() - self._reported_s >= _PROGRESS_INTERVAL_S:
            self._reported_s = time.monotonic()
            finite = {key: shown(float(value)) for key, value in figures.items()}
            try:
                self._channel.send("progress", progress=fraction, message=message, figures=finite)
            except OSError:
                self.abandon()
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

    def abandon(self) -> None:
        """Tell the task that the runner is gone, and ask it to stop."""
        self._orphaned.set()
        self._cancel.set()


def run(target: str, inputs: Document, context: Context) -> tuple[str, dict[str, Any]]:
    """Run the task that ``target`` (``module:function``) names; the last message about it, as (op, members)."""
    module, _, name = target.partition(":")
    try:
        task: Task = getattr(importlib.import_module(module), name)
        return "done", {"result": task(inputs, context)}  # the runner drops it if a cancel came meanwhile
    except CancelledError:
        return "cancelled", {}
    except MemoryError:
        detail = f"the job needs more memory than it may have: {_soft(resource.RLIMIT_AS)} bytes"
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to handle
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s:     %(name)s: %(message)s")
    channel = Channel(Connection(descriptor))
    work: queue.Queue[tuple[Document, Context]] = queue.Queue()
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
    """The task as a span, whose context its ranks on this machine find in their environment."""
    if parent is None:
        yield
        return
    tracing.begin(_SENT_S)
    with tracing.continued(parent, f"task {target.partition(':')[2]}", target=target):
        os.environ |= tracing.environment()
        try:
            yield
        finally:
            del os.environ[tracing.VARIABLE]


def limit(memory_bytes: int | None, cpu_s: float | None) -> None:
    """Bound this process' address space, and the processor time that it uses from now on; None is no bound."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent_s = used.ru_utime + used.ru_stime
    _bound(resource.RLIMIT_AS, memory_bytes)
    _bound(resource.RLIMIT_CPU, None if cpu_s is None else math.ceil(spent_s + cpu_s))


def _bound(what: int, most: int | None) -> None:
    hard = resource.getrlimit(what)[1]
    most = hard if most is None or (hard != resource.RLIM_INFINITY and hard < most) else most
    resource.setrlimit(what, (most, hard))


def _soft(what: int) -> int:
    return resource.getrlimit(what)[0]


def _reply(channel: Channel, order: Document, outcome: Document) -> None:
    try:
        if outcome["op"] != "cancelled":
            _keep(Path(order["outcome"]), outcome)
    except (TypeError, ValueError) as error:
        _log.exception("the result of %s is not JSON", order["target"])
        outcome = {"op": "failed", "problem": problem_of(error)}
    except OSError as error:
        _log.warning("an outcome could not be kept: %s", error)
    channel.send(**outcome)


def _keep(path: Path, outcome: Document) -> None:
    document = canonical(outcome)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(document)
    unfinished.replace(path)


def _listen(channel: Channel, work: queue.Queue[tuple[Document, Context]]) -> None:
    context = Context(channel)
    try:
        while True:
            message = channel.receive()
            if message["op"] == "run":
                context = Context(channel)
                work.put((message, context))
            else:
                context.cancel()
    except (EOFError, OSError):
        context.abandon()
        if work.unfinished_tasks:
            time.sleep(_ORPHAN_GRACE_S)
        kill_tree(os.getpid(), include_self=False)
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
