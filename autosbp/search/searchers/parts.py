"""Independent parts of one search, such as restarts, on two cores: the answer is that of one part after the other.

Parts are numbered. Each has a ``Run`` of its own, on the clock of the whole, and random numbers of its own
(``part_generator``); what it finds depends on its number and on the evaluations that it may use. Whichever process is free runs
the next (``autosbp.beside``), and all are joined in their order: one that used more evaluations than those before it left runs
again with these. So assignment, cost, evaluations and the costs of the trace are those of one process; times are as measured.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, replace
from functools import partial
from mmap import mmap

import numpy as np

from autosbp.beside import MAX_TASKS, spread
from autosbp.handed import handed_over
from autosbp.search.searchers.run import Run

Part = Callable[[int, Run], float]
"""Runs the part of a number, and gives a number that the searcher wants of each."""
WORTH_S = 0.1
"""Of work left, from which on a second process is worth its start. A fork takes 5 to 30 ms."""

TRIED_S = 0.01
"""What parts take here before it is said how long the others will."""


@handed_over
@dataclass(frozen=True)
class Portion:
    """What a part found, whether a limit ended it, and ``note``, what it gave."""

    assignment: tuple[int, ...] | None
    trace: tuple[tuple[float, float], ...]
    evaluations: int
    is_cut: bool
    note: float


def part_generator(seed: int, part: int) -> np.random.Generator:
    """Random numbers of one part, independent of those of the others."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(part,)))


def run_parts(run: Run, part: Part, count: int | None = None, each_s: float | None = None) -> list[float]:
    """Run parts 0, 1, ... until there are ``count``, or ``run`` must stop; what each gave, of all that were run.

    Args:
        count: None for as many as the limits of ``run`` leave room for.
        each_s: about what a part takes. Where it is not known, the first ones, here, show it.
    """
    board, notes = _Board(run), list[float]()
    began, before = time.perf_counter(), run.evaluations
    number, most = 0, math.inf if count is None else count
    while number < most and not run.should_stop():
        spent_s = time.perf_counter() - began
        if each_s is None and number and spent_s > TRIED_S:
            each_s = spent_s / number
        wave = 1
        if each_s is not None:
            likely = _likely(most - number, run.left_evaluations, (run.evaluations - before) / max(number, 1))
            wave = likely if each_s * likely >= WORTH_S else 1
        if board.run_wave(part, number, wave, notes):
            run.should_stop()
        number += wave
    return notes


def _likely(parts: float, evaluations: int | None, of_each: float) -> int:
    """How many parts the evaluations left are likely to be enough for. Where it is not known what one uses, those of a known
    number share them evenly."""
    if evaluations is not None and of_each > 0.0:
        parts = min(parts, math.ceil(evaluations / of_each))
    elif evaluations is not None and math.isinf(parts):
        parts = 1
    return int(min(parts, MAX_TASKS))


class _Board:
    """What two processes tell each other while they work: that the caller ended the search, and the best cost of the second."""

    def __init__(self, run: Run) -> None:
        self._run, self._pid = run, os.getpid()
        self._shared: MutableSequence[float] | memoryview[float] = [0.0, math.inf]
        self._cost_s = math.inf  # of parts in this process

    def run_wave(self, part: Part, first: int, count: int, notes: list[float]) -> bool:
        """Run so many parts, and join them. Whether the run ended one of them, or some before their begin."""
        if count > 1 and isinstance(self._shared, list):
            self._shared = memoryview(mmap(-1, 16)).cast("d")
            self._shared[1] = math.inf
        run, is_cut = self._run, False
        tasks = [partial(self._portion, part, at, run.left_evaluations) for at in range(first, first + count)]
        for at, found in enumerate(spread(tasks, self._wait), first):
            left = run.left_evaluations
            if left == 0:
                return True
            if found is not None and left is not None and found.evaluations >= left and count > 1 and not self._stopped:
                found = self._portion(part, at, left)
            if found is None:
                is_cut = True
                continue
            run.join(found.assignment, found.trace, found.evaluations)
            notes.append(found.note)
            is_cut = is_cut or found.is_cut
        return is_cut

    @property
    def _stopped(self) -> bool:
        run = self._run
        return run.stopped != "done" or run.remaining_s <= 0.0 or self._shared[0] != 0.0

    def _portion(self, part: Part, at: int, budget: int | None) -> Portion | None:
        """Run a part; None once the search is over."""
        if self._stopped:
            return None
        progress = None if self._run.options.progress is None else self._tell
        own = self._run.part(replace(self._run.options, max_evaluations=budget, progress=progress))
        note = part(at, own)
        return Portion(own.best, own.trace, own.evaluations, own.stopped != "done", note)

    def _wait(self) -> None:
        """While the other process alone still works."""
        if self._run.is_due:
            self._tell(math.inf, -math.inf)

    def _tell(self, cost_s: float, _bound_s: float) -> bool:
        """The ``progress`` of a part. Only the first process tells the caller."""
        self._cost_s = min(self._cost_s, cost_s)
        if os.getpid() != self._pid:
            self._shared[1] = self._cost_s
        elif self._run.stopped == "done":
            self._run.report(min(self._cost_s, self._shared[1]))
            self._shared[0] = float(self._run.stopped != "done")
        return self._shared[0] == 0.0
