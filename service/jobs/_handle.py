"""The runner's side of a worker process: start it, talk to it, end it with everything that it started."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from typing import Any

from service.jobs._channel import Channel
from service.jobs._processes import TAG, kill_tree

_REAPER_S = 5.0


class Worker:
    """One worker process under its reaper. Belongs to one thread at a time.

    Args:
        owner: the id of the worker (this service) that every process below is marked with.
    """

    def __init__(self, owner: str) -> None:
        ours, theirs = multiprocessing.Pipe(duplex=True)
        end, self._lifeline = os.pipe()
        descriptors = (theirs.fileno(), end)
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "service.jobs._reaper", *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, TAG: owner},
        )
        theirs.close()
        os.close(end)
        self._channel = Channel(ours)

    @property
    def pid(self) -> int:
        """The process id of the reaper, below which everything is."""
        return self._process.pid

    def send(self, op: str, **members: Any) -> None:
        """Send one message; ``OSError`` when the process is gone."""
        self._channel.send(op, **members)

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, or None after ``timeout_s``; ``EOFError`` or ``OSError`` when the process is gone."""
        return self._channel.receive() if self._channel.poll(timeout_s) else None

    def kill(self) -> int:
        """End the process and its descendants at once; its exit status."""
        self._channel.close()
        if self._process.poll() is None:
            kill_tree(self._process.pid, include_self=False)  # and the reaper tells how its child ended
            try:
                self._process.wait(_REAPER_S)
            except subprocess.TimeoutExpired:
                kill_tree(self._process.pid)
        os.close(self._lifeline)
        return self._process.wait()


def _has_descriptor() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
