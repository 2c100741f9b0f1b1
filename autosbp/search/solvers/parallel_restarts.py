"""Independent parts of one search, such as restarts, on two processes, with the result of a serial run.

Parts are numbered. Each has a ``SolverState`` of its own on the common clock, and its own random numbers
(``part_generator``); its result depends on its number and on its evaluation budget. Whichever process is free runs the
next part (``autosbp.utils.parallel``), and all are joined in order: a part that used more evaluations than the parts
before it left runs again with that budget. So assignment, cost, evaluations and the costs of the trace are those of one
process; times are as measured."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, replace
from functools import partial
from mmap import mmap

import numpy as np

from autosbp.search.solvers.solver_state import SolverState
from autosbp.utils.parallel import MAX_TASKS, run_parallel
from autosbp.utils.serialization import serializable

Part = Callable[[int, SolverState], float]
"""Runs a part by its number; returns a number that the searcher collects from each part."""
MIN_PARALLEL_S = 0.1
"""Remaining work from which a second process is worth its start. A fork takes 5 to 30 ms."""

TIMING_S = 0.01
"""Time that parts run in this process before it is used to estimate the others."""


@serializable
@dataclass(frozen=True)
class RestartResult:
    """Result of a part. ``is_cut``: whether a limit ended it. ``note``: the number that it returned."""

    assignment: tuple[int, ...] | None
    trace: tuple[tuple[float, float], ...]
    evaluations: int
    is_cut: bool
    metric: float


def part_generator(seed: int, part: int) -> np.random.Generator:
    """Random numbers of one part, independent of those of the others."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(part,)))


def run_parts(run: SolverState, part: Part, count: int | None = None, each_s: float | None = None) -> list[float]:
    """Run parts 0, 1, ... until there are ``count``, or ``run`` must stop.

    Args:
        count: None for as many as the limits of ``run`` allow.
        each_s: approximate seconds of a part. If None, the first parts, in this process, are timed.

    Returns:
        The number that each part returned.
    """
    board, notes = _SharedProgress(run), list[float]()
    began, before = time.perf_counter(), run.evaluations
    number, most = 0, math.inf if count is None else count
    while number < most and not run.should_stop():
        spent_s = time.perf_counter() - began
        if each_s is None and number and spent_s > TIMING_S:
            each_s = spent_s / number
        wave = 1
        if each_s is not None:
            likely = _expected_parts(
                most - number, run.remaining_evaluations, (run.evaluations - before) / max(number, 1)
            )
            wave = likely if each_s * likely >= MIN_PARALLEL_S else 1
        if board.run_wave(part, number, wave, notes):
            run.should_stop()
        number += wave
    return notes


def _expected_parts(parts: float, evaluations: int | None, of_each: float) -> int:
    """How many parts the remaining evaluations will probably suffice for.

    If a part's evaluations are unknown, a known number of parts share them evenly."""
    if evaluations is not None and of_each > 0.0:
        parts = min(parts, math.ceil(evaluations / of_each))
    elif evaluations is not None and math.isinf(parts):
        parts = 1
    return int(min(parts, MAX_TASKS))


class _SharedProgress:
    """Shared memory of two processes: whether the caller ended the search, and the best cost of the second process."""

    def __init__(self, run: SolverState) -> None:
        self._run, self._pid = run, os.getpid()
        self._shared: MutableSequence[float] | memoryview[float] = [0.0, math.inf]
        self._cost_s = math.inf  # best cost of parts in this process

    def run_wave(self, part: Part, first: int, count: int, notes: list[float]) -> bool:
        """Run and join ``count`` parts; returns whether the run cut one of them off, or skipped some."""
        if count > 1 and isinstance(self._shared, list):
            self._shared = memoryview(mmap(-1, 16)).cast("d")
            self._shared[1] = math.inf
        run, is_cut = self._run, False
        tasks = [partial(self._portion, part, at, run.remaining_evaluations) for at in range(first, first + count)]
        for at, found in enumerate(run_parallel(tasks, self._wait), first):
            left = run.remaining_evaluations
            if left == 0:
                return True
            if found is not None and left is not None and found.evaluations >= left and count > 1 and not self._stopped:
                found = self._portion(part, at, left)
            if found is None:
                is_cut = True
                continue
            run.join(found.assignment, found.trace, found.evaluations)
            notes.append(found.metric)
            is_cut = is_cut or found.is_cut
        return is_cut

    @property
    def _stopped(self) -> bool:
        run = self._run
        return run.stopped != "done" or run.remaining_s <= 0.0 or self._shared[0] != 0.0

    def _portion(self, part: Part, at: int, budget: int | None) -> RestartResult | None:
        """Run a part; None once the search is over."""
        if self._stopped:
            return None
        progress = None if self._run.options.progress is None else self._tell
        own = self._run.part(replace(self._run.options, max_evaluations=budget, progress=progress))
        note = part(at, own)
        return RestartResult(own.best, own.trace, own.evaluations, own.stopped != "done", note)

    def _wait(self) -> None:
        """Called while only the other process still works."""
        if self._run.is_report_due:
            self._tell(math.inf, -math.inf)

    def _tell(self, cost_s: float, _bound_s: float) -> bool:
        """The ``progress`` callback of a part. Only the first process calls the caller's."""
        self._cost_s = min(self._cost_s, cost_s)
        if os.getpid() != self._pid:
            self._shared[1] = self._cost_s
        elif self._run.stopped == "done":
            self._run.report(min(self._cost_s, self._shared[1]))
            self._shared[0] = float(self._run.stopped != "done")
        return self._shared[0] == 0.0
