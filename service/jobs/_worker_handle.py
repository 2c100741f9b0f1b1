"""The runner's side of a worker process: start it, talk to it, and kill it with everything it started."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from autosbp.sandbox import oom_first_command
from autosbp.sandbox.environment import filter_environment
from autosbp.service.jobs._json_channel import Channel
from autosbp.service.jobs._processes import WORKER_VARIABLE, kill_tree

_REAPER_S = 5.0


class Worker:
    """One worker process under its supervisor. Used by one thread at a time.

    Args:
        owner: id of this worker; the environment of every process below carries it.
        variables: names of additional environment variables. Besides these it gets only those of
            ``autosbp.sandbox.environment`` and OTEL_*, and no secrets of the service.
    """

    def __init__(self, owner: str, variables: Sequence[str] = ()) -> None:
        ours, theirs = multiprocessing.Pipe(duplex=True)
        end, self._lifeline = os.pipe()
        descriptors = (theirs.fileno(), end)
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        try:
            self._process = subprocess.Popen(
                [
                    *oom_first_command(),
                    sys.executable,
                    "-m",
                    "autosbp.service.jobs._process_supervisor",
                    *map(str, descriptors),
                ],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
                env={
                    **filter_environment(os.environ, (*_tracing(), *variables)),
                    "PYTHONPATH": path,
                    WORKER_VARIABLE: owner,
                },
            )
        except OSError:
            os.close(self._lifeline)
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(end)
        self._channel = Channel(ours)

    @property
    def pid(self) -> int:
        """Process id of the supervisor, the ancestor of all the others."""
        return self._process.pid

    def send(self, op: str, **members: Any) -> None:
        """Send one message; raise ``OSError`` if the process is gone."""
        self._channel.send(op, **members)

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Wait up to ``timeout_s`` for the next message; None if there is none.

        Raises ``EOFError`` or ``OSError`` if the process is gone.
        """
        return self._channel.receive() if self._channel.poll(timeout_s) else None

    def kill(self) -> int:
        """Kill the process and its descendants at once and return the exit status."""
        self._channel.close()
        if self._process.poll() is None:
            kill_tree(self._process.pid, include_self=False)  # the supervisor then reports how the worker process ended
            try:
                self._process.wait(_REAPER_S)
            except subprocess.TimeoutExpired:
                kill_tree(self._process.pid)
        os.close(self._lifeline)
        return self._process.wait()


def _tracing() -> list[str]:
    """Variables of the OpenTelemetry exporter, so that the process sends spans of its own."""
    return [name for name in os.environ if name.startswith("OTEL_")]


def _has_descriptor() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
