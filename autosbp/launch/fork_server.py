"""Starts the ranks of one machine: ``python -m autosbp.launch.fork_server NUM_RANKS MODULE ARGUMENTS...``.

Like torchrun on one node, with the same environment variables, but torch and the module's other imports are loaded
once: ranks are forks of this process, made before torch starts a thread or touches a device. Importing them in torchrun
and in each rank takes 12 processor seconds for four ranks; this takes 3. As with torchrun, this process serves the
store, a rank that fails ends the others, and the exit code is 0 only if every rank's is.

On Linux no rank outlives this process, however it ends. If ``AUTOSBP_OWNER`` (a process id) is set, this process stops
its ranks once its parent is no longer that process: ranks of a killed command would use the processor for minutes, or
hang forever.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from autosbp.launch.heartbeats import last_position
from autosbp.launch.local import OWNER_VARIABLE
from autosbp.utils.forking import die_with_parent

_ADDRESS = "127.0.0.1"
_GRACE_S = 10.0
_POLL_S = 0.02
_ERRORS_S = 1.0
_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def main(num_ranks: int, module: str, arguments: Sequence[str]) -> int:
    """Start the ranks and return the exit code; in a rank, return when its program has ended."""
    gc.disable()  # imported objects never become garbage: do not search them here, nor, once frozen, in a rank
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exists, but is not exported by name

    owner, own = os.environ.pop(OWNER_VARIABLE, None), os.getpid()
    _preload_imports(module)
    gc.freeze()
    listening = socket.create_server((_ADDRESS, 0))
    port = listening.getsockname()[1]
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # no signal is lost or hits a rank that is starting
    ranks: dict[int, int] = {}
    for rank in range(num_ranks):
        pid = os.fork()
        if pid == 0:
            die_with_parent(own)
            gc.enable()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
            listening.close()
            os.environ.update(_environment(rank, num_ranks, port))
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return 0
        ranks[pid] = rank
    store = TCPStore(_ADDRESS, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    try:
        return _watch(ranks, owner, store)
    finally:
        _stop_ranks(ranks)
        del store


def _preload_imports(module: str) -> None:
    """Import the modules at the top of its file; leave import errors to the ranks, which import them again."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    for node in ast.parse(Path(spec.origin).read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        for name in names:
            with suppress(ImportError):
                importlib.import_module(name)


def _environment(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets. The last two tell torch that the store is not rank 0's."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def _watch(ranks: dict[int, int], owner: str | None, store: Any) -> int:
    """Wait for the ranks and remove each that ends from ``ranks``.

    Returns:
        0 if all succeed; 1 at the first failure, when this process is asked to stop, or when its owner is gone.
    """
    while ranks:
        if signal.sigtimedwait(_STOP_SIGNALS, _POLL_S) is not None or owner not in (None, str(os.getppid())):
            return 1
        ended = [(ranks.pop(pid), pid, code) for pid, code in _reap(ranks).items()]  # all of them: each has been reaped
        for rank, pid, code in ended:
            if code != 0:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
                words = f"rank {rank} (process {pid}) {how}{last_position(store, rank)}\n"
                _await_errors(ranks)
                sys.stderr.write(words)  # at the end of the log, which is what error messages quote
                return 1
    return 0


def _await_errors(ranks: dict[int, int]) -> None:
    """Let the remaining ranks notice that one is gone: their errors say which collective they were in."""
    until_s = time.monotonic() + _ERRORS_S
    while ranks and time.monotonic() < until_s:
        for pid in _reap(ranks):
            del ranks[pid]
        time.sleep(_POLL_S)


def _reap(ranks: dict[int, int]) -> dict[int, int]:
    """Exit codes of the processes that have ended since the last call; the negative signal number after a signal."""
    found = {}
    for pid in ranks:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            found[pid] = os.waitstatus_to_exitcode(status)
    return found


def _stop_ranks(ranks: dict[int, int]) -> None:
    """Ask the remaining ranks to stop, suspended ones too; kill them after the grace period."""
    deadline_s = time.monotonic() + _GRACE_S
    for number in (signal.SIGTERM, signal.SIGCONT):
        for pid in ranks:
            os.kill(pid, number)
    while ranks:
        for pid in _reap(ranks):
            del ranks[pid]
        if time.monotonic() > deadline_s:
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
