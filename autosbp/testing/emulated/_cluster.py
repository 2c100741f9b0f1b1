"""``EmulatedCluster``: nodes with real, slow links on one Linux machine."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from autosbp.cluster.spec import Cluster
from autosbp.errors import AutosbpError, InputError, UnsupportedError
from autosbp.launch.local import RankOutcome, rank_environment
from autosbp.testing.emulated import _network
from autosbp.testing.emulated._launch import run_on_nodes
from autosbp.testing.emulated._owners import Owner, this_process
from autosbp.testing.emulated._spec import Shape
from autosbp.utils.tempdirs import UNREPORTED_KEPT_S, temporary_folder

FOLDERS = "autosbp-emulated-"
"""Prefix of temporary folders for logs."""
_SWITCH_MODULE = "autosbp.testing.emulated._switch"
_FIRST_PORT, _NUM_PORTS = 29500, 1000
_SWITCH_END_S = 5.0
_serial = itertools.count(1)


class EmulatedCluster:
    """Network namespaces as nodes, connected by links of limited rate; torchrun starts the ranks of each node.

        with EmulatedCluster(nodes=2, ranks_per_node=2, rate_mbit=200) as cluster:
            outcome = cluster.run("package.module", ["argument"], timeout_s=120)
            calibration = calibrate(cluster.spec, launch=cluster.launch)

    Several may exist at once. Entering raises ``UnsupportedError`` if ``why_not()`` returns a reason, and removes
    leftovers of dead owners. Leaving kills every process in the nodes. In the main thread, SIGTERM and SIGHUP without
    another handler leave the block by ``SystemExit``, as SIGINT does by ``KeyboardInterrupt``. Without a delay the
    kernel limits the rate; a delay needs a small switch process, which uses part of a core.
    """

    def __init__(
        self, nodes: int = 2, ranks_per_node: int = 2, rate_mbit: float = 200.0, delay_ms: float = 0.0
    ) -> None:
        self.shape = Shape(nodes, ranks_per_node, rate_mbit, delay_ms)
        self._owner: Owner | None = None
        self._namespaces: list[str] = []
        self._switch: subprocess.Popen[bytes] | None = None
        self._ports = itertools.cycle(range(_FIRST_PORT, _FIRST_PORT + _NUM_PORTS))
        self._cleanup = ExitStack()
        self._running = threading.Lock()

    @staticmethod
    def of(cluster: Cluster) -> EmulatedCluster:
        """The emulated cluster that a cluster specification such as ``emulated:2x2`` describes."""
        shape = Shape.of(cluster)
        return EmulatedCluster(shape.nodes, shape.ranks_per_node, shape.rate_mbit, shape.delay_ms)

    @property
    def spec(self) -> Cluster:
        """The cluster's specification for the planner and the calibration."""
        return self.shape.spec()

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The nodes' network namespaces, in order."""
        return tuple(self._namespaces)

    def __enter__(self) -> Self:
        reason = _network.unavailable_reason()
        if reason is not None:
            raise UnsupportedError(reason)
        self._cleanup.enter_context(_leave_on_signals())
        try:
            _network.sweep()
            self._owner = this_process(next(_serial))
            self._namespaces = _network.make_nodes(self._owner, self.shape.nodes)
            if self.shape.delay_ms > 0:
                self._join_by_switch(self._owner)
            else:
                _network.join_by_bridge(self._owner, self._namespaces, self.shape.rate_mbit)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def launch(
        self,
        module: str,
        arguments: Sequence[str],
        num_ranks: int,
        log_path: Path,
        *,
        timeout_s: float,
        poll: Callable[[], bool] | None = None,
    ) -> RankOutcome:
        """Launch ranks; the ``autosbp.launch.local.Launch`` of this cluster. ``num_ranks`` must be all of its ranks.

        Node 0 logs to ``log_path`` and node N to a file next to it, ``ranks.nodeN.log`` for ``ranks.log``. Runs are
        serialised, because the end of a run kills every process in the nodes.
        """
        if self._owner is None:
            raise AutosbpError("an emulated cluster starts ranks only inside its with-block")
        if num_ranks != self.shape.num_ranks:
            raise InputError("num_ranks", num_ranks, f"expected {self.shape.num_ranks}, all ranks of the cluster")
        with self._running:
            return run_on_nodes(
                self._namespaces,
                module,
                arguments,
                self.shape.ranks_per_node,
                log_path,
                port=next(self._ports),
                timeout_s=timeout_s,
                poll=poll,
            )

    def run(
        self, module: str, arguments: Sequence[str] = (), *, timeout_s: float = 600.0, log_dir: Path | None = None
    ) -> RankOutcome:
        """Run a module as all ranks of the cluster; logs are kept only if ``log_dir`` is given."""
        with temporary_folder(FOLDERS, UNREPORTED_KEPT_S) as folder:
            log_path = (log_dir or folder) / "ranks.log"
            return self.launch(module, arguments, self.shape.num_ranks, log_path, timeout_s=timeout_s)

    def _join_by_switch(self, owner: Owner) -> None:
        command = [sys.executable, "-m", _SWITCH_MODULE, str(self.shape.rate_mbit), str(self.shape.delay_ms)]
        self._switch = subprocess.Popen(
            _network.in_namespace(owner.namespace("switch"), [*command, *self._namespaces]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=rank_environment(),
            start_new_session=True,
        )
        assert self._switch.stdout is not None  # noqa: S101 - it is a pipe
        if self._switch.stdout.readline() != b"ready\n":
            raise UnsupportedError("the user-space switch did not start; see its error on standard error")
        for node, namespace in enumerate(self._namespaces):
            _network.configure_interface(namespace, node)

    def _close(self) -> None:
        owner, self._owner, self._namespaces = self._owner, None, []
        try:
            if self._switch is not None:
                _end_switch(self._switch)
                self._switch = None
            if owner is not None:
                _network.remove(owner)
        finally:
            self._cleanup.close()


def _end_switch(switch: subprocess.Popen[bytes]) -> None:
    """Close the switch's input, which ends it; kill it after a timeout."""
    assert switch.stdin is not None and switch.stdout is not None  # noqa: S101 - they are pipes
    switch.stdin.close()
    switch.stdout.close()
    try:
        switch.wait(_SWITCH_END_S)
    except subprocess.TimeoutExpired:
        switch.kill()
        switch.wait()


@contextmanager
def _leave_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise ``SystemExit`` if they would otherwise kill the process without cleanup."""

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        signal.signal(number, signal.SIG_IGN)  # a second signal does not interrupt the cleanup
        raise SystemExit(128 + number)

    handled = []
    if threading.current_thread() is threading.main_thread():
        handled = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for each in handled:
        signal.signal(each, leave)
    try:
        yield
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
