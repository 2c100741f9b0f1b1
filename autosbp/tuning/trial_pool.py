"""Pool of ranks that keep running between trials, so that a trial costs its steps and no start of torch.

Caller and ranks communicate through files in a shared folder: ``request-N.json`` requests trial N, ``result-N.json`` is
its result, and ``stop`` ends the ranks. Files are renamed to these names once they are complete.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autosbp.errors import InputError, TrialError
from autosbp.executor.trial import check_strategy, imported_libraries
from autosbp.graph.ir import LogicalGraph
from autosbp.launch.local import MAX_LOCAL_RANKS, Launch, RankOutcome, check_devices, log_tail, run_ranks
from autosbp.plan.plan import Strategy
from autosbp.sandbox.regular_files import read_regular
from autosbp.utils.json_io import canonical, check_integer, loads

WORKER = "autosbp.tuning.pool_worker"
READY, STOP = "ready", "stop"
_POLL_S = 0.01
_END_S = 20.0
_START_S = 180.0
_LIFETIME_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class TrialEffort:
    """Number of steps and time limits of each trial.

    Args:
        steps: maximum number of timed steps.
        warmup: number of untimed steps before them.
        max_s: seconds, warm-up included, after which no further step starts; at least one step is timed.
        timeout_s: seconds after which a trial fails.
    """

    steps: int = 5
    warmup: int = 1
    max_s: float = 2.0
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_integer("steps", self.steps, 1, 100_000)
        check_integer("warmup", self.warmup, 1, 10_000)
        for name in ("max_s", "timeout_s"):
            if not 0 < getattr(self, name) <= _LIFETIME_S:
                raise InputError(name, getattr(self, name), f"expected more than 0 and at most {_LIFETIME_S:g} seconds")

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in TrialEffort.__slots__}


class TrialPool:
    """Runs trials of one graph's strategies, one after another, on ranks that keep running.

        with TrialPool(graph, 4, folder) as pool:
            result = pool.measure(strategy)

    The first trial starts the ranks. If a rank fails, or a trial exceeds ``effort.timeout_s``, all ranks are ended, and the
    next trial starts new ones.

    Args:
        graph: the graph in the precision of the strategies.
        num_ranks: number of devices of every strategy.
        folder: folder for requests, results and logs; each start of the ranks makes a subfolder ``start-N``.
        device_kind: ``cpu`` or ``cuda``.
        effort: steps and time limits of each trial.
        seed: seed of parameters and batches.
        launch: starts the ranks; by default all on this machine.
        libraries: modules that every rank imports first, because they define the graph's custom ops.
        tf32, deterministic: settings of the plan.
        cancelled: polled many times a second; returning True ends the trial and the ranks.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        num_ranks: int,
        folder: Path,
        *,
        device_kind: str = "cpu",
        effort: TrialEffort | None = None,
        seed: int = 0,
        launch: Launch = run_ranks,
        libraries: Sequence[str] = (),
        tf32: bool = False,
        deterministic: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        check_integer("cluster", num_ranks, 1, MAX_LOCAL_RANKS)
        if device_kind == "cuda":
            check_devices("cluster", device_kind, launch, num_ranks)
        self.graph, self.num_ranks, self.folder, self.effort = graph, num_ranks, folder, effort or TrialEffort()
        self.launch, self.cancelled = launch, cancelled
        self.starts = 0
        """Number of subfolders ``start-N`` so far."""
        self._setup = {
            "graph": graph.to_dict(), "seed": seed, "libraries": imported_libraries(graph, libraries), "tf32": tf32,
            "device": device_kind, "deterministic": deterministic,
        }  # fmt: skip
        self._ranks: _RunningRanks | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.end()

    def measure(self, strategy: Strategy) -> dict[str, Any]:
        """Train under a strategy and measure its steps.

        Returns:
            ``times_s`` (step times in seconds, of the slowest rank), ``step_time_s`` (their median), ``iqr_s`` (their
            interquartile range), ``losses``, ``loss_difference`` (largest relative difference from training on one device),
            ``loss_spread`` (relative spread of the loss over random seeds; 0 without random ops), ``collectives_match``.

        Raises:
            InputError: the strategy does not fit the graph or the number of ranks; the ranks keep running.
            UnsupportedError: no executor can run the strategy; the ranks keep running.
            TrialError: a rank failed, or the trial timed out or was cancelled; the message has the end of the log.
        """
        if strategy.num_devices != self.num_ranks:
            raise InputError("strategy", strategy.num_devices, f"expected a strategy for {self.num_ranks} devices")
        check_strategy(self.graph, strategy)
        ranks = self._ranks or self._start()
        self._ranks = None  # set again once the trial has succeeded
        try:
            result = ranks.run(strategy, self.effort, self.cancelled)
        except BaseException:
            ranks.abort()
            raise
        self._ranks = ranks
        return result

    def _start(self) -> _RunningRanks:
        folder = self.folder / f"start-{self.starts}"
        while folder.exists():  # left by an earlier run of the same search
            self.starts += 1
            folder = self.folder / f"start-{self.starts}"
        self.starts += 1
        folder.mkdir(parents=True)
        (folder / "setup.json").write_bytes(canonical(self._setup))
        return _RunningRanks(folder, self.num_ranks, self.launch)


