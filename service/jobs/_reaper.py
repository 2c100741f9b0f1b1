"""Starts the worker process and outlives it: nothing that a job starts outlives the service.

The reaper is the parent of the worker process and the new parent of every process that loses its own below it. It ends when
the worker process has ended or the service is gone - the pipe says so, whatever killed it - and before it ends it kills
what is left. It imports nothing and does nothing else, so that it is there when all else hangs.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

from service.jobs._processes import kill_tree

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ORPHAN_GRACE_S = 5.0


def main(pipe: int, lifeline: int) -> None:
    """Start the worker process on its ``pipe`` and wait for its end, or that of the service's end of ``lifeline``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the service's to handle
    command = [sys.executable, "-m", "service.jobs._worker", str(pipe)]
    if sys.platform != "linux":  # the worker process then looks after its descendants by itself
        os.execv(sys.executable, command)  # noqa: S606
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(lifeline)
        os.execv(sys.executable, command)  # noqa: S606
    os.close(pipe)
    _wait(child, lifeline)
    kill_tree(os.getpid(), include_self=False)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))  # so that the service sees how its worker process ended
    os._exit(os.waitstatus_to_exitcode(status))


def _wait(child: int, lifeline: int) -> None:
    end_of_child = os.pidfd_open(child)
    poll = select.poll()
    for descriptor in (end_of_child, lifeline):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    if end_of_child not in dict(
        poll.poll()
    ):  # the service is gone; the worker process knows it too and may stop in order
        poll.unregister(lifeline)
        poll.poll(1000 * _ORPHAN_GRACE_S)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
