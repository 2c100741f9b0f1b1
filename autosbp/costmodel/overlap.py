"""Mutual slowdown of compute and communication that run at the same time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Overlap:
    """Relative slowdowns, from a calibration or a device's preset; 0 without interference.

    One second alone becomes ``1 + compute`` (ops) or ``1 + network`` (collectives) when the two overlap, and ``1 +
    message`` (ops) while every rank sends or receives one message.
    """

    HIGH: ClassVar[float] = 10.0

    compute: float = 0.0
    network: float = 0.0
    message: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Fields as a dict, without ``message`` if it is 0."""
        return {key: value for key, value in asdict(self).items() if value or key != "message"}