class _RunningRanks:
    """One start of the ranks. A thread calls ``launch``, which returns when the ranks have ended."""

    def __init__(self, folder: Path, num_ranks: int, launch: Launch) -> None:
        self.folder, self.log_path = folder, folder / "ranks.log"
        self._aborted, self._outcome, self._num_trials = threading.Event(), list[RankOutcome](), 0

        def run() -> None:
            try:
                outcome = launch(
                    WORKER, [str(folder)], num_ranks, self.log_path, timeout_s=_LIFETIME_S,
                    poll=lambda: not self._aborted.is_set(),
                )  # fmt: skip
            except Exception as error:
                outcome = RankOutcome(f"the ranks could not be started: {error}", log_tail(self.log_path))
            self._outcome.append(outcome)

        self._thread = threading.Thread(target=run, name=f"ranks of {folder.name}", daemon=True)
        self._thread.start()

    def run(self, strategy: Strategy, effort: TrialEffort, cancelled: Callable[[], bool]) -> dict[str, Any]:
        """Run one trial and return its result; raises ``TrialError``."""
        self._wait_for(self.folder / READY, _START_S, cancelled)
        number, self._num_trials = self._num_trials, self._num_trials + 1
        write_atomically(self.folder / f"request-{number}.json", {"strategy": strategy.to_dict(), **effort.to_dict()})
        answer = self.folder / f"result-{number}.json"
        self._wait_for(answer, effort.timeout_s, cancelled)
        result: dict[str, Any] = loads(read_regular(answer), "trial result")
        for path in (answer, self.folder / f"request-{number}.json"):
            path.unlink()
        return result

    def _wait_for(self, path: Path, timeout_s: float, cancelled: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            if not self._thread.is_alive():
                outcome = self._outcome[0]
                raise _trial_error(outcome.reason or "the ranks ended", outcome.log_tail)
            if cancelled():
                raise _trial_error("cancelled", log_tail(self.log_path))
            if time.monotonic() > deadline:
                raise _trial_error(f"timed out after {timeout_s:g} s", log_tail(self.log_path))
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Ask idle ranks to end; end them by force if they do not within ``_END_S``."""
        with suppress(OSError):
            (self.folder / STOP).touch()
        self._thread.join(_END_S)
        self.abort()

    def abort(self) -> None:
        """End the ranks by force and wait until they have ended."""
        self._aborted.set()
        self._thread.join()


def _trial_error(reason: str, log: str) -> TrialError:
    return TrialError(f"{reason}\nlast lines of the ranks' log:\n{log}")


def write_atomically(path: Path, document: object) -> None:
    """Write a JSON file under another name, then rename it to ``path``."""
    draft = path.with_suffix(".draft")
    draft.write_bytes(canonical(document))
    draft.replace(path)
