"""Measure the extra time of a collective when ranks come to it from computation.

In a benchmark, ranks have nothing to do besides the collective. In a step they come from computation. Ranks with a
machine of their own arrive at nearly the same time; ranks that share cores arrive one after another, and while one
waits for a message another computes in its place. A message's alpha and beta do not include this.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, pvariance
from typing import Any

import torch
import torch.distributed as dist

from autosbp.calibration._arrival_skew import ArrivalSkew
from autosbp.calibration._budget import RunBudget
from autosbp.calibration._collectives import all_gather_series, all_reduce_max, message_bytes, prepare, wait_for_device
from autosbp.calibration._request import ArrivalDelay, Request, arrival_delays

NUM_BYTES = 16384
BURST_S = 0.004  # seconds, about the time of one op
NUM_CALLS = 12
NUM_ROUNDS, MIN_ROUNDS = 5, 2
_SIZE = 192
_HALF_PI = math.pi / 2
"""Variance of a median relative to the variance of a mean (pi / 2)."""


def measure_arrival_delays(request: Request, device: torch.device, log: Any, made: set[str], budget: RunBudget) -> None:
    """Measure and log all waiting times that are not in ``made``; collective over all ranks.

    The rounds of one measurement are interleaved with those of all others, so that a disturbance of some seconds spoils
    one round of each, not all rounds of one. There are fewer rounds if the time box is too small.
    """
    missing = [waiting for waiting in arrival_delays(request) if waiting.name not in made]
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
            if number < MIN_ROUNDS or own.spent_s < box_s:
                log.write({"begin": waiting.name})
                own.measure()
                log.beat()
    found: dict[tuple[int, ...], dict[str, Sequence[float]]] = {}
    for waiting, own in zip(missing, rounds, strict=True):
        found.setdefault(waiting.placement.group_shape, {})[waiting.kind] = own.delays_s
    waited = {shape: pooled_delay_s(of_kinds) for shape, of_kinds in found.items()}
    for waiting in missing:
        shape, kind = waiting.placement.group_shape, waiting.kind
        log.write({"begin": waiting.name})
        log.write({"waiting": {"kind": kind, "group_shape": list(shape), "seconds": waited[shape][kind]}})
    for _, group in groups.values():
        dist.destroy_process_group(group)


def pooled_delay_s(found_s: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Seconds of extra time per collective over one group shape, at least 0, from the results of its rounds.

    A round is the difference of three much longer times, so on shared cores rounds scatter widely. Ranks mostly wait
    for each other rather than for the collective. Therefore the median over kinds is the common value, and each kind's
    deviation from it counts only as far as kinds differ more than rounds do (a random-effects estimate; DerSimonian and
    Laird 1986). ``p2p``, which leaves some ranks idle, is not pooled.
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
    """Return a call that computes for about ``BURST_S`` on a core of its own; it does the same work on all ranks."""
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
    repeats = int(all_reduce_max(float(count), device))

    def run() -> object:
        return [product() for _ in range(repeats)]

    return run


def _make_groups(all_ranks: list[list[int]]) -> tuple[list[int], Any]:
    made = [(ranks, dist.new_group(ranks)) for ranks in all_ranks]
    return next((ranks, group) for ranks, group in made if dist.get_rank() in ranks)


class _Rounds:
    """Measurement rounds of one collective over one placement.

    ``found_s`` has one value per round: (time of computation and collective alternating, minus the time of each alone)
    per call. It and ``spent_s`` come from the slowest rank, so they are equal on all ranks.
    """

    def __init__(
        self,
        request: Request,
        waiting: ArrivalDelay,
        burst: Callable[[], object],
        mine: tuple[list[int], Any],
        device: torch.device,
    ) -> None:
        ranks, group = mine
        rows = request.cluster.mesh().axes[waiting.placement.axes[0]].size
        self._call = prepare(waiting.kind, message_bytes(NUM_BYTES, len(ranks)), ranks, rows, group, device)
        self._arrival = ArrivalSkew.of(waiting.kind, request.backend, ranks.index(dist.get_rank()), len(ranks))
        self._burst, self._device, self._turn = burst, device, 0
        self.delays_s: list[float] = []
        self.spent_s = 0.0

    def measure(self) -> None:
        """Run one round: computation and collective alternating, then each alone."""
        together, computing, communicating = (
            _slowest_s(run, self._device)
            for run in (self._compute_then_communicate, self._burst, self._communicate_alone)
        )
        self.spent_s += together + computing + communicating
        communicating -= NUM_CALLS * self._arrival.late_s
        self._turn += 1
        self.delays_s.append((together - computing - communicating) / NUM_CALLS)

    def _compute_then_communicate(self) -> None:
        self._burst()
        self._call()

    def _communicate_alone(self) -> None:
        self._arrival.come(self._turn)
        self._call()


def _slowest_s(run: Callable[[], object], device: torch.device) -> float:
    run()
    wait_for_device(device)
    all_reduce_max(0.0, device)
    started = time.perf_counter()
    for _ in range(NUM_CALLS):
        run()
    wait_for_device(device)
    passed = time.perf_counter() - started
    return max(seconds for (seconds,) in all_gather_series([passed], device))
