"""Ranks that share compute hardware: how much faster one computes while others of its unit wait.

Ops are timed with all ranks computing at once. Where several share a core, that is right while all of them work; in a
pipeline stages wait, and leave the core to the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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
    """Speeds of stages, relative to those that were calibrated, by which of them compute.

    Processor sharing: with a of the p ranks of a unit computing, each has min(p / a, speedup). Ranks of a stage do the same
    at the same time, at the pace of the slowest of them. Stage s has ranks s * size to (s + 1) * size - 1; ranks behind
    the last stage never compute.
    """

    def __init__(self, sharing: Sharing, num_stages: int, size: int) -> None:
        self.sharing = sharing
        self._units = [sharing.units[stage * size : (stage + 1) * size] for stage in range(num_stages)]
        self._everyone = Counter(sharing.units)
        self._known: dict[tuple[int, ...], tuple[float, ...]] = {}

    def of(self, computing: Sequence[int]) -> tuple[float, ...]:
        """For each of these stages, which are those that compute, in ascending order."""
        stages = tuple(computing)
        if stages not in self._known:
            busy = Counter(unit for stage in stages for unit in self._units[stage])
            speed = {unit: min(self._everyone[unit] / count, self.sharing.speedup) for unit, count in busy.items()}
            self._known[stages] = tuple(min(speed[unit] for unit in self._units[stage]) for stage in stages)
        return self._known[stages]
