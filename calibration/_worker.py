"""What one rank does: measure every collective, then every op, and let rank 0 write each result as it is made.

Started by ``calibration._launch`` as ``torchrun -m calibration._worker REQUEST.json RESULTS.jsonl``; it also runs under
any other launcher that sets torchrun's environment. Lines of the results file are objects: ``{"request": ID}``, then
``{"ranks": [pid, ...]}``, ``{"begin": NAME}`` before each measurement and ``{"point": ...}``, ``{"waiting": ...}``,
``{"overlap": ...}``, ``{"sharing": ...}``, ``{"launches": ...}``, ``{"op": ...}`` or ``{"left_out": REASON}`` after it, and
``{"done": true}``.
What the file holds already is not measured again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.costmodel.op_bench import call_seconds, run_op
from autosbp.errors import AutosbpError, CalibrationError
from autosbp.gathering import bytes_from_rank_0
from autosbp.jsonio import canonical, loads
from autosbp.processes import end_rank, keep_to_cores
from calibration._arrival import Arrival
from calibration._budget import LEAST_OPS, MAX_START_S, VARIANT_SHARE, RunBudget, SeriesBudget
from calibration._collectives import (
    buffer_bytes,
    free_bytes,
    gather_series,
    largest,
    message_bytes,
    prepare,
    wait_for_device,
)
from calibration._launches import measure_launches
from calibration._overlap import measure_overlap
from calibration._placements import Placement
from calibration._request import MIN_SIZES, Measurement, Request, op_name, series
from calibration._results import Results, Series, parse_results
from calibration._sharing import measure_sharing
from calibration._timing import sample, slowest_rank_times, summary
from calibration._waiting import measure_waiting

_COLLECTIVE_BATCH_S = 0.005
_SPREAD_BYTES = {"cpu": 32 * 2**20, "cuda": 256 * 2**20}  # more than the caches that a rank has
# Several slices of the scheduler: ranks that share cores then share them within a batch. What a GPU's queue holds, on one.
_OP_BATCH_S = {"cpu": 0.02, "cuda": 2e-4}


def main(request_path: str, results_path: str) -> None:
    request = Request.from_dict(loads(Path(request_path).read_bytes()))
    device = _device(request.backend)
    if device.type == "cpu":
        keep_to_cores(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group(request.backend, timeout=timedelta(seconds=request.timeout_s))
    with Log(results_path if dist.get_rank() == 0 else os.devnull) as log:
        pids = gather_series([float(os.getpid())], device)
        log.write({"ranks": [int(pid[0]) for pid in pids]})
        known, before_s = _known(Path(results_path), device)
        began_s = time.monotonic() - before_s
        budget = RunBudget(request, known.made, lambda: largest(time.monotonic() - began_s, device))
        Collectives(request, device, log, known.points, known.made, budget).measure()
        measure_waiting(request, device, log, known.made, budget)
        measure_overlap(request, device, log, known.made)
        measure_sharing(request, device, log, known.made)
        measure_launches(device, log, known.made)
        _measure_ops(request, device, log, known.made, budget)
        log.write({"done": True})
    end_rank()


def _known(path: Path, device: torch.device) -> tuple[Results, float]:
    """What the results file holds, which is on rank 0's machine alone, and how many seconds ago the run was asked for by the
    clock of that machine; the same on all ranks."""
    told = b""
    if dist.get_rank() == 0:
        text = path.read_bytes()
        at_s = parse_results(text, path.name).at_s
        passed_s = 0.0 if at_s is None else time.time() - at_s
        told = canonical(min(max(passed_s, 0.0), MAX_START_S)) + b"\n" + text
    before_s, _, text = bytes_from_rank_0(told, device).partition(b"\n")
    return parse_results(text, path.name), float(loads(before_s))


class Log:
    """The results file. ``beat`` changes its time, which says that the ranks still answer one another."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed in __exit__
        self._path, self._device = path, path == os.devnull

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, record: dict[str, Any]) -> None:
        left = memoryview(canonical(record) + b"\n")
        try:
            while left:  # a disk that is nearly full takes a part, and says so at the next one
                left = left[self._file.write(left) :]
        except OSError as error:
            raise CalibrationError(f"{self._path} cannot be written: {error.strerror}") from None

    def beat(self) -> None:
        if not self._device:
            os.utime(self._file.fileno())


