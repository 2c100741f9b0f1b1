"""Ranks started by a launcher: an ``autosbp.launch.local.Launch`` for one key, which finds its ranks again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autosbp.errors import InputError
from autosbp.launch.local import RankOutcome
from autosbp.service import tracing
from autosbp.service.launchers._base import JobSpec, JobStatus, Launcher, UnavailableError

_POLL_S, _STATUS_INTERVAL_S, _CANCEL_WAIT_S = 0.1, 0.5, 60.0
_TAIL_BYTES = 8000


@dataclass(frozen=True, slots=True)
class LaunchedRanks:
    """Starts the ranks of one trial on a cluster as one job, or waits for the key's existing job.

    Time limits count from the job's start; before it, a job may wait ``queue_timeout_s``. A cluster that does not
    answer is polled for as long. An exception raised by ``poll`` leaves the job running, and anyone with the key can
    find it again.

    Args:
        launcher: of the cluster.
        key: identifies the job.
        ranks_per_node: number of ranks per node; None puts all on one node.
        queue_timeout_s: seconds that the job may wait for its start.
        uses_gpus: whether each rank gets a GPU.
        interface: see ``JobSpec``.
        told: called with a description of the job's state whenever it changes.
        sandbox: see ``JobSpec``.
    """

    launcher: Launcher
    key: str
    ranks_per_node: int | None
    queue_timeout_s: float
    uses_gpus: bool = False
    interface: str | None = None
    told: Callable[[str], None] | None = None
    sandbox: Mapping[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        num_ranks: int,
        log_path: Path,
        *,
        timeout_s: float,
        poll: Callable[[], bool] | None = None,
    ) -> RankOutcome:
        """See ``autosbp.launch.local.Launch``."""
        spec = self._spec(module, arguments, num_ranks, log_path, timeout_s)
        until_s = time.monotonic() + self.queue_timeout_s
        with tracing.span(f"ranks {module}", launcher=self.launcher.name, key=self.key, num_ranks=num_ranks):
            ended = self._follow(spec, until_s, poll)
        if isinstance(ended, str):
            # the mark in the job's folder ends it too, and the original reason matters more
            with suppress(UnavailableError):
                self.launcher.cancel(self.key)
                self._wait_until_gone()
            return RankOutcome(ended, self._tail())
        return RankOutcome("" if ended.state == "succeeded" else ended.reason or ended.state, self._tail())

    def _spec(self, module: str, arguments: Sequence[str], num_ranks: int, log_path: Path, timeout_s: float) -> JobSpec:
        per_node = self.ranks_per_node or num_ranks
        if num_ranks % per_node:
            raise InputError("num_ranks", num_ranks, f"expected a multiple of the {per_node} ranks of a node")
        return JobSpec(
            module,
            tuple(arguments),
            log_path.resolve(),
            timeout_s,
            num_nodes=num_ranks // per_node,
            ranks_per_node=per_node,
            gpus_per_node=per_node if self.uses_gpus else 0,
            env={"OMP_NUM_THREADS": "1"},
            interface=self.interface,
            sandbox=self.sandbox,
        )

    def _follow(self, spec: JobSpec, until_s: float, poll: Callable[[], bool] | None) -> JobStatus | str:
        """The job's final status, or the reason to stop waiting for it."""
        with ExitStack() as waiting:
            return self._wait(spec, until_s, poll, waiting)

    def _wait(
        self, spec: JobSpec, until_s: float, poll: Callable[[], bool] | None, waiting: ExitStack
    ) -> JobStatus | str:
        found: JobStatus | None = None
        asked_s, told = -_STATUS_INTERVAL_S, ""
        while True:
            if poll is not None and not poll():
                return "cancelled"
            if time.monotonic() - asked_s > _STATUS_INTERVAL_S:
                asked_s = time.monotonic()
                try:
                    if found is None:
                        found = self._find_or_submit(spec)
                        waiting.enter_context(tracing.span("launcher wait", native_id=found.native_id))
                    else:
                        found = self.launcher.status(self.key)
                    words = f"{self.launcher.name}: {found.native_id} is {found.state} {found.reason}".strip()
                except UnavailableError as error:
                    words = str(error)
                    if asked_s > until_s:
                        raise
                if found is not None and found.is_final:
                    return found
                if asked_s > until_s and (found is None or found.state == "queued"):
                    return f"it did not start within {self.queue_timeout_s:g} s"
                if found is not None and found.state == "running":
                    until_s = max(until_s, asked_s + spec.time_limit_s)
                if words != told and self.told is not None:
                    told = words
                    self.told(words)
            time.sleep(_POLL_S)

    def _find_or_submit(self, spec: JobSpec) -> JobStatus:
        """Find or submit the key's job. An existing job keeps the limits it was started with."""
        if (found := self.launcher.find(self.key)) is not None:
            return found
        with tracing.span("launcher submit"):
            spec = replace(spec, env={**spec.env, **tracing.environment()})
            return self.launcher.submit(spec, self.key)

    def _wait_until_gone(self) -> None:
        """Wait for the job's processes to end; if the cluster is slow, the job's time limit ends them later."""
        until_s = time.monotonic() + _CANCEL_WAIT_S
        while time.monotonic() < until_s:
            found = self.launcher.find(self.key)
            if found is None or found.is_final:
                return
            time.sleep(_POLL_S)

    def _tail(self) -> str:
        return self.launcher.logs(self.key)[-_TAIL_BYTES:].decode(errors="replace").strip()
