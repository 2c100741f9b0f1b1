"""Rows of an nccl-tests run: their unit of time, wrong results, and busbw / algbw.

The time is right only if ``size / time = algbw``: releases for NCCL 1 and early ones for NCCL 2 print milliseconds
without saying so, and a column of CPU time is the time to launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autosbp.costmodel.calibration import Point
from autosbp.errors import CalibrationError

UNITS: Mapping[str, float] = {"us": 1e-6, "ms": 1e-3}
_ALGBW_TOLERANCE = 0.05
_RATIO_TOLERANCE = 0.02
_MIN_ALGBW = 1.0  # GB/s: below it, the printed digits are too few to derive the number of ranks


@dataclass(frozen=True, slots=True)
class Side:
    """Columns of one row, in or out of place, as printed; None where a value is N/A."""

    time: str
    algbw: str | None
    busbw: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """One message size; ``where`` names file and line."""

    where: str
    size: int
    out_of_place: Side | None
    in_place: Side | None

    @property
    def sides(self) -> tuple[Side, ...]:
        return tuple(side for side in (self.out_of_place, self.in_place) if side is not None)


def side_of(values: Mapping[str, str], wrong: str, where: str, size: int, counts_wrong: bool) -> Side | None:
    """One side of a row, from its columns by name; None if it was not measured.

    Args:
        counts_wrong: whether ``wrong`` is a number of wrong values, not an error of which ``*`` marks an excess.

    Raises:
        CalibrationError: results are wrong, or the time is not a positive number.
    """
    if "*" in wrong or counts_wrong and wrong != "N/A" and float(wrong) != 0:
        what = f"{wrong} wrong values" if counts_wrong else f"an error of {wrong}, above the tolerance,"
        raise CalibrationError(f"{where}: {what} at {size} bytes")
    time, algbw, busbw = (values[name] for name in ("time", "algbw", "busbw"))
    if time.upper() == "N/A":
        return None
    if not 0 < float(time) < math.inf:
        raise CalibrationError(f"{where}: a time of {time} us at {size} bytes is not positive")
    return Side(time, *(None if value.upper() == "N/A" else value for value in (algbw, busbw)))


def time_unit(rows: Iterable[Row], assumed: str = "us") -> str:
    """Unit of the times by ``size / time = algbw``; ``assumed`` if bandwidths have too few digits to tell.

    Raises:
        CalibrationError: neither microseconds nor milliseconds give a row's algbw, within 5 % and its digits.
    """
    told = [(row, side, [unit for unit in UNITS if _agrees(row.size, side, UNITS[unit])]) for row, side in _rated(rows)]
    votes = [units[0] for _, _, units in told if len(units) == 1]
    unit = max(UNITS, key=votes.count) if votes else assumed
    for row, side, units in told:
        if unit not in units:
            rates = " or ".join(
                f"{row.size / float(side.time) / UNITS[each] / 1e9:.4g} GB/s if in {each}" for each in UNITS
            )
            limit = f"algbw is {side.algbw} GB/s, but size / time {rates}; they are expected to agree within 5 %"
            raise CalibrationError(f"{row.where}: {limit}, in one unit for all rows")
    return unit


def _rated(rows: Iterable[Row]) -> Iterator[tuple[Row, Side]]:
    """Sides with a bandwidth, of messages above 0 bytes."""
    return ((row, side) for row in rows for side in row.sides if row.size > 0 and side.algbw is not None)


def _agrees(size: int, side: Side, unit_s: float) -> bool:
    """Whether ``size / time`` can be algbw: within 5 % for some values that round to the printed ones."""
    time, half = float(side.time), _half_digit(side.time)
    algbw, margin = float(side.algbw or "nan"), _half_digit(side.algbw or "0")
    lowest = size / ((time + half) * unit_s * 1e9)
    highest = size / ((time - half) * unit_s * 1e9) if time > half else math.inf
    return (algbw + margin) * (1 + _ALGBW_TOLERANCE) >= lowest and algbw - margin <= highest * (1 + _ALGBW_TOLERANCE)


def _half_digit(text: str) -> float:
    """Half of the last printed digit's unit."""
    mantissa, _, exponent = text.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def points_of(rows: Iterable[Row], unit: str, repeats: int) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """Points out of place and in place, of messages above 0 bytes."""
    sides: tuple[list[Point], list[Point]] = ([], [])
    for row in rows:
        for points, side in zip(sides, (row.out_of_place, row.in_place), strict=True):
            if row.size > 0 and side is not None:
                points.append(Point(row.size, float(side.time) * UNITS[unit], 0.0, repeats))
    return tuple(sides[0]), tuple(sides[1])


def bus_factor(rows: Iterable[Row]) -> float | None:
    """busbw / algbw of the fastest row; None if no bandwidth has the digits for it.

    Raises:
        CalibrationError: another row differs, which means another collective or number of ranks.
    """
    told = [
        (row.where, float(side.algbw or 0), float(side.busbw or 0) / float(side.algbw or 1))
        for row, side in _rated(rows)
        if side.busbw is not None and float(side.algbw or 0) >= _MIN_ALGBW
    ]
    best = max(told, key=lambda each: each[1], default=None)
    if best is None:
        return None
    for where, _, factor in told:
        if abs(factor - best[2]) > _RATIO_TOLERANCE * best[2]:
            found = f"busbw / algbw is {factor:.3f}, but {best[2]:.3f} in other rows"
            raise CalibrationError(f"{where}: {found}: expected one collective of one number of ranks")
    return best[2]
