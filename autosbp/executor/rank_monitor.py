"""Watchdog of a rank: ends the job if another rank is suspended, dead or unreachable, and names that rank.

A collective waits for its slowest rank until the timeout of its process group, by default 30 minutes. The watchdog
notices sooner: its thread writes a heartbeat to the job's store every second, also while the rank computes, and reads the
heartbeat of the next rank. If that is older than ``SILENCE_S``, the process prints the name of the lost rank and the
last positions of both ranks, and exits. The launcher (``autosbp.launch.fork_server`` or torchrun) then ends the other
ranks or restarts all of them.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from autosbp.errors import InputError
from autosbp.executor.runtime import Runtime
from autosbp.launch.heartbeats import ENDED, Heartbeat

SILENCE_S = 25.0
"""Default number of seconds without a heartbeat after which a rank counts as lost."""
VARIABLE = "AUTOSBP_RANK_SILENCE_S"
"""Environment variable that overrides ``SILENCE_S``; 0 disables the watchdog, for example in a debugger."""
EXIT_CODE = 75
_INTERVAL_S = 1.0
_STORE_TIMEOUT = timedelta(seconds=5)


class RankMonitor:
    """Watchdog thread of this rank, which runs from ``start`` to ``stop`` or the end of the process.

    Args:
        runtime: runtime of the rank; heartbeats have its step and last collective.
        silence_s: see ``SILENCE_S``; None for the value of the environment variable ``VARIABLE``.
    """

    def __init__(self, runtime: Runtime, silence_s: float | None = None) -> None:
        self._runtime = runtime
        self._silence_s = _silence_of_environment() if silence_s is None else silence_s
        self._rank, self._next = dist.get_rank(), (dist.get_rank() + 1) % dist.get_world_size()
        self._ended, self._number = threading.Event(), 0
        self._thread = threading.Thread(target=self._run, name="rank monitor", daemon=True)

    def start(self) -> RankMonitor:
        """Start the thread, unless there is only one rank or the watchdog is disabled."""
        if self._silence_s > 0 and self._next != self._rank:
            self._store = _own_connection()
            self._beat().write(self._store, self._rank)
            self._thread.start()
            atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """End the thread, and tell the other ranks that this one sends no more heartbeats."""
        atexit.unregister(self.stop)
        if self._thread.is_alive():
            self._ended.set()
            self._thread.join(2 * _STORE_TIMEOUT.total_seconds())

    def _run(self) -> None:
        heard_s = began_s = time.monotonic()
        last: Heartbeat | None = None
        while not self._ended.wait(_INTERVAL_S):
            now_s = time.monotonic()
            if now_s - began_s > self._silence_s / 2:  # this process itself was suspended: wait for new heartbeats
                heard_s = now_s
            began_s, reason = now_s, "does not answer"
            try:
                self._beat().write(self._store, self._rank)
                found = Heartbeat.read(self._store, self._next)
                if found is None or found != last or found.state == ENDED:
                    last, heard_s = found, now_s
            except (RuntimeError, ValueError) as error:  # the store's server is gone, or its host
                reason = f"does not answer: {error}"
                last = None
            if now_s - heard_s > self._silence_s:
                self._end_job(last, now_s - heard_s, reason)
        self._write_end()

    def _beat(self, state: str = "running") -> Heartbeat:
        self._number += 1
        issued = self._runtime.issued[-1:]  # a single read, because the main thread clears the list
        last = (issued[0].kind, issued[0].num_bytes, issued[0].ranks) if issued else ("", 0, ())
        return Heartbeat(self._number, os.getpid(), socket.gethostname(), state, self._runtime.step, *last)

    def _write_end(self) -> None:
        try:
            self._beat(ENDED).write(self._store, self._rank)
        except (RuntimeError, ValueError):
            return  # the store is gone, so no other rank can read it

    def _end_job(self, lost: Heartbeat | None, silent_s: float, reason: str) -> None:
        if lost is None:
            words = f"the job's store {reason}"
        else:
            where = f"process {lost.process} on {lost.host}"
            words = f"rank {self._next} ({where}) has been silent for {silent_s:.0f} s: suspended, dead or unreachable"
            words += f"; last heard {lost.position}"
        own = self._beat().position
        sys.stderr.write(f"{words}\nrank {self._rank} ends the job {own} ({VARIABLE}={self._silence_s:g})\n")
        sys.stderr.flush()
        os._exit(EXIT_CODE)


def _silence_of_environment() -> float:
    text = os.environ.get(VARIABLE, str(SILENCE_S))
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if found < 0 or found != found:
        raise InputError(VARIABLE, text, "expected a number of seconds, 0 for no limit")
    return found


def _own_connection() -> Any:
    """A separate connection to the job's store, because the default one may block for minutes."""
    store: Any = _get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    own = store.clone()
    own.set_timeout(_STORE_TIMEOUT)
    return own
