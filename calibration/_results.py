"""Reads the results of a run, whole or partial, and makes a calibration of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autosbp.costmodel.calibration import Calibration, OpTime, Point
from autosbp.errors import CalibrationError
from autosbp.jsonio import loads
from calibration._fit import BETA_FLOOR_S_PER_BYTE, MIN_POINTS, fit_collective
from calibration._request import Request, measurement_names


@dataclass(frozen=True, slots=True)
class Results:
    """What a results file holds so far. ``begun`` are the names of the measurements that were started, in order."""

    pids: tuple[int, ...]
    begun: tuple[str, ...]
    points: Mapping[tuple[str, tuple[int, ...]], tuple[Point, ...]]
    ops: Mapping[str, OpTime]
    done: bool

    @property
    def current(self) -> str:
        """The measurement that was running when the file ended."""
        return self.begun[-1] if self.begun else "start of the ranks"


def read_results(path: Path) -> Results:
    """Read a results file; a last line that is still being written is left out, and a missing file is an empty one."""
    text = path.read_bytes() if path.exists() else b""
    pids: tuple[int, ...] = ()
    begun, ops, done = [], {}, False
    points: dict[tuple[str, tuple[int, ...]], list[Point]] = defaultdict(list)
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        record = loads(line, f"{path.name} line {number}")
        if "ranks" in record:
            pids = tuple(record["ranks"])
        elif "begin" in record:
            begun.append(record["begin"])
        elif "point" in record:
            size, median_s, iqr_s, repeats = record["point"]["values"]
            key = (record["point"]["kind"], tuple(record["point"]["group_shape"]))
            points[key].append(Point(size, median_s, iqr_s, repeats))
        elif "op" in record:
            ops[record["op"]["key"]] = OpTime(record["op"]["forward_s"], record["op"]["backward_s"])
        else:
            done = True
    return Results(pids, tuple(begun), {key: tuple(value) for key, value in points.items()}, ops, done)


def assemble(request: Request, results: Results, method: str, partial: bool = False) -> Calibration:
    """Fit every kind and group shape of ``results``.

    With ``partial``, kinds and shapes of too few points are left out and the calibration says that it is not complete;
    without, an unfinished run raises ``CalibrationError`` that names the measurement it ended in.
    """
    if not results.done and not partial:
        left = len(measurement_names(request)) - len(results.begun) + 1
        raise CalibrationError(f"{results.current}: the run ended here, {left} measurements before its end")
    fits, notes = [], []
    for (kind, shape), points in results.points.items():
        if partial and len(points) < MIN_POINTS:
            continue
        fit = fit_collective(kind, shape, points, method)
        fits.append(fit)
        if method == "relative" and fit.beta_s_per_byte <= BETA_FLOOR_S_PER_BYTE:
            notes.append(
                f"{kind} over {'x'.join(map(str, shape))}: times do not grow with size; measure larger messages"
            )
    return Calibration(request.cluster, request.backend, method, tuple(fits), results.ops, results.done, tuple(notes))
