"""Starts the ranks of one machine: ``python -m autosbp.forked NUM_RANKS MODULE ARGUMENTS...``.

What torchrun does on one node, in the same environment, but torch and what else the module imports is imported once:
ranks are forks of this process, made before torch has started a thread or touched a device. To import it in each rank
and in torchrun takes 12 processor seconds for four ranks, this 3. As with torchrun, the store is this process's, a rank
that fails ends the others, and the exit code is 0 only if every rank's is.

No rank outlives this process, however it ends, where Linux says so; and with ``AUTOSBP_OWNER`` (a process id) this ends
as if it were asked to stop when its parent is no longer that one: ranks of a command that was killed would take the
processor for minutes, or hang for ever.
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

from autosbp.end_with_parent import end_with_parent
from autosbp.torchrun import OWNER

_ADDRESS = "127.0.0.1"
_GRACE_S = 10.0
_POLL_S = 0.02
_STOPPING = {signal.SIGTERM, signal.SIGINT}


def main(num_ranks: int, module: str, arguments: Sequence[str]) -> int:
    """The exit code; in a rank, this returns when its program has ended."""
    gc.disable()  # nothing of what is imported becomes garbage: not searched for it here, nor, once frozen, in a rank
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # is there, but not named as exported

    owner, own = os.environ.pop(OWNER, None), os.getpid()
    _import_what_it_imports(module)
    gc.freeze()
    listening = socket.create_server((_ADDRESS, 0))
    port = listening.getsockname()[1]
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)  # none is missed, and none finds a rank half started
    ranks: dict[int, int] = {}
    for rank in range(num_ranks):
        pid = os.fork()
        if pid == 0:
            end_with_parent(own)
            gc.enable()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
            listening.close()
            os.environ.update(_environment(rank, num_ranks, port))
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return 0
        ranks[pid] = rank
    store = TCPStore(_ADDRESS, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    try:
        return _watch(ranks, owner)
    finally:
        _end(ranks)
        del store


def _import_what_it_imports(module: str) -> None:
    """The modules at the top of its file. What cannot be imported says so in the ranks, which import it again."""
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
    """What torchrun sets. The last two are for torch: the store is not rank 0's."""
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


def _watch(ranks: dict[int, int], owner: str | None) -> int:
    """Wait for the ranks, which are forgotten as they end: 0 where all end well, 1 at the first that fails or when this
    process is asked to stop or its owner is gone."""
    while ranks:
        if signal.sigtimedwait(_STOPPING, _POLL_S) is not None or owner not in (None, str(os.getppid())):
            return 1
        ended = [
            (ranks.pop(pid), pid, code) for pid, code in _ended(ranks).items()
        ]  # all: they are waited for, and gone
        for rank, pid, code in ended:
            if code != 0:
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
                sys.stderr.write(f"rank {rank} (process {pid}) {how}\n")
                return 1
    return 0


def _ended(ranks: dict[int, int]) -> dict[int, int]:
    """Exit codes of processes that have ended since; of one that a signal ended, its number below 0."""
    found = {}
    for pid in ranks:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            found[pid] = os.waitstatus_to_exitcode(status)
    return found


def _end(ranks: dict[int, int]) -> None:
    """Ask what is left to stop, a stopped one too; kill what does not."""
    deadline_s = time.monotonic() + _GRACE_S
    for number in (signal.SIGTERM, signal.SIGCONT):
        for pid in ranks:
            os.kill(pid, number)
    while ranks:
        for pid in _ended(ranks):
            del ranks[pid]
        if time.monotonic() > deadline_s:
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
