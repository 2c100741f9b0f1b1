"""Append-only file of a search's trials (JSON lines), from which the search resumes after a crash.

The first line identifies the search: model, cluster and options. A run with the same first line resumes; any other is
refused. An incomplete last line, left by a crash, is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autosbp.errors import InputError
from autosbp.tuning.strategy_space import Choices
from autosbp.utils.json_io import Fields, canonical, digest, loads
from autosbp.utils.tempdirs import lock_folder

SCHEMA = "autosbp.trials/1"
TRIALS_FILE = "trials.jsonl"


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured strategy.

    Args:
        origin: where the strategy comes from: ``plan``, the name of a baseline, ``sampled``, ``mutated`` or ``tpe``;
            ``confirmed`` for the second, longer trial of a strategy.
        strategy: the strategy as JSON values.
        predicted: its predicted costs (``Costs.to_dict``).
        choices: its point in the space; None for the plan and its baselines.
        score: score by the ranking model before the trial, higher is faster; None if no model ranked it.
        step_time_s: median of the measured step times; None if the trial failed.
        error: why the trial failed, with the end of the log; None if it succeeded.
        measured: result of ``TrialPool.measure``, and ``wall_s``, the seconds that the trial took.
    """

    origin: str
    strategy: Mapping[str, Any]
    predicted: Mapping[str, Any]
    choices: Choices | None = None
    score: float | None = None
    step_time_s: float | None = None
    error: str | None = None
    measured: Mapping[str, Any] | None = None

    @property
    def strategy_id(self) -> str:
        """Hash of the strategy."""
        return strategy_id(self.strategy)

    def to_dict(self) -> dict[str, Any]:
        document = {name: getattr(self, name) for name in Trial.__slots__ if getattr(self, name) is not None}
        return document if self.choices is None else {**document, "choices": self.choices.to_dict()}

    @staticmethod
    def from_dict(data: object, path: str = "trial") -> Trial:
        read = Fields(data, path, tuple(Trial.__slots__))
        return Trial(
            read.text("origin"),
            read.mapping("strategy"),
            read.mapping("predicted"),
            Choices.from_dict(read.raw("choices"), read.at("choices")) if read.has("choices") else None,
            read.raw("score", None),
            read.number("step_time_s") if read.has("step_time_s") else None,
            read.raw("error", None),
            read.raw("measured", None),
        )


def strategy_id(document: Mapping[str, Any]) -> str:
    """Hash of a strategy's JSON document."""
    return digest(document)


class TrialStore:
    """Stored trials of one search, in a folder that is locked against other processes.

    Args:
        folder: folder of the search; created if it does not exist.
        about: identity of the search as JSON values: model, cluster and options.

    Raises:
        InputError: another process uses the folder, or it has the trials of another search.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / TRIALS_FILE
        self._lock = lock_folder(folder)
        if self._lock is None:
            raise InputError("workdir", str(folder), "expected a folder that no other search uses")
        try:
            self._trials = self._read(about)
            self._file = self.path.open("ab")
            if not self._file.tell():
                self._write({"schema": SCHEMA, **about})
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def trials(self) -> Sequence[Trial]:
        """All trials, oldest first."""
        return self._trials

    def append(self, trial: Trial) -> None:
        """Store a trial; it is on the disk when this returns."""
        self._write(trial.to_dict())
        self._trials.append(trial)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        assert self._lock is not None
        os.close(self._lock)

    def _write(self, document: Mapping[str, Any]) -> None:
        self._file.write(canonical(document) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, about: Mapping[str, Any]) -> list[Trial]:
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            os.truncate(self.path, sum(map(len, lines[:-1])))
            del lines[-1]
        if not lines:
            return []
        found, wanted = loads(lines[0], "trials"), loads(canonical({"schema": SCHEMA, **about}), "trials")
        if found != wanted:
            changed = next(name for name in {**found, **wanted} if found.get(name) != wanted.get(name))
            limit = f"its trials are of another search, with {changed} {found.get(changed)!r}; give another folder"
            raise InputError("workdir", str(self.path.parent), limit)
        return [Trial.from_dict(loads(line, "trials"), f"trials[{at}]") for at, line in enumerate(lines[1:])]


def read_trials(folder: Path) -> list[Trial]:
    """Read the trials of a folder without locking it.

    Raises:
        InputError: the folder has no trials file.
    """
    path = folder / TRIALS_FILE
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise InputError("workdir", str(folder), f"expected the folder of a search ({error.strerror})") from None
    complete = [line for line in lines[1:] if line.endswith(b"\n")]
    return [Trial.from_dict(loads(line, "trials"), f"trials[{at}]") for at, line in enumerate(complete)]
