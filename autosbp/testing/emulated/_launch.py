"""Starts one torchrun in each node's namespace, watches them together, and ends what is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from autosbp.scratch import UNTOLD_S, temporary_folder
from autosbp.testing.emulated._network import INTERFACE, address, end_processes, inside
from autosbp.testing.emulated._rank_errors import RankError, first_error
from autosbp.torchrun import OWNER, Outcome, environment, log_tail, start, torchrun_command

_RANK_MODULE = "autosbp.testing.emulated._rank"
_ERRORS_PREFIX = "autosbp-ranks-"
_POLL_S = 0.1
_LAST_WORDS_S = 3.0  # for the other ranks to fail by themselves, and to write down why, after the first failure
_STOP_S = 5.0
_KILLED = re.compile(r"\s*exitcode\s*:\s*-(\d+)")
_RANK = re.compile(r"\s*rank\s*:\s*(\d+)")


def node_log(log_path: Path, node: int) -> Path:
    """Node 0 writes to ``log_path``, node N beside it: ``ranks.log``, ``ranks.node1.log``, ..."""
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
) -> Outcome:
    """Run the ranks of all nodes to their end; see ``autosbp.torchrun.Launch``.

    The reason of a failure holds the first error of a rank, and the outcome's log its traceback before the ends of the
    nodes' logs.
    """
    deadline = time.monotonic() + timeout_s
    logs = [node_log(log_path, node) for node in range(len(namespaces))]
    # C++ warns of every address without a name; nodes have none.
    env = {"TORCH_CPP_LOG_LEVEL": "ERROR", **environment(INTERFACE), OWNER: str(os.getpid())}
    with temporary_folder(_ERRORS_PREFIX, UNTOLD_S) as errors:
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
                processes.append(start(inside(namespace, command), logs[node], env))
            reason = _watch(processes, deadline, timeout_s, poll)
        finally:
            _stop(processes, namespaces)
        return _outcome(reason, logs, first_error(errors))


def _watch(
    processes: Sequence[subprocess.Popen[bytes]], deadline: float, timeout_s: float, poll: Callable[[], bool] | None
) -> str:
    """Wait until all nodes end, one fails, time runs out or ``poll`` says no; the reason, "" after success."""
    failed_at: float | None = None
    while any(process.poll() is None for process in processes):
        if poll is not None and not poll():
            return "cancelled"
        now = time.monotonic()
        if failed_at is None and any(process.poll() for process in processes):
            failed_at = now
        if failed_at is not None and now > failed_at + _LAST_WORDS_S:
            break
        if failed_at is None and now > deadline:
            return f"timed out after {timeout_s:g} s"
        time.sleep(_POLL_S)
    return "a rank failed" if any(process.returncode for process in processes) else ""


def _stop(processes: Sequence[subprocess.Popen[bytes]], namespaces: Sequence[str]) -> None:
    """Ask torchrun to stop its ranks, then end by process id whatever is left in the nodes."""
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


def _outcome(reason: str, logs: Sequence[Path], error: RankError | None) -> Outcome:
    parts = [f"node {node}:\n{text}" for node, path in enumerate(logs) if (text := log_tail(path))]
    if not reason:
        return Outcome("", "\n".join(parts))
    killed = _killed_rank("\n".join(parts)) if reason == "a rank failed" else None
    if killed is not None:
        reason = f"{reason}: {killed}"
    elif error is not None:
        reason = f"{reason}: rank {error.rank}: {error.summary}"
        parts.insert(0, error.traceback)
    return Outcome(reason, "\n".join(parts))


def _killed_rank(text: str) -> str | None:
    """The rank that a signal ended, from torchrun's summaries. SIGTERM is torchrun's own way to end the others."""
    rank = "?"
    for line in text.splitlines():
        if found := _RANK.match(line):
            rank = found[1]
        ended = _KILLED.match(line)
        if ended and int(ended[1]) != signal.SIGTERM:
            return f"rank {rank} was ended by {signal.Signals(int(ended[1])).name}"
    return None
