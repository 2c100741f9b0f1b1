"""The worker process: runs one task at a time, as the runner tells it to.

It holds no database. When the runner's end of the pipe closes (the service stopped or died), the present task is told
to stop, and after a grace period the process ends with everything that it started: no work goes on without an owner.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from autosbp.errors import AutosbpError
from service.jobs._base import CancelledError, Document, Task
from service.jobs._channel import Channel
from service.jobs._processes import kill_tree
from service.problems import problem_of, shown

_log = logging.getLogger("service.jobs.worker")
_PROGRESS_INTERVAL_S = 0.2
_ORPHAN_GRACE_S = 5.0


class Context:
    """Progress and cancellation of the present task; implements ``TaskContext``."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._cancel = threading.Event()
        self._reported_s = -_PROGRESS_INTERVAL_S

    def progress(self, fraction: float | None, message: str, **figures: float) -> bool:
        """Send progress on, at most every 0.2 s."""
        if time.monotonic() - self._reported_s >= _PROGRESS_INTERVAL_S:
            self._reported_s = time.monotonic()
            finite = {key: shown(float(value)) for key, value in figures.items()}
            self._channel.send("progress", progress=fraction, message=message, figures=finite)
        return not self.cancelled()

    def cancelled(self) -> bool:
        """Whether the runner asked for the end of the task."""
        return self._cancel.is_set()

    def cancel(self) -> None:
        """Ask the task to stop."""
        self._cancel.set()


def run(target: str, inputs: Document, context: Context) -> tuple[str, dict[str, Any]]:
    """Run the task that ``target`` (``module:function``) names; the last message about it, as (op, members)."""
    module, _, name = target.partition(":")
    try:
        task: Task = getattr(importlib.import_module(module), name)
        return "done", {"result": task(inputs, context)}  # the runner drops it if a cancel came meanwhile
    except CancelledError:
        return "cancelled", {}
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
        op, members = run(order["target"], order["inputs"], context)
        work.task_done()
        try:
            _reply(channel, order["target"], op, members)
        except OSError:
            return  # the runner is gone, and its successor will run the job again


def _reply(channel: Channel, target: str, op: str, members: dict[str, Any]) -> None:
    try:
        channel.send(op, **members)
    except (TypeError, ValueError) as error:
        _log.exception("the result of %s is not JSON", target)
        channel.send("failed", problem=problem_of(error))


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
        context.cancel()
        if work.unfinished_tasks:
            time.sleep(_ORPHAN_GRACE_S)
        kill_tree(os.getpid(), include_self=False)
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
