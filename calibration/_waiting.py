"""How much longer a collective takes where ranks come to it from computation.

Measured alone, ranks have nothing else to do at a collective. In a step they come from computation: on a machine of their
own at nearly the same time, but those that share cores one after the other, and while one waits for a message another one
computes in its place. Neither shows in a message's alpha and beta.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, pvariance
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
_HALF_PI = math.pi / 2
"""The variance of a median, in those of a mean."""


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
    found: dict[tuple[int, ...], dict[str, Sequence[float]]] = {}
    for waiting, own in zip(missing, rounds, strict=True):
        found.setdefault(waiting.placement.group_shape, {})[waiting.kind] = own.found_s
    waited = {shape: waiting_s(of_kinds) for shape, of_kinds in found.items()}
    for waiting in missing:
        shape, kind = waiting.placement.group_shape, waiting.kind
        log.write({"begin": waiting.name})
        log.write({"waiting": {"kind": kind, "group_shape": list(shape), "seconds": waited[shape][kind]}})
    for _, group in groups.values():
        dist.destroy_process_group(group)


def waiting_s(found_s: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Seconds of each collective over one group shape, not below 0, from those of its rounds.

    A round is the difference of three times that each are many times as long, and on shared cores far from the next. What
    ranks wait for is mostly not the collective but each other, so that what the medians of its kinds have in common is
    taken for all, and of what is left as much as rounds differ less than kinds (a random-effects estimate; DerSimonian
    and Laird 1986). ``p2p``, which leaves ranks idle, stands for itself.
    """
    own = {kind: median(seconds) for kind, seconds in found_s.items()}
    alike = [kind for kind in own if kind != "p2p"]
    if len(alike) > 1:
        common = median(own[kind] for kind in alike)
        noise = {kind: _HALF_PI * pvariance(found_s[kind]) / max(len(found_s[kind]) - 1, 1) for kind in alike}
        spread = sum((own[kind] - common) ** 2 for kind in alike) / (len(alike) - 1)
        between = max(spread - fmean(noise.values()), 0.0)
        for kind in alike:
            part = between / (between + noise[kind]) if between > 0.0 else 0.0
            own[kind] = common + part * (own[kind] - common)
    return {kind: max(seconds, 0.0) for kind, seconds in own.items()}


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
    """One collective over one placement. ``found_s`` has of each round the time of both in turns less that of each, for one
    call. That and ``spent_s`` are the slowest rank's, so the same on all."""

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
        self.found_s: list[float] = []
        self.spent_s = 0.0

    def measure(self) -> None:
        """One round: both in turns, and each by itself."""
        together, computing, communicating = (
            _slowest_s(run, self._device) for run in (self._both, self._burst, self._apart)
        )
        self.spent_s += together + computing + communicating
        communicating -= NUM_CALLS * self._arrival.late_s
        self._turn += 1
        self.found_s.append((together - computing - communicating) / NUM_CALLS)

    def _both(self) -> None:
        self._burst()
        self._call()

    def _apart(self) -> None:
        self._arrival.come(self._turn)
        self._call()


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
