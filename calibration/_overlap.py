"""How much computing and communication slow each other down while both run.

All ranks run one of the run's ops over and over, another one in each round, for as long as an all-reduce over all of them,
or a message from each rank of the first half to one of the second, is surely under way: no shorter than alone. How much
less they get done than with nothing beside them is the slow-down of compute, however large; how long a burst takes that is
waited for would say no more than how long the communication was. What the all-reduce takes longer than alone it lost while
they computed: of these seconds it used 1 / (1 + network).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from autosbp.costmodel.overlap import Overlap
from calibration._budget import OVERLAP_S
from calibration._collectives import gather_series, largest, wait_for_device
from calibration._request import OVERLAP, Request
from calibration._sharing import typical_calls

NUM_ROUNDS, LEAST_ROUNDS = 9, 3
LEAST_S = 0.1
"""What is begun takes so long alone: many slices of a scheduler that ranks and their messages share."""
UNDER_WAY = 0.8
"""Of what it takes alone, the part in which ranks compute."""
SHORT = 0.1
"""Of ``LEAST_S``: ops that take longer, all ranks at once, would end long after it."""
_SMALLEST, _LARGEST = 2**16, 2**27

_Begin = Callable[[torch.Tensor], Any]
"""Begins to send a tensor; the answer's ``wait`` ends it."""


def measure_overlap(request: Request, device: torch.device, log: Any, made: set[str]) -> None:
    """Measure and log the slow-downs, unless that is in ``made``; the same on all ranks."""
    if OVERLAP in made:
        return
    log.write({"begin": OVERLAP})
    burst, *ops = typical_calls(request, device)
    calls = [burst, *(call for call in ops if _short(call, device))]
    compute, network = _slow_downs(partial(dist.all_reduce, async_op=True), calls, device, log)
    message = _slow_downs(_send_across, calls, device, log)[0] if dist.get_world_size() > 1 else 0.0
    log.write({"overlap": {"compute": compute, "network": network, "message": message}})


def _short(call: Callable[[], object], device: torch.device) -> bool:
    """All ranks at once, when it is warm; the same on all of them."""
    seconds = 0.0
    for _ in range(2):
        largest(0.0, device)
        started = time.perf_counter()
        call()
        wait_for_device(device)
        seconds = largest(time.perf_counter() - started, device)
    return seconds <= SHORT * LEAST_S


class _Nothing:
    def wait(self) -> None:
        """There is nothing to wait for."""


def _send_across(message: torch.Tensor) -> Any:
    """From each rank of the first half to one of the second; a last odd one does nothing."""
    half, here = dist.get_world_size() // 2, dist.get_rank()
    if here < half:
        return dist.isend(message, here + half)
    return dist.irecv(message, here - half) if here < 2 * half else _Nothing()


@dataclass(frozen=True)
class _Round:
    """What all ranks got done in ``window_s``, alone and beside the communication; what this took alone and beside it."""

    done: float
    beside: float
    window_s: float
    alone_s: float
    together_s: float


def _slow_downs(
    begin: _Begin, calls: Sequence[Callable[[], object]], device: torch.device, log: Any
) -> tuple[float, float]:
    """Of what computes, and of what is begun."""
    message = _message(begin, device)
    rounds: list[_Round] = []
    started_s = time.monotonic()
    while len(rounds) < LEAST_ROUNDS or (
        len(rounds) < NUM_ROUNDS and largest(time.monotonic() - started_s, device) < OVERLAP_S / 2
    ):
        log.beat()
        rounds.append(_round(begin, message, calls[len(rounds) % len(calls)], device))
    compute = median(each.done / max(each.beside, 1e-9) for each in rounds) - 1.0
    lost = median((each.together_s - each.alone_s) / each.window_s for each in rounds)
    network = max(lost, 0.0) / max(1.0 - lost, 1e-9)
    return min(max(compute, 0.0), Overlap.HIGH), min(network, Overlap.HIGH)


def _message(begin: _Begin, device: torch.device) -> torch.Tensor:
    """One that takes at least ``LEAST_S``, or the largest."""
    size = _SMALLEST
    while True:
        message = torch.zeros(size // 4, device=device)
        if _alone_s(begin, message, device) >= LEAST_S or size >= _LARGEST:
            return message
        size *= 2


def _round(begin: _Begin, message: torch.Tensor, call: Callable[[], object], device: torch.device) -> _Round:
    alone_s = _alone_s(begin, message, device)
    window_s = UNDER_WAY * alone_s
    largest(0.0, device)
    done = _done(call, window_s, device)
    largest(0.0, device)
    started = time.perf_counter()
    work = begin(message)
    beside = _done(call, window_s, device)
    work.wait()
    wait_for_device(device)
    together_s = time.perf_counter() - started
    rows = gather_series([done, beside, together_s], device)
    return _Round(
        sum(row[0] for row in rows), sum(row[1] for row in rows), window_s, alone_s, max(row[2] for row in rows)
    )


def _done(call: Callable[[], object], window_s: float, device: torch.device) -> float:
    """Calls a second, for so long; on a GPU each waits for itself, not for what else the device does."""
    started, count = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - started) < window_s or not count:
        call()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        count += 1
    return count / passed_s


def _alone_s(begin: _Begin, message: torch.Tensor, device: torch.device) -> float:
    """Of the slowest rank."""
    largest(0.0, device)
    started = time.perf_counter()
    begin(message).wait()
    wait_for_device(device)
    return largest(time.perf_counter() - started, device)
