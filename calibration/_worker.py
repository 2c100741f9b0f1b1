"""What one rank does: measure every collective, then every op, and let rank 0 write each result as it is made.

Started by ``calibration._launch`` as ``torchrun -m calibration._worker REQUEST.json RESULTS.jsonl``; it also runs under
any other launcher that sets torchrun's environment. Lines of the results file are objects: ``{"ranks": [pid, ...]}``,
``{"begin": NAME}`` before each measurement, then ``{"point": ...}`` or ``{"op": ...}``, and ``{"done": true}``.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosbp.costmodel.op_bench import run_op
from autosbp.errors import CalibrationError
from autosbp.jsonio import canonical, loads
from calibration._collectives import gather_series, largest, message_bytes, prepare, wait_for_device
from calibration._request import Measurement, Request, measurements, op_name
from calibration._timing import sample, slowest_rank_times, summary

_COLLECTIVE_BATCH_S = 0.005
_OP_BATCH_S = 0.02  # several slices of the scheduler: ranks that share cores then share them within a batch


def main(request_path: str, results_path: str) -> None:
    request = Request.from_dict(loads(Path(request_path).read_bytes()))
    device = _device(request.backend)
    dist.init_process_group(request.backend, timeout=timedelta(seconds=request.timeout_s))
    with open(results_path if dist.get_rank() == 0 else os.devnull, "ab", buffering=0) as results:

        def write(record: dict[str, Any]) -> None:
            results.write(canonical(record) + b"\n")

        pids = gather_series([float(os.getpid())], device)
        write({"ranks": [int(pid[0]) for pid in pids]})
        _measure_collectives(request, device, write)
        for key in request.op_keys:
            write({"begin": op_name(key)})
            write({"op": {"key": key, **_op_times(request, key, device)}})
        write({"done": True})
    dist.destroy_process_group()


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


def _measure_collectives(request: Request, device: torch.device, write: Any) -> None:
    mesh, axes, groups, mine = request.cluster.mesh(), None, [], None
    for measurement in measurements(request):
        write({"begin": measurement.name})
        if measurement.axes != axes:
            if mine is not None:
                dist.destroy_process_group(mine)
            axes, groups = measurement.axes, mesh.all_groups(measurement.axes)
            made = [dist.new_group(ranks) for ranks in groups]
            mine = next(group for group, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks)
        write({"point": _point(request, measurement, groups, mine, device)})


def _point(
    request: Request, measurement: Measurement, groups: list[list[int]], group: Any, device: torch.device
) -> dict[str, Any]:
    """All groups run the collective at once; a sample is the time of a group's slowest rank."""
    ranks = next(ranks for ranks in groups if dist.get_rank() in ranks)
    num_bytes = message_bytes(measurement.num_bytes, len(ranks))
    collective = prepare(measurement.kind, num_bytes, ranks, group, device)
    times = _times(collective, request.repeats, request.point_s, _COLLECTIVE_BATCH_S, device)
    point = summary(num_bytes, slowest_rank_times(gather_series(times, device), groups))
    return {"kind": measurement.kind, "group_shape": list(measurement.group_shape), "values": point.to_list()}


def _op_times(request: Request, key: str, device: torch.device) -> dict[str, float]:
    """Medians over ranks and repeats, all ranks running at once as in a step."""
    seconds = {}
    for name, call in zip(("forward_s", "backward_s"), run_op(key, str(device)), strict=True):
        by_rank = gather_series(_times(call, request.repeats, request.op_s, _OP_BATCH_S, device), device)
        seconds[name] = summary(0, [value for times in by_rank for value in times]).median_s
    return seconds


def _times(call: Any, repeats: int, box_s: float, batch_s: float, device: torch.device) -> list[float]:
    def together(value: float) -> float:
        wait_for_device(device)
        return largest(value, device)

    def run() -> None:
        call()
        wait_for_device(device)

    return sample(run, together=together, repeats=repeats, box_s=box_s, batch_s=batch_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
