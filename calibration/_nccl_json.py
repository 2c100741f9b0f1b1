"""Reads the JSON output of nccl-tests 2.17 and later (``-J FILE.json``): https://github.com/NVIDIA/nccl-tests, src/util.cu.

    {"version": 3, "args": [...], "config": {"iterations": 20, ...}, "results": [{"size": 1024, ...,
     "out_of_place": {"time": 9.1, "alg_bw": ..., "bus_bw": ..., "nwrong": 0.0}, "in_place": {...}}],
     "out_of_bounds": {"count": 0, "okay": "true"}, "average_bus_bandwidth": {...}}

Times are microseconds. ``nwrong`` is null where results were not checked. A run that ended early may be closed properly:
what it lacks then is ``out_of_bounds``.
"""

from __future__ import annotations

from pathlib import Path

from autosbp.costmodel.calibration import Point
from autosbp.errors import CalibrationError, InputError
from autosbp.jsonio import Fields, loads
from calibration._nccl_log import MIN_ALGBW, NcclLog, kind_of

_SIDES = ("out_of_place", "in_place")
_MAX_US = 1e12


def read_nccl_json(text: str, path: Path, kind: str | None = None) -> NcclLog:
    """Parse one run; raises as ``read_nccl_log`` does."""
    try:
        document = loads(text, path.name)
    except InputError as error:
        raise CalibrationError(f"{path.name}: truncated or not JSON ({error})") from None
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise CalibrationError(f"{path.name}: truncated or not of nccl-tests: a list of results is expected")
    args = document.get("args")
    kind = kind_of(kind, str(args[0]) if isinstance(args, list) and args else "", path)
    bounds = document.get("out_of_bounds")
    if not isinstance(bounds, dict):
        raise CalibrationError(f"{path.name}: truncated: the run has a beginning but no summary at its end")
    if bounds.get("count") != 0:
        raise CalibrationError(f"{path.name}: nccl-tests reports {bounds.get('count')} values out of bounds")
    config = document.get("config")
    repeats = config.get("iterations") if isinstance(config, dict) else None
    repeats = repeats if type(repeats) is int and repeats > 0 else 1
    sides: tuple[list[Point], list[Point]] = ([], [])
    rates = [(0.0, 0.0)]
    for index, row in enumerate(document["results"]):
        where = f"{path.name} results[{index}]"
        try:
            size = Fields(_mapping(row), where, tuple(row)).integer("size")
            for side, name in zip(sides, _SIDES, strict=True):
                if size > 0 and row.get(name) is not None:
                    time_s, *rate = _side(row[name], f"{where}.{name}", size)
                    side.append(Point(size, time_s, 0.0, repeats))
                    rates.append((rate[0], rate[1]))
        except InputError as error:
            raise CalibrationError(str(error)) from None
    if not sides[0] and not sides[1]:
        raise CalibrationError(f"{path.name}: truncated or empty: no rows of a message size above 0")
    algbw, busbw = max(rates)
    factor = busbw / algbw if algbw >= MIN_ALGBW else None
    return NcclLog(kind, tuple(sides[0]), tuple(sides[1]), factor, 0, _num_groups(config))


def _num_groups(config: object) -> int | None:
    """Where the devices are listed, each has the number of its group."""
    devices = config.get("devices") if isinstance(config, dict) else None
    groups = [one.get("group") for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    numbers = [group for group in groups if type(group) is int]
    return max(numbers) + 1 if numbers else None


def _side(entry: object, where: str, size: int) -> tuple[float, float, float]:
    """Seconds, algbw and busbw in GB/s; wrong values are an error."""
    known = _mapping(entry)
    fields = Fields(known, where, tuple(known))
    wrong = known.get("nwrong")
    if wrong not in (None, 0, "N/A"):
        raise CalibrationError(f"{where}: {wrong} wrong values at {size} bytes")
    time_us = fields.number("cpu_time" if "cpu_time" in known else "time", high=_MAX_US)
    if not time_us > 0:
        raise CalibrationError(f"{where}: a time of {time_us} us at {size} bytes is not positive")
    return time_us * 1e-6, fields.number("alg_bw", high=_MAX_US), fields.number("bus_bw", high=_MAX_US)


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InputError("results", value, "an object is expected")
    return value
