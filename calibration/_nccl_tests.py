"""Read the output of nccl-tests and rccl-tests (``all_reduce_perf`` etc.) and fit it.

https://github.com/NVIDIA/nccl-tests, https://github.com/ROCm/rccl-tests. ``_nccl_table`` reads the text, ``_nccl_json``
the JSON of nccl-tests, ``_nccl_records`` the CSV and JSON of rccl-tests. ``size`` is the full message as the cost model
counts it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path

from autosbp.calibration._alpha_beta_fit import fit_collective
from autosbp.calibration._nccl_json import read_nccl_json
from autosbp.calibration._nccl_log import (
    NcclLog,
    check_placement,
    devices_per_process,
    kind_of,
    listed_devices,
    placement_of,
)
from autosbp.calibration._nccl_records import is_records, read_nccl_records
from autosbp.calibration._nccl_rows import bus_factor, points_of, time_unit
from autosbp.calibration._nccl_table import HEADER, cleaned, read_table
from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import CollectiveFit
from autosbp.costmodel.network import beta_factor
from autosbp.errors import CalibrationError, InputError

_RATIO_TOLERANCE = 0.02
MAX_LOG_BYTES = 16 * 2**20  # a run prints kilobytes, or some megabytes with debug output of every rank


def read_nccl_log(path: Path, kind: str | None = None) -> NcclLog:
    """Parse one run.

    Args:
        kind: collective; required if neither the text nor the file's name implies it.

    Raises:
        CalibrationError: the run is truncated, has wrong results, no rows of a size above 0, or times that are not
            size / algbw.
        InputError: the file cannot be read, or the kind is unknown.
    """
    text = _read(path)
    if is_records(text):
        return read_nccl_records(text, path, kind)
    if text.lstrip().startswith("{"):
        return read_nccl_json(text, path, kind)
    return _read_text(cleaned(text), path, kind)


def _read_text(text: str, path: Path, kind: str | None) -> NcclLog:
    kind = kind_of(kind, text, path)
    num_runs = max(len(HEADER.findall(text)), len(re.findall(r"\bnThread \d", text)))
    if num_runs > 1:
        raise CalibrationError(f"{path.name}: {num_runs} runs in one file; expected one: split the file")
    ended = "# Avg bus bandwidth" in text or "# Out of bounds values" in text
    table = read_table(text, path.name, ended)
    if re.search(r"Out of bounds values\s*:\s*\d+\s+FAILED", text):
        raise CalibrationError(f"{path.name}: nccl-tests reports values out of bounds")
    if re.search(r"\bnThread \d|# Collective test starting", text) and not ended:
        raise CalibrationError(f"{path.name}: truncated: the run has no summary at its end")
    iterations = re.search(r"(?<!warmup )iters: (\d+)", text)
    unit = time_unit(table.rows, "ms" if table.layout.old else "us")
    points = points_of(table.rows, unit, max(int(iterations[1]), 1) if iterations else 1)
    if not any(points):
        raise CalibrationError(f"{path.name}: truncated or empty: no rows of a message size above 0")
    placement = placement_of(listed_devices(text, path.name), devices_per_process(text))
    return NcclLog(kind, *points, bus_factor(table.rows), table.num_skipped, placement, ended)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LOG_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError("path", str(path), f"expected a readable nccl-tests log ({error})") from None
    if len(data) > MAX_LOG_BYTES:
        raise InputError("path", str(path), f"expected a log of at most {MAX_LOG_BYTES} bytes")
    if not text.strip():
        raise CalibrationError(f"{path.name}: truncated or empty: no rows")
    return text


def import_nccl_log(
    path: Path,
    cluster: Cluster,
    group_shape: tuple[int, ...],
    *,
    kind: str | None = None,
    in_place: bool = False,
    method: str = "relative",
    num_groups: int | None = None,
) -> CollectiveFit:
    """Fit one nccl-tests run over groups of ``group_shape`` of ``cluster``; the result goes into a ``Calibration``.

    Args:
        group_shape: number of units per cluster level.
        kind: collective; required if neither the text nor the file's name implies it.
        in_place: use the in-place times.
        num_groups: groups that ran concurrently; by default as the log says, else one. If more groups would share the
            links, the fit is for this many, and the cost of all at once is predicted from it.

    Raises:
        InputError: the shape does not fit the cluster or contradicts the log's bus bandwidth or device list.
        CalibrationError: as ``read_nccl_log`` and ``fit_collective`` raise.
    """
    limits = tuple(level.count for level in cluster.levels)
    fits_in = len(group_shape) == len(limits) and all(
        1 <= count <= limit for count, limit in zip(group_shape, limits, strict=True)
    )
    if not fits_in or prod(group_shape) < 2:
        raise InputError("group_shape", group_shape, f"expected counts within {limits}, with at least two ranks")
    log = read_nccl_log(path, kind)
    _check_shape(log, group_shape)
    points, others = (log.in_place, log.out_of_place) if in_place else (log.out_of_place, log.in_place)
    if not points:
        names = ("in-place", "out-of-place") if in_place else ("out-of-place", "in-place")
        hint = f"; it has {names[1]} times: {'leave out' if in_place else 'add'} --in-place" if others else ""
        raise CalibrationError(f"{path.name}: no {names[0]} times{hint}")
    fit = fit_collective(log.kind, group_shape, points, method)
    at_once = num_groups or log.num_groups or 1
    return replace(fit, num_groups=at_once if at_once < _num_groups_per_link(cluster, group_shape) else None)


def _check_shape(log: NcclLog, group_shape: tuple[int, ...]) -> None:
    """Refuse a group shape that contradicts the bus bandwidth or the device list."""
    expected = beta_factor(log.kind, prod(group_shape))
    if log.bus_factor is not None and abs(log.bus_factor / expected - 1) > _RATIO_TOLERANCE:
        raise InputError(
            "group_shape",
            group_shape,
            f"the log's busbw / algbw is {log.bus_factor:.3f} instead of {expected:.3f} for {prod(group_shape)} ranks",
        )
    if log.placement is not None:
        check_placement(log.placement, group_shape)


def _num_groups_per_link(cluster: Cluster, group_shape: tuple[int, ...]) -> int:
    """Number of groups of a shape that share a link of the outermost level they cross, such as a node's network link."""
    inside = next(at for at, count in enumerate(group_shape) if count > 1) + 1
    return prod(level.count for level in cluster.levels[inside:]) // prod(group_shape[inside:])