def _device(backend: str) -> torch.device:
    if backend != "nccl":
        return torch.device("cpu")
    local_rank, found = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local_rank >= found:
        raise CalibrationError(
            f"backend nccl: rank {local_rank} of this node has no device; {found} CUDA devices found"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


class Collectives:
    """The collective measurements of a run, as one rank makes them."""

    def __init__(
        self, request: Request, device: torch.device, log: Log, known: Any, made: set[str], budget: RunBudget
    ) -> None:
        self.request, self.device, self.log, self.known, self.made = request, device, log, known, made
        self.budget = budget
        self.axes: tuple[int, ...] | None = None
        self.groups: list[list[int]] = []
        self.mine: Any = None
        self.started_s = time.monotonic()

    def measure(self) -> None:
        """All series that are not complete; each gets its share of the time that is left."""
        open_series = [sizes for sizes in series(self.request) if not self.made.issuperset(one.name for one in sizes)]
        shares = [VARIANT_SHARE if sizes[0].placement.variant else 1.0 for sizes in open_series]
        for at, sizes in enumerate(open_series):
            self._series(sizes, SeriesBudget(self.budget.series_s(shares[at], sum(shares[at:])), len(sizes)))

    def _series(self, sizes: list[Measurement], budget: SeriesBudget) -> None:
        self._make_groups(sizes[0].placement)
        for point in self.known.get(Series.of(sizes[0]), ()):
            budget.took(point.num_bytes, point.median_s, 0.0)
        for at, measurement in enumerate(sizes):
            if measurement.name in self.made:
                continue
            self.log.write({"begin": measurement.name})
            reason = self._too_much(measurement, budget)
            if reason and at < MIN_SIZES:
                raise CalibrationError(f"{measurement.name}: {reason}; at least {MIN_SIZES} sizes are measured")
            self.log.write({"left_out": reason} if reason else {"point": self._point(measurement, budget)})

    def _now_s(self) -> float:
        """Seconds since the first series, the same on every rank."""
        return largest(time.monotonic() - self.started_s, self.device)

    def _make_groups(self, placement: Placement) -> None:
        if placement.axes == self.axes:
            return
        if self.mine is not None:
            dist.destroy_process_group(self.mine)
        self.axes, self.groups = placement.axes, self.request.cluster.mesh().all_groups(placement.axes)
        made = [dist.new_group(ranks) for ranks in self.groups]
        self.mine = next(group for group, ranks in zip(made, self.groups, strict=True) if dist.get_rank() in ranks)

    def _too_much(self, measurement: Measurement, budget: SeriesBudget) -> str | None:
        """Why a size cannot be measured, the same on every rank."""
        if largest(buffer_bytes(measurement.num_bytes) - free_bytes(self.device), self.device) > 0:
            return "memory does not hold it"
        if not budget.fits(measurement.num_bytes):
            return f"the time box of {self.request.budget_s:g} s does not hold it"
        return None

    def _point(self, measurement: Measurement, budget: SeriesBudget) -> dict[str, Any]:
        """Groups run the collective at once, the other ranks wait; a sample is the time of a group's slowest rank."""
        placement, began_s = measurement.placement, self._now_s()
        ranks = next(ranks for ranks in self.groups if dist.get_rank() in ranks)
        running = self.groups[: placement.num_groups]
        num_bytes = message_bytes(measurement.num_bytes, len(ranks))
        rows = self.request.cluster.mesh().axes[placement.axes[0]].size
        run, arrival = _wait, Arrival()
        if ranks in running:
            arrival = Arrival.of(measurement.kind, self.request.backend, ranks.index(dist.get_rank()), len(ranks))
            run = prepare(measurement.kind, num_bytes, ranks, rows, self.mine, self.device)
        box_s = budget.box_s(self.request.point_s)
        times = _times(run, self.request.repeats, box_s, arrival, self.device, self.log)
        point = summary(num_bytes, slowest_rank_times(gather_series(times, self.device), running), len(times))
        budget.took(num_bytes, point.median_s, self._now_s() - began_s)
        found = {"kind": measurement.kind, "group_shape": list(placement.group_shape), "values": point.to_list()}
        added = {"placement": placement.label, "num_groups": placement.num_groups}
        return found | {name: value for name, value in added.items() if value is not None}


def _wait() -> None:
    """What a rank does while others are measured: it meets them again before and after."""


def _measure_ops(request: Request, device: torch.device, log: Log, made: set[str], budget: RunBudget) -> None:
    """Every op that is not in ``made``, while the time box holds more; the first ones in any case."""
    missing = [key for key in request.op_keys if op_name(key) not in made]
    for at, key in enumerate(missing):
        log.write({"begin": op_name(key)})
        box_s = budget.op_s(len(missing) - at)
        if box_s <= 0 and at >= LEAST_OPS:
            log.write({"left_out": f"the time box of {request.budget_s:g} s does not hold it"})
        else:
            log.write({"op": {"key": key, **_op_times(request, key, box_s, device, log)}})


def _op_times(request: Request, key: str, box_s: float, device: torch.device, log: Log) -> dict[str, float]:
    """Medians over ranks and repeats, all ranks running at once as in a step; ``box_s`` seconds for the whole op."""
    began_s = time.monotonic()
    calls = run_op(key, str(device), _SPREAD_BYTES[device.type])
    left_s = box_s - largest(time.monotonic() - began_s, device)
    op_s = max(min(request.op_s, left_s / len(calls)), 0.0)
    seconds = {}
    for name, call in zip(("forward_s", "backward_s"), calls, strict=True):
        times = sample(
            call,
            together=_together(device, log),
            repeats=request.repeats,
            box_s=op_s,
            batch_s=min(_OP_BATCH_S[device.type], request.op_s),
            seconds_of=lambda call, count: call_seconds(call, count, str(device)),
        )
        by_rank = gather_series(times, device)
        seconds[name] = summary(0, [value for row in by_rank for value in row], len(times)).median_s
    return seconds


def _times(
    call: Callable[[], object], repeats: int, box_s: float, arrival: Arrival, device: torch.device, log: Log
) -> list[float]:
    def run() -> None:
        call()
        wait_for_device(device)

    return sample(
        run, together=_together(device, log), repeats=repeats, box_s=box_s, batch_s=_COLLECTIVE_BATCH_S, arrival=arrival
    )


def _together(device: torch.device, log: Log) -> Callable[[float], float]:
    def together(value: float) -> float:
        wait_for_device(device)
        log.beat()
        return largest(value, device)

    return together


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AutosbpError as error:  # said without where in this file it was found
        sys.exit(f"error: rank {os.environ['RANK']}: {error}")
