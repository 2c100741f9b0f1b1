"""``python -m autosbp.testing.emulated``: run a module as the ranks of an emulated cluster, or clean up.

Exit codes: 0 success, 2 wrong usage or a machine without support, 4 a rank failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from autosbp.errors import AutosbpError, InputError
from autosbp.testing.emulated import EmulatedCluster, sweep, unavailable_reason
from autosbp.testing.emulated._cluster import FOLDERS
from autosbp.testing.emulated._launch import node_log
from autosbp.utils.json_io import canonical
from autosbp.utils.tempdirs import UNREPORTED_KEPT_S, temporary_folder

FAILED, INTERRUPTED = 4, 130


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.sweep and options.spec is None and options.module is None:
        parser.error("required: -- MODULE, --spec or --sweep")
    try:
        if options.sweep:
            return _sweep()
        cluster = EmulatedCluster(options.nodes, options.ranks, options.rate, options.delay)
        if options.spec is not None:
            _write(options.spec, canonical(cluster.spec.to_dict()) + b"\n")
            _say(f"wrote {options.spec}: {cluster.spec.name}")
        if options.module is None:
            return 0
        return _run(cluster, options.module, options.arguments, options.timeout)
    except AutosbpError as error:
        _say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m autosbp.testing.emulated",
        description="Run a module as the ranks of an emulated cluster: nodes are network namespaces with slow links.",
        usage="%(prog)s [options] [-- MODULE [ARGUMENTS ...]]",
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of each node")
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s of a node's link, each direction")
    parser.add_argument("--delay", type=float, default=0.0, help="latency between nodes in ms")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds")
    parser.add_argument("--spec", type=Path, metavar="FILE.json", help="write the cluster file for the planner")
    parser.add_argument("--sweep", action="store_true", help="remove leftovers of dead processes, then exit")
    parser.add_argument("module", nargs="?", metavar="MODULE")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    return parser


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        limit = f"expected a file in an existing, writable folder ({error.strerror})"
        raise InputError("spec", str(path), limit) from None


def _sweep() -> int:
    reason = unavailable_reason()
    if reason is not None:
        _say(f"error: {reason}")
        return 2
    removed = sweep()
    _say(f"removed {len(removed)} namespaces" + "".join(f"\n  {name}" for name in removed))
    return 0


def _run(cluster: EmulatedCluster, module: str, arguments: Sequence[str], timeout_s: float) -> int:
    """Run the ranks; stream node 0's output to standard output, and print the other nodes' output at the end."""
    with temporary_folder(FOLDERS, UNREPORTED_KEPT_S) as folder, cluster:
        log_path, shown = folder / "ranks.log", 0

        def follow() -> bool:
            nonlocal shown
            if log_path.exists():
                text = log_path.read_bytes()[shown:]
                shown += len(text)
                sys.stdout.buffer.write(text)
                sys.stdout.flush()
            return True

        outcome = cluster.launch(module, arguments, cluster.shape.num_ranks, log_path, timeout_s=timeout_s, poll=follow)
        follow()
        for node in range(1, cluster.shape.nodes):
            for line in node_log(log_path, node).read_text(errors="replace").splitlines():
                sys.stdout.write(f"[node {node}] {line}\n")
        sys.stdout.flush()
    if outcome.reason:
        _say(f"error: {outcome.reason}")
        return FAILED
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
