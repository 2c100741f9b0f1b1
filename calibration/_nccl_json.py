"""Read the JSON output of nccl-tests 2.17 and later (``-J FILE.json``).

Source: https://github.com/NVIDIA/nccl-tests, src/util.cu.

    {"version": 3, "args": [...], "config": {"iterations": 20, ...}, "results": [{"size": 1024, ...,
     "out_of_place": {"time": 9.1, "alg_bw": ..., "bus_bw": ..., "nwrong": 0.0}, "in_place": {...}}],
     "out_of_bounds": {"count": 0, "okay": "true"}, "average_bus_bandwidth": {...}}

Times are microseconds. ``nwrong`` is null if results were not checked. A run that ended early may still be valid JSON,
but without ``out_of_bounds``.
"""

from __future__ import annotations

from pathlib import Path

from autosbp.calibration._nccl_log import ListedDevice, NcclLog, kind_of, placement_of
from autosbp.calibration._nccl_rows import Row, Side, bus_factor, points_of, side_of, time_unit
from autosbp.errors import CalibrationError, InputError
from autosbp.utils.json_io import Fields, loads

_SIDES = ("out_of_place", "in_place")
_MAX_US = 1e12


def read_nccl_json(text: str, path: Path, kind: str | None = None) -> NcclLog:
    """Parse one run; raises the errors of ``read_nccl_log``."""
    try:
        document = loads(text, path.name)
    except InputError as error:
        raise CalibrationError(f"{path.name}: truncated or not JSON ({error})") from None
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise CalibrationError(f"{path.name}: truncated or not from nccl-tests: expected a list of results")
    args = document.get("args")
    kind = kind_of(kind, str(args[0]) if isinstance(args, list) and args else "", path)
    bounds = document.get("out_of_bounds")
    if not isinstance(bounds, dict):
        raise CalibrationError(f"{path.name}: truncated: the run has no summary at its end")
    if bounds.get("count") != 0:
        raise CalibrationError(f"{path.name}: nccl-tests reports {bounds.get('count')} values out of bounds")
    config = document.get("config")
    repeats = config.get("iterations") if isinstance(config, dict) else None
    repeats = repeats if type(repeats) is int and repeats > 0 else 1
    rows = [_row(row, f"{path.name} results[{index}]") for index, row in enumerate(document["results"])]
    points = points_of(rows, time_unit(rows), repeats)
    if not any(points):
        raise CalibrationError(f"{path.name}: truncated or empty: no rows of a message size above 0")
    return NcclLog(kind, *points, bus_factor(rows), 0, placement_of(_devices(config, f"{path.name} config.devices")))


def _devices(config: object, where: str) -> list[ListedDevice]:
    """Listed devices; entries without rank are left out."""
    listed = config.get("devices") if isinstance(config, dict) else None
    found = []
    for one in listed if isinstance(listed, list) else []:
        rank, group, device = (one.get(name) if isinstance(one, dict) else None for name in ("rank", "group", "device"))
        if type(rank) is int:
            numbers = (group if type(group) is int else None, device if type(device) is int else 0)
            found.append(ListedDevice(rank, numbers[0], str(one.get("hostname")), numbers[1], where))
    return found


def _row(row: object, where: str) -> Row:
    """One message size; wrong values raise ``CalibrationError``."""
    try:
        known = _mapping(row)
        size = Fields(known, where, tuple(known)).integer("size")
        out_of_place, in_place = (
            None if known.get(name) is None else _side(known[name], f"{where}.{name}", size) for name in _SIDES
        )
    except InputError as error:
        raise CalibrationError(str(error)) from None
    return Row(where, size, out_of_place, in_place)


def _side(entry: object, where: str, size: int) -> Side | None:
    known = _mapping(entry)
    fields = Fields(known, where, tuple(known))
    names = {"time": "cpu_time" if "cpu_time" in known else "time", "algbw": "alg_bw", "busbw": "bus_bw"}
    values = {name: repr(fields.number(field, high=_MAX_US)) for name, field in names.items()}
    wrong = known.get("nwrong")
    if wrong is not None and wrong != "N/A":
        wrong = fields.number("nwrong")
    return side_of(values, "N/A" if wrong is None else str(wrong), where, size, counts_wrong=True)


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InputError("results", value, "expected an object")
    return value
