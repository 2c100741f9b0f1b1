"""Start one torchrun in each node's namespace, watch them together, and kill the remaining processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from autosbp.launch.local import OWNER_VARIABLE, RankOutcome, log_tail, rank_environment, start, torchrun_command
from autosbp.sandbox.capped_log import capped_log
from autosbp.testing.emulated._network import INTERFACE, address, end_processes, in_namespace
from autosbp.testing.emulated._rank_errors import RankError, first_error
from autosbp.utils.tempdirs import UNREPORTED_KEPT_S, temporary_folder

_RANK_MODULE = "autosbp.testing.emulated._rank"
_ERRORS_PREFIX = "autosbp-ranks-"
_POLL_S = 0.1
_FAILURE_GRACE_S = 3.0  # after the first failure, for the other ranks to fail by themselves and record their errors
_STOP_S = 5.0
_KILLED = re.compile(r"\s*exitcode\s*:\s*-(\d+)")
_RANK = re.compile(r"\s*rank\s*:\s*(\d+)")


def node_log(log_path: Path, node: int) -> Path:
    """Log of a node: node 0 writes ``log_path``, node N a file next to it (``ranks.log``, ``ranks.node1.log``, ...)."""
    return log_path if node == 0 else log_path.with_name(f"{log_path.stem}.node{node}{log_path.suffix}")


def run_on_nodes(
    namespaces: Sequence[str],
    module: str,
    arguments: Sequence[str],
    ranks_per_node: int,
    log_path: Path,
    *,
    port: int,
    timeout_s: float,
    poll: Callable[[], bool] | None = None,
) -> RankOutcome:
    """Run the ranks of all nodes to their end; see ``autosbp.launch.local.Launch``.

    The reason of a failure contains the first error of a rank; the outcome's log has its traceback before the ends of
    the nodes' logs.
    """
    deadline = time.monotonic() + timeout_s
    logs = [node_log(log_path, node) for node in range(len(namespaces))]
    # C++ warns about every address without a name; nodes have none.
    env = {"TORCH_CPP_LOG_LEVEL": "ERROR", **rank_environment(INTERFACE), OWNER_VARIABLE: str(os.getpid())}
    with temporary_folder(_ERRORS_PREFIX, UNREPORTED_KEPT_S) as errors, ExitStack() as written:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for node, namespace in enumerate(namespaces):
                command = torchrun_command(
                    _RANK_MODULE,
                    [str(errors), module, *arguments],
                    ranks_per_node,
                    master=(address(0), port),
                    local_address=address(node),
                    num_nodes=len(namespaces),
                    node=node,
                )
                log = written.enter_context(capped_log(logs[node]))
                processes.append(start(in_namespace(namespace, command), log, env))
            reason = _watch(processes, deadline, timeout_s, poll)
        finally:
            _stop(processes, namespaces)
            written.close()
        return _outcome(reason, logs, first_error(errors))


def _watch(
    processes: Sequence[subprocess.Popen[bytes]], deadline: float, timeout_s: float, poll: Callable[[], bool] | None
) -> str:
    """Wait until all nodes end, one fails, time runs out or ``poll`` returns False; the reason, "" for success."""
    failed_at: float | None = None
    while any(process.poll() is None for process in processes):
        if poll is not None and not poll():
            return "cancelled"
        now = time.monotonic()
        if failed_at is None and any(process.poll() for process in processes):
            failed_at = now
        if failed_at is not None and now > failed_at + _FAILURE_GRACE_S:
            break
        if failed_at is None and now > deadline:
            return f"timed out after {timeout_s:g} s"
        time.sleep(_POLL_S)
    return "a rank failed" if any(process.returncode for process in processes) else ""


def _stop(processes: Sequence[subprocess.Popen[bytes]], namespaces: Sequence[str]) -> None:
    """Ask torchrun to stop its ranks, then kill the remaining processes in the nodes by process id."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for namespace in namespaces:
        end_processes(namespace)
    for process in processes:
        process.wait()


def _outcome(reason: str, logs: Sequence[Path], error: RankError | None) -> RankOutcome:
    parts = [f"node {node}:\n{text}" for node, path in enumerate(logs) if (text := log_tail(path))]
    if not reason:
        return RankOutcome("", "\n".join(parts))
    killed = _killed_rank("\n".join(parts)) if reason == "a rank failed" else None
    if killed is not None:
        reason = f"{reason}: {killed}"
    elif error is not None:
        reason = f"{reason}: rank {error.rank}: {error.summary}"
        parts.insert(0, error.traceback)
    return RankOutcome(reason, "\n".join(parts))


def _killed_rank(text: str) -> str | None:
    """The rank that a signal killed, from torchrun's summaries.

    SIGTERM does not count, because torchrun sends it to the other ranks.
    """
    rank = "?"
    for line in text.splitlines():
        if found := _RANK.match(line):
            rank = found[1]
        ended = _KILLED.match(line)
        if ended and int(ended[1]) != signal.SIGTERM:
            return f"rank {rank} was killed by {signal.Signals(int(ended[1])).name}"
    return None
