"""How much longer a collective takes where ranks come to it from computation.

Measured alone, ranks have nothing else to do at a collective. In a step they come from computation: on a machine of their
own at nearly the same time, but those that share cores one after the other, and while one waits for a message another one
computes in its place. Neither shows in a message's alpha and beta.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from calibration._arrival import Arrival
from calibration._budget import RunBudget
from calibration._collectives import gather_series, largest, message_bytes, prepare, wait_for_device
from calibration._request import Request, Waiting, waitings

NUM_BYTES = 16384
BURST_S = 0.004  # about the time of an op
NUM_CALLS = 12
NUM_ROUNDS, LEAST_ROUNDS = 5, 2
_SIZE = 192


def measure_waiting(request: Request, device: torch.device, log: Any, made: set[str], budget: RunBudget) -> None:
    """Measure and log every one that is not in ``made``; the same on all ranks. Rounds of one lie apart, all others between
    them: what disturbs the machine for some seconds spoils a round of each, not all rounds of one. Fewer where the time box
    does not hold all."""
    missing = [waiting for waiting in waitings(request) if waiting.name not in made]
    if not missing:
        return
    burst = computation(device)
    groups: dict[tuple[int, ...], tuple[list[int], Any]] = {}
    for waiting in missing:
        axes = waiting.placement.axes
        if axes not in groups:
            groups[axes] = _make_groups(request.cluster.mesh().all_groups(axes))
    rounds = [_Rounds(request, waiting, burst, groups[waiting.placement.axes], device) for waiting in missing]
    box_s = min(request.point_s, budget.waiting_s(len(missing)))
    for number in range(NUM_ROUNDS):
        for waiting, own in zip(missing, rounds, strict=True):
            if number < LEAST_ROUNDS or own.spent_s < box_s:
                log.write({"begin": waiting.name})
                own.measure()
                log.beat()
    for waiting, own in zip(missing, rounds, strict=True):
        shape = list(waiting.placement.group_shape)
        log.write({"begin": waiting.name})
        log.write({"waiting": {"kind": waiting.kind, "group_shape": shape, "seconds": own.waiting_s}})
    for _, group in groups.values():
        dist.destroy_process_group(group)


def computation(device: torch.device) -> Callable[[], object]:
    """A call that computes for about ``BURST_S`` where this rank is alone on its core; the same work on all ranks."""
    one = torch.randn(_SIZE, _SIZE, device=device)

    def product() -> object:
        return one @ one

    product()
    wait_for_device(device)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < BURST_S:
        product()
        wait_for_device(device)
        count += 1
    repeats = int(largest(float(count), device))

    def run() -> object:
        return [product() for _ in range(repeats)]

    return run


def _make_groups(all_ranks: list[list[int]]) -> tuple[list[int], Any]:
    made = [(ranks, dist.new_group(ranks)) for ranks in all_ranks]
    return next((ranks, group) for ranks, group in made if dist.get_rank() in ranks)


class _Rounds:
    """One collective over one placement. ``spent_s`` is the slowest rank's, so the same on all."""

    def __init__(
        self,
        request: Request,
        waiting: Waiting,
        burst: Callable[[], object],
        mine: tuple[list[int], Any],
        device: torch.device,
    ) -> None:
        ranks, group = mine
        rows = request.cluster.mesh().axes[waiting.placement.axes[0]].size
        self._call = prepare(waiting.kind, message_bytes(NUM_BYTES, len(ranks)), ranks, rows, group, device)
        self._arrival = Arrival.of(waiting.kind, request.backend, ranks.index(dist.get_rank()), len(ranks))
        self._burst, self._device, self._turn = burst, device, 0
        self._found: list[float] = []
        self.spent_s = 0.0

    def measure(self) -> None:
        """One round: both in turns, and each by itself."""
        together, computing, communicating = (
            _slowest_s(run, self._device) for run in (self._both, self._burst, self._apart)
        )
        self.spent_s += together + computing + communicating
        communicating -= NUM_CALLS * self._arrival.late_s
        self._turn += 1
        self._found.append((together - computing - communicating) / NUM_CALLS)

    def _both(self) -> None:
        self._burst()
        self._call()

    def _apart(self) -> None:
        self._arrival.come(self._turn)
        self._call()

    @property
    def waiting_s(self) -> float:
        """Median over rounds of the time of both in turns less that of each; of the slowest rank, and not below 0."""
        return max(median(self._found), 0.0)


def _slowest_s(run: Callable[[], object], device: torch.device) -> float:
    run()
    wait_for_device(device)
    largest(0.0, device)
    started = time.perf_counter()
    for _ in range(NUM_CALLS):
        run()
    wait_for_device(device)
    passed = time.perf_counter() - started
    return max(seconds for (seconds,) in gather_series([passed], device))
