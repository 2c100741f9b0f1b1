"""One calibration rank: measure every collective, then every op; rank 0 writes each result immediately.

Started by ``autosbp.calibration._rank_launch`` as ``torchrun -m autosbp.calibration._rank_worker REQUEST.json RESULTS.jsonl``,
or by any other launcher that sets torchrun's environment variables. Lines of the results file are objects: ``{"request":
ID}``, ``{"ranks": [pid, ...]}``, ``{"begin": NAME}`` before each measurement and after it ``{"point": ...}``,
``{"waiting": ...}``, ``{"overlap": ...}``, ``{"sharing": ...}``, ``{"launches": ...}``, ``{"op": ...}`` or
``{"left_out": REASON}``, and finally ``{"done": true}``. Measurements already in the file are skipped.
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

from autosbp.calibration._arrival_delay import measure_arrival_delays
from autosbp.calibration._arrival_skew import ArrivalSkew
from autosbp.calibration._budget import MAX_START_S, MIN_OPS, VARIANT_SHARE, RunBudget, SeriesBudget
from autosbp.calibration._collectives import (
    all_gather_series,
    all_reduce_max,
    buffer_bytes,
    free_bytes,
    message_bytes,
    prepare,
    wait_for_device,
)
from autosbp.calibration._core_contention import measure_core_contention
from autosbp.calibration._launch_overhead import measure_launch_overhead
from autosbp.calibration._overlap import measure_overlap
from autosbp.calibration._placements import Placement
from autosbp.calibration._request import MIN_SIZES, Measurement, Request, op_name, series
from autosbp.calibration._results import Results, Series, parse_results
from autosbp.calibration._sampling import sample, slowest_rank_times, summary
from autosbp.costmodel.op_benchmark import call_seconds, prepare_op
from autosbp.errors import AutosbpError, CalibrationError
from autosbp.launch.json_gather import broadcast_bytes
from autosbp.utils.json_io import canonical, loads
from autosbp.utils.processes import bind_to_cores, exit_rank

_COLLECTIVE_BATCH_S = 0.005
_SPREAD_BYTES = {"cpu": 32 * 2**20, "cuda": 256 * 2**20}  # larger than the caches of a rank
# CPU: several scheduler slices, so that ranks with the same cores share them within a batch. GPU: what its queue holds.
_OP_BATCH_S = {"cpu": 0.02, "cuda": 2e-4}


def main(request_path: str, results_path: str) -> None:
    request = Request.from_dict(loads(Path(request_path).read_bytes()))
    device = _device(request.backend)
    if device.type == "cpu":
        bind_to_cores(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    dist.init_process_group(request.backend, timeout=timedelta(seconds=request.timeout_s))
    with Log(results_path if dist.get_rank() == 0 else os.devnull) as log:
        pids = all_gather_series([float(os.getpid())], device)
        log.write({"ranks": [int(pid[0]) for pid in pids]})
        known, before_s = _known(Path(results_path), device)
        began_s = time.monotonic() - before_s
        budget = RunBudget(request, known.made, lambda: all_reduce_max(time.monotonic() - began_s, device))
        Collectives(request, device, log, known.points, known.made, budget).measure()
        measure_arrival_delays(request, device, log, known.made, budget)
        measure_overlap(request, device, log, known.made)
        measure_core_contention(request, device, log, known.made)
        measure_launch_overhead(device, log, known.made)
        _measure_ops(request, device, log, known.made, budget)
        log.write({"done": True})
    exit_rank()


def _known(path: Path, device: torch.device) -> tuple[Results, float]:
    """Results so far, from the file on rank 0's machine, and seconds since the run was requested by that machine's clock.

    Equal on all ranks.
    """
    told = b""
    if dist.get_rank() == 0:
        text = path.read_bytes()
        at_s = parse_results(text, path.name).at_s
        passed_s = 0.0 if at_s is None else time.time() - at_s
        told = canonical(min(max(passed_s, 0.0), MAX_START_S)) + b"\n" + text
    before_s, _, text = broadcast_bytes(told, device).partition(b"\n")
    return parse_results(text, path.name), float(loads(before_s))


class Log:
    """The results file. ``beat`` updates its modification time to show that the ranks still communicate."""

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
            while left:  # a nearly full disk accepts a part and fails at the next write
                left = left[self._file.write(left) :]
        except OSError as error:
            raise CalibrationError(f"cannot write {self._path}: {error.strerror}") from None

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
    """The collective measurements of a run, as executed by one rank."""

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
        """Measure all incomplete series; each gets its share of the remaining time."""
        open_series = [sizes for sizes in series(self.request) if not self.made.issuperset(one.name for one in sizes)]
        shares = [VARIANT_SHARE if sizes[0].placement.variant else 1.0 for sizes in open_series]
        for at, sizes in enumerate(open_series):
            self._series(sizes, SeriesBudget(self.budget.series_s(shares[at], sum(shares[at:])), len(sizes)))

    def _series(self, sizes: list[Measurement], budget: SeriesBudget) -> None:
        self._make_groups(sizes[0].placement)
        for point in self.known.get(Series.of(sizes[0]), ()):
            budget.record(point.num_bytes, point.median_s, 0.0)
        for at, measurement in enumerate(sizes):
            if measurement.name in self.made:
                continue
            self.log.write({"begin": measurement.name})
            reason = self._skip_reason(measurement, budget)
            if reason and at < MIN_SIZES:
                raise CalibrationError(f"{measurement.name}: {reason}; at least {MIN_SIZES} sizes must be measured")
            self.log.write({"left_out": reason} if reason else {"point": self._point(measurement, budget)})

    def _now_s(self) -> float:
        """Seconds since the first series, equal on every rank."""
        return all_reduce_max(time.monotonic() - self.started_s, self.device)

    def _make_groups(self, placement: Placement) -> None:
        if placement.axes == self.axes:
            return
        if self.mine is not None:
            dist.destroy_process_group(self.mine)
        self.axes, self.groups = placement.axes, self.request.cluster.mesh().all_groups(placement.axes)
        made = [dist.new_group(ranks) for ranks in self.groups]
        self.mine = next(group for group, ranks in zip(made, self.groups, strict=True) if dist.get_rank() in ranks)

    def _skip_reason(self, measurement: Measurement, budget: SeriesBudget) -> str | None:
        """Reason why a size cannot be measured, equal on every rank; None if it can."""
        if all_reduce_max(buffer_bytes(measurement.num_bytes) - free_bytes(self.device), self.device) > 0:
            return "it does not fit in memory"
        if not budget.fits(measurement.num_bytes):
            return f"it exceeds the time limit of {self.request.budget_s:g} s"
        return None

    def _point(self, measurement: Measurement, budget: SeriesBudget) -> dict[str, Any]:
        """Measure one size; a sample is the time of a group's slowest rank.

        Groups run the collective at once; the other ranks wait.
        """
        placement, began_s = measurement.placement, self._now_s()
        ranks = next(ranks for ranks in self.groups if dist.get_rank() in ranks)
        running = self.groups[: placement.num_groups]
        num_bytes = message_bytes(measurement.num_bytes, len(ranks))
        rows = self.request.cluster.mesh().axes[placement.axes[0]].size
        run, arrival = _idle, ArrivalSkew()
        if ranks in running:
            arrival = ArrivalSkew.of(measurement.kind, self.request.backend, ranks.index(dist.get_rank()), len(ranks))
            run = prepare(measurement.kind, num_bytes, ranks, rows, self.mine, self.device)
        box_s = budget.box_s(self.request.point_s)
        times = _times(run, self.request.repeats, box_s, arrival, self.device, self.log)
        point = summary(num_bytes, slowest_rank_times(all_gather_series(times, self.device), running), len(times))
        budget.record(num_bytes, point.median_s, self._now_s() - began_s)
        found = {"kind": measurement.kind, "group_shape": list(placement.group_shape), "values": point.to_list()}
        added = {"placement": placement.label, "num_groups": placement.num_groups}
        return found | {name: value for name, value in added.items() if value is not None}


def _idle() -> None:
    """Do nothing: what a rank runs while others are measured; it meets them at the barriers before and after."""


def _measure_ops(request: Request, device: torch.device, log: Log, made: set[str], budget: RunBudget) -> None:
    """Time every op that is not in ``made`` while the budget lasts; the first ``MIN_OPS`` ops in any case."""
    missing = [key for key in request.op_keys if op_name(key) not in made]
    for at, key in enumerate(missing):
        log.write({"begin": op_name(key)})
        box_s = budget.op_s(len(missing) - at)
        if box_s <= 0 and at >= MIN_OPS:
            log.write({"left_out": f"it exceeds the time limit of {request.budget_s:g} s"})
        else:
            log.write({"op": {"key": key, **_op_times(request, key, box_s, device, log)}})


def _op_times(request: Request, key: str, box_s: float, device: torch.device, log: Log) -> dict[str, float]:
    """Median times over ranks and repeats, all ranks running at once as in a step; ``box_s`` seconds for the whole op."""
    began_s = time.monotonic()
    calls = prepare_op(key, str(device), _SPREAD_BYTES[device.type])
    left_s = box_s - all_reduce_max(time.monotonic() - began_s, device)
    op_s = max(min(request.op_s, left_s / len(calls)), 0.0)
    seconds = {}
    for name, call in zip(("forward_s", "backward_s"), calls, strict=True):
        times = sample(
            call,
            barrier_max=_barrier_max(device, log),
            repeats=request.repeats,
            box_s=op_s,
            batch_s=min(_OP_BATCH_S[device.type], request.op_s),
            seconds_of=lambda call, count: call_seconds(call, count, str(device)),
        )
        by_rank = all_gather_series(times, device)
        seconds[name] = summary(0, [value for row in by_rank for value in row], len(times)).median_s
    return seconds


def _times(
    call: Callable[[], object], repeats: int, box_s: float, arrival: ArrivalSkew, device: torch.device, log: Log
) -> list[float]:
    def run() -> None:
        call()
        wait_for_device(device)

    return sample(
        run,
        barrier_max=_barrier_max(device, log),
        repeats=repeats,
        box_s=box_s,
        batch_s=_COLLECTIVE_BATCH_S,
        arrival=arrival,
    )


def _barrier_max(device: torch.device, log: Log) -> Callable[[float], float]:
    def together(value: float) -> float:
        wait_for_device(device)
        log.beat()
        return all_reduce_max(value, device)

    return together


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AutosbpError as error:  # print without a traceback
        sys.exit(f"error: rank {os.environ['RANK']}: {error}")
