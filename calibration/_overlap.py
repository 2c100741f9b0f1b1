"""Measure how much computation and communication slow each other down when they overlap.

All ranks run one of the run's ops repeatedly, a different op in each round, while an all-reduce over all ranks is in
flight, or a message from each rank of the first half to one of the second. They compute for less time than the
communication takes alone, so it is in flight throughout. The ratio of completed calls without and with the
communication gives the slow-down of compute, however large. Timing a fixed burst would instead measure the duration of
the communication. The all-reduce loses time only while the ranks compute; its rate during these seconds is
1 / (1 + network) of its rate alone.
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

from autosbp.calibration._budget import OVERLAP_S
from autosbp.calibration._collectives import all_gather_series, all_reduce_max, wait_for_device
from autosbp.calibration._core_contention import sample_op_calls
from autosbp.calibration._request import OVERLAP, Request
from autosbp.costmodel.overlap import Overlap

NUM_ROUNDS, LEAST_ROUNDS = 9, 3
MIN_COMMUNICATION_S = 0.1
"""Minimum seconds of a communication alone: many scheduler slices that ranks and their messages share."""
COMPUTE_FRACTION = 0.8
"""Fraction of the communication's time alone during which ranks compute."""
MAX_OP_FRACTION = 0.1
"""Fraction of ``MIN_COMMUNICATION_S``. A longer op, with all ranks at once, would end long after the communication."""
_SMALLEST, _LARGEST = 2**16, 2**27

_StartCommunication = Callable[[torch.Tensor], Any]
"""Starts to send a tensor; ``wait`` of the returned work completes it."""


def measure_overlap(request: Request, device: torch.device, log: Any, made: set[str]) -> None:
    """Measure and log the slow-downs, unless they are in ``made``; collective over all ranks."""
    if OVERLAP in made:
        return
    log.write({"begin": OVERLAP})
    burst, *ops = sample_op_calls(request, device)
    calls = [burst, *(call for call in ops if _short(call, device))]
    compute, network = _slow_downs(partial(dist.all_reduce, async_op=True), calls, device, log)
    message = _slow_downs(_send_across, calls, device, log)[0] if dist.get_world_size() > 1 else 0.0
    log.write({"overlap": {"compute": compute, "network": network, "message": message}})


def _short(call: Callable[[], object], device: torch.device) -> bool:
    """Whether a warm call is short enough, with all ranks at once; equal on all ranks."""
    seconds = 0.0
    for _ in range(2):
        all_reduce_max(0.0, device)
        started = time.perf_counter()
        call()
        wait_for_device(device)
        seconds = all_reduce_max(time.perf_counter() - started, device)
    return seconds <= MAX_OP_FRACTION * MIN_COMMUNICATION_S


class _CompletedWork:
    def wait(self) -> None:
        """Return at once."""


def _send_across(message: torch.Tensor) -> Any:
    """Send from each rank of the first half to one of the second; an odd last rank does nothing."""
    half, here = dist.get_world_size() // 2, dist.get_rank()
    if here < half:
        return dist.isend(message, here + half)
    return dist.irecv(message, here - half) if here < 2 * half else _CompletedWork()


@dataclass(frozen=True)
class _Round:
    """Rates and times of one round.

    Attributes:
        done: calls per second of all ranks without communication.
        beside: calls per second of all ranks during the communication.
        window_s: seconds that the ranks computed.
        alone_s: seconds of the communication alone.
        together_s: seconds of the communication overlapped with computation.
    """

    done: float
    beside: float
    window_s: float
    alone_s: float
    overlapped_s: float


def _slow_downs(
    begin: _StartCommunication, calls: Sequence[Callable[[], object]], device: torch.device, log: Any
) -> tuple[float, float]:
    """Slow-downs of the computation and of the communication."""
    message = _message(begin, device)
    rounds: list[_Round] = []
    started_s = time.monotonic()
    while len(rounds) < LEAST_ROUNDS or (
        len(rounds) < NUM_ROUNDS and all_reduce_max(time.monotonic() - started_s, device) < OVERLAP_S / 2
    ):
        log.beat()
        rounds.append(_round(begin, message, calls[len(rounds) % len(calls)], device))
    compute = median(each.done / max(each.beside, 1e-9) for each in rounds) - 1.0
    lost = median((each.overlapped_s - each.alone_s) / each.window_s for each in rounds)
    network = max(lost, 0.0) / max(1.0 - lost, 1e-9)
    return min(max(compute, 0.0), Overlap.HIGH), min(network, Overlap.HIGH)


def _message(begin: _StartCommunication, device: torch.device) -> torch.Tensor:
    """A message that takes at least ``MIN_COMMUNICATION_S``, or the largest one."""
    size = _SMALLEST
    while True:
        message = torch.zeros(size // 4, device=device)
        if _alone_s(begin, message, device) >= MIN_COMMUNICATION_S or size >= _LARGEST:
            return message
        size *= 2


def _round(
    begin: _StartCommunication, message: torch.Tensor, call: Callable[[], object], device: torch.device
) -> _Round:
    alone_s = _alone_s(begin, message, device)
    window_s = COMPUTE_FRACTION * alone_s
    all_reduce_max(0.0, device)
    done = _calls_per_s(call, window_s, device)
    all_reduce_max(0.0, device)
    started = time.perf_counter()
    work = begin(message)
    beside = _calls_per_s(call, window_s, device)
    work.wait()
    wait_for_device(device)
    together_s = time.perf_counter() - started
    rows = all_gather_series([done, beside, together_s], device)
    return _Round(
        sum(row[0] for row in rows), sum(row[1] for row in rows), window_s, alone_s, max(row[2] for row in rows)
    )


def _calls_per_s(call: Callable[[], object], window_s: float, device: torch.device) -> float:
    """Calls per second during ``window_s``; on a GPU each call waits for its own stream, not for the whole device."""
    started, count = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - started) < window_s or not count:
        call()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        count += 1
    return count / passed_s


def _alone_s(begin: _StartCommunication, message: torch.Tensor, device: torch.device) -> float:
    """Seconds of the communication alone, on the slowest rank."""
    all_reduce_max(0.0, device)
    started = time.perf_counter()
    begin(message).wait()
    wait_for_device(device)
    return all_reduce_max(time.perf_counter() - started, device)
