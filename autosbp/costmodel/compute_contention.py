"""Ranks that share compute hardware: speedup of one rank while others of its unit wait.

Ops are timed with all ranks computing at once. If several ranks share a core, that holds while all of them compute. In
a pipeline, stages wait and leave the core to the others, except for the work of moving their data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, ClassVar

from autosbp.costmodel.overlap import Overlap
from autosbp.errors import InputError
from autosbp.utils.json_io import Fields, check_integer


@dataclass(frozen=True, slots=True)
class ComputeSharing:
    """Assignment of ranks to compute units.

    Args:
        speedup: speed of a rank that computes alone on its unit relative to all ranks at once, from 1 to ``HIGH``.
        units: the unit of each rank of the cluster, counted from 0.
    """

    HIGH: ClassVar[float] = 64.0

    speedup: float
    units: tuple[int, ...]

    @property
    def shares(self) -> bool:
        """Whether speed depends on which ranks compute."""
        return self.speedup > 1.0 and len(set(self.units)) < len(self.units)

    def to_dict(self) -> dict[str, Any]:
        return {"speedup": self.speedup, "units": list(self.units)}

    @staticmethod
    def from_dict(data: object, path: str, num_ranks: int) -> ComputeSharing:
        """Inverse of ``to_dict`` for ``num_ranks`` ranks; raises ``InputError`` that names the field below ``path``."""
        fields = Fields(data, path, ("speedup", "units"))
        row = fields.sequence("units")
        if len(row) != num_ranks:
            raise InputError(fields.at("units"), len(row), f"expected {num_ranks} units, one per rank")
        units = [check_integer(f"{fields.at('units')}[{at}]", unit, 0, num_ranks - 1) for at, unit in enumerate(row)]
        return ComputeSharing(fields.number("speedup", low=1.0, high=ComputeSharing.HIGH), tuple(units))


class StageSpeeds:
    """Speeds of stages relative to the calibration, given which stages compute and communicate.

    Processor sharing: if a of the p ranks of a unit compute, each has speed min(p / (a + p f), speedup). Threads and
    interrupts that move data compete with computing ranks, whichever rank they serve: f is their load, in ranks per
    rank of the unit. It grows with the number of message ends in flight per rank of the unit: f is ``Overlap.message``
    at 1 end (each rank sends or receives one message) and ``Overlap.compute`` at 2 (all ranks are in an all-reduce,
    sending and receiving). Elsewhere it follows the power law through both. A calibration without ``Overlap.message``
    has f = 0.

    Ranks of a stage do the same at the same time, at the pace of the slowest of them. Stage s has ranks s * size to (s
    + 1) * size - 1; ranks after the last stage never compute.
    """

    def __init__(self, sharing: ComputeSharing, num_stages: int, size: int, overlap: Overlap | None = None) -> None:
        self.sharing, self.overlap = sharing, overlap or Overlap()
        self._units = [sharing.units[stage * size : (stage + 1) * size] for stage in range(num_stages)]
        self._everyone = Counter(sharing.units)
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, ...]] = {}

    def of(self, computing: Sequence[int], ends: Sequence[int] = ()) -> tuple[float, ...]:
        """Speeds of the stages in ``computing``.

        Args:
            computing: stages that compute, in ascending order.
            ends: message ends in flight at each rank of every stage.
        """
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
        return min(ranks / (computing + ranks * self._communication_load(ends / ranks)), self.sharing.speedup)

    def _communication_load(self, ends: float) -> float:
        """Load of communication, in ranks per rank, with ``ends`` message ends in flight per rank."""
        one, two = self.overlap.message, self.overlap.compute
        if ends <= 0.0 or one <= 0.0:
            return 0.0
        power = max(log2(two / one), 1.0) if two > 0.0 else 1.0
        return float(one * ends**power)
