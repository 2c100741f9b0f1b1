"""Ranks by a launcher: the ``Launch`` of ``autosbp.torchrun`` for one key, which finds its ranks again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autosbp.errors import InputError
from autosbp.torchrun import Outcome
from service import tracing
from service.launchers._base import JobSpec, JobStatus, Launcher, UnavailableError

_POLL_S, _ASK_S, _LEAVE_S = 0.1, 0.5, 60.0
_TAIL_BYTES = 8000


@dataclass(frozen=True, slots=True)
class LaunchedRanks:
    """Starts the ranks of one trial on a cluster, as one job of ``key``, or waits for those that the key has already.

    Time limits count from the job's start; before it, a job may wait ``queue_timeout_s``. A cluster that does not answer is
    asked again for as long. An exception of ``poll`` leaves the job as it is: whoever has the key finds it again.

    Args:
        ranks_per_node: the ranks of a call are spread over nodes of this many; with None, all are on one.
        told: called with what the job is waiting for.
    """

    launcher: Launcher
    key: str
    ranks_per_node: int | None
    queue_timeout_s: float
    uses_gpus: bool = False
    interface: str | None = None
    told: Callable[[str], None] | None = None

    def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        num_ranks: int,
        log_path: Path,
        *,
        timeout_s: float,
        poll: Callable[[], bool] | None = None,
    ) -> Outcome:
        """See ``autosbp.torchrun.Launch``."""
        spec = self._spec(module, arguments, num_ranks, log_path, timeout_s)
        until_s = time.monotonic() + self.queue_timeout_s
        with tracing.span(f"ranks {module}", launcher=self.launcher.name, key=self.key, num_ranks=num_ranks):
            ended = self._follow(spec, until_s, poll)
        if isinstance(ended, str):
            with suppress(UnavailableError):  # the mark in the job's folder ends it, too; why is what counts
                self.launcher.cancel(self.key)
                self._wait_until_gone()
            return Outcome(ended, self._tail())
        return Outcome("" if ended.state == "succeeded" else ended.reason or ended.state, self._tail())

    def _spec(self, module: str, arguments: Sequence[str], num_ranks: int, log_path: Path, timeout_s: float) -> JobSpec:
        per_node = self.ranks_per_node or num_ranks
        if num_ranks % per_node:
            raise InputError("num_ranks", num_ranks, f"a multiple of the {per_node} ranks of a node is expected")
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
        )

    def _follow(self, spec: JobSpec, until_s: float, poll: Callable[[], bool] | None) -> JobStatus | str:
        """The status at the job's end, or why it is not waited for any longer."""
        with ExitStack() as waiting:
            return self._wait(spec, until_s, poll, waiting)

    def _wait(
        self, spec: JobSpec, until_s: float, poll: Callable[[], bool] | None, waiting: ExitStack
    ) -> JobStatus | str:
        found: JobStatus | None = None
        asked_s, told = -_ASK_S, ""
        while True:
            if poll is not None and not poll():
                return "cancelled"
            if time.monotonic() - asked_s > _ASK_S:
                asked_s = time.monotonic()
                try:
                    if found is None:
                        found = self._begun(spec)
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
                    return f"it has not started within {self.queue_timeout_s:g} s"
                if found is not None and found.state == "running":
                    until_s = max(until_s, asked_s + spec.time_limit_s)
                if words != told and self.told is not None:
                    told = words
                    self.told(words)
            time.sleep(_POLL_S)

    def _begun(self, spec: JobSpec) -> JobStatus:
        """The key's job. One that is there already goes on with the limits that it was begun with."""
        if (found := self.launcher.find(self.key)) is not None:
            return found
        with tracing.span("launcher submit"):
            spec = replace(spec, env={**spec.env, **tracing.environment()})
            return self.launcher.submit(spec, self.key)

    def _wait_until_gone(self) -> None:
        """No process is left where the cluster ends a job in time; where it does not, its time limit does."""
        until_s = time.monotonic() + _LEAVE_S
        while time.monotonic() < until_s:
            found = self.launcher.find(self.key)
            if found is None or found.is_final:
                return
            time.sleep(_POLL_S)

    def _tail(self) -> str:
        return self.launcher.logs(self.key)[-_TAIL_BYTES:].decode(errors="replace").strip()
