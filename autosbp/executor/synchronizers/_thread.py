"""Communication thread of a rank: runs calls one after another, in the order of submission."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import torch

_Job = tuple[Callable[[], Any], Future[None]]


class CommunicationThread:
    """A worker thread that ends when this object is garbage-collected. A call's error is raised by its future."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # A daemon thread: a rank that fails elsewhere exits without waiting for messages that never arrive.
        threading.Thread(target=_run, args=(self._jobs,), daemon=True, name="synchronizers").start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, call: Callable[[], Any]) -> Future[None]:
        """Run a call after all earlier ones."""
        future: Future[None] = Future()
        self._jobs.put((call, future))
        return future

    def drain(self) -> None:
        """Wait for all calls so far."""
        self.submit(lambda: None).result()


def _run(jobs: SimpleQueue[_Job | None]) -> None:
    with torch.no_grad():
        while (job := jobs.get()) is not None:
            call, future = job
            try:
                call()
                future.set_result(None)
            except BaseException as error:  # noqa: BLE001 - raised where the result is read
                future.set_exception(error)
            del job, call, future
