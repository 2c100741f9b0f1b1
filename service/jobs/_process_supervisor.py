"""Supervisor of a worker process: no process that a job starts outlives the service.

The supervisor is the parent of the worker process and, as subreaper, of orphaned processes below it. It ends when the
worker process has ended or the service is gone, which closes a pipe whatever killed it. Before it ends it kills all
remaining descendants. It imports and does little, so that it still works when everything else hangs.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

from autosbp.service.jobs._processes import kill_tree

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ORPHAN_GRACE_S = 5.0


def main(pipe: int, lifeline: int) -> None:
    """Start the worker process and wait until it ends or the service is gone.

    Args:
        pipe: descriptor of the worker process's channel.
        lifeline: descriptor of a pipe whose other end the service holds open.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service handles Ctrl-C
    command = [sys.executable, "-m", "autosbp.service.jobs._worker_process", str(pipe)]
    if sys.platform != "linux":  # then the worker process looks after its descendants itself
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
        os.kill(os.getpid(), os.WTERMSIG(status))  # shows the service how the worker process ended
    os._exit(os.waitstatus_to_exitcode(status))


def _wait(child: int, lifeline: int) -> None:
    end_of_child = os.pidfd_open(child)
    poll = select.poll()
    for descriptor in (end_of_child, lifeline):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    if end_of_child not in dict(
        poll.poll()
    ):  # the service is gone; the worker process notices too and may stop cleanly
        poll.unregister(lifeline)
        poll.poll(1000 * _ORPHAN_GRACE_S)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
