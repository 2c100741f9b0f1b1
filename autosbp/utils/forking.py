"""Setup of forked processes: end with the parent, and drop unneeded privileges."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_OOM_STEP, _OOM_MOST = 250, 1000
_FILE_BYTES, _MEMORY_BYTES, _FIRST = 2**26, 8 * 2**30, 3


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process, just forked by ``parent``, when the thread that forked it ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended in between
            os._exit(1)


def drop_privileges(kept: int) -> None:
    """Restrict a forked process that runs native code on untrusted input, as far as the system can.

    It keeps only the descriptor ``kept`` and the standard ones. It gets no new privileges, at most 8 GiB more address
    space, no large files and no core file, and out of memory the kernel kills it before its parent.
    """
    os.closerange(_FIRST, kept)
    os.closerange(kept + 1, max(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _FILE_BYTES)):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    known = [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit != resource.RLIM_INFINITY]
    most = min([used + _MEMORY_BYTES, *known])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with suppress(OSError):
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(int(score.read_text()) + _OOM_STEP, _OOM_MOST)))
