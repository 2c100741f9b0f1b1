"""Ranks that share compute hardware: how much faster one computes while others of its unit wait.

Ops are timed with all ranks computing at once. Where several share a core, that is right while all of them work; in a
pipeline stages wait, and leave the core to the others: as far as what moves their data does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, ClassVar

from autosbp.costmodel.overlap import Overlap
from autosbp.errors import InputError
from autosbp.jsonio import Fields, check_integer


@dataclass(frozen=True, slots=True)
class Sharing:
    """``units`` has the unit that each rank of the cluster computes on, counted from 0. ``speedup`` is how much faster than
    all ranks at once one of each unit computes, from 1 to ``HIGH``."""

    HIGH: ClassVar[float] = 64.0

    speedup: float
    units: tuple[int, ...]

    @property
    def shares(self) -> bool:
        """Whether it matters which ranks compute."""
        return self.speedup > 1.0 and len(set(self.units)) < len(self.units)

    def to_dict(self) -> dict[str, Any]:
        return {"speedup": self.speedup, "units": list(self.units)}

    @staticmethod
    def from_dict(data: object, path: str, num_ranks: int) -> Sharing:
        """Inverse of ``to_dict``, on so many ranks; raises ``InputError`` that names the field below ``path``."""
        fields = Fields(data, path, ("speedup", "units"))
        row = fields.sequence("units")
        if len(row) != num_ranks:
            raise InputError(fields.at("units"), len(row), f"{num_ranks} units are expected, one per rank")
        units = [check_integer(f"{fields.at('units')}[{at}]", unit, 0, num_ranks - 1) for at, unit in enumerate(row)]
        return Sharing(fields.number("speedup", low=1.0, high=Sharing.HIGH), tuple(units))


class Paces:
    """Speeds of stages, relative to those that were calibrated, by which of them compute and communicate.

    Processor sharing: with a of the p ranks of a unit computing, each has min(p / (a + p f), speedup). Threads and interrupts
    that move data compete with those that compute, whoever they work for: f is what they take, in ranks for each of the
    unit's, and grows with the ends of messages that are at work there for each of its ranks: 1 where each sends or receives
    one (``Overlap.message``), 2 where all are in an all-reduce, in which each does both (``Overlap.compute``); in between, and
    below, a power of that number through both. A calibration without the first has no f.

    Ranks of a stage do the same at the same time, at the pace of the slowest of them. Stage s has ranks s * size to
    (s + 1) * size - 1; ranks behind the last stage never compute.
    """

    def __init__(self, sharing: Sharing, num_stages: int, size: int, overlap: Overlap | None = None) -> None:
        self.sharing, self.overlap = sharing, overlap or Overlap()
        self._units = [sharing.units[stage * size : (stage + 1) * size] for stage in range(num_stages)]
        self._everyone = Counter(sharing.units)
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, ...]] = {}

    def of(self, computing: Sequence[int], ends: Sequence[int] = ()) -> tuple[float, ...]:
        """For each of these stages, which are those that compute, in ascending order; ``ends`` are those of messages that
        each rank of every stage has at work."""
        key = tuple(computing), tuple(ends)
        if key not in self._known:
            busy = Counter(unit for stage in computing for unit in self._units[stage])
            moving = Counter[int]()
            for units, count in zip(self._units, ends, strict=False):
                for unit in units:
                    moving[unit] += count
            speed = {unit: self._speed(self._everyone[unit], count, moving[unit]) for unit, count in busy.items()}
            self._known[key] = tuple(min(speed[unit] for unit in self._units[stage]) for stage in computing)
        return self._known[key]

    def _speed(self, ranks: int, computing: int, ends: int) -> float:
        return min(ranks / (computing + ranks * self._taken(ends / ranks)), self.sharing.speedup)

    def _taken(self, ends: float) -> float:
        """By communication, in ranks for each, with so many ends of messages for each."""
        one, two = self.overlap.message, self.overlap.compute
        if ends <= 0.0 or one <= 0.0:
            return 0.0
        power = max(log2(two / one), 1.0) if two > 0.0 else 1.0
        return float(one * ends**power)
