"""How much compute and communication slow each other down while both run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Overlap:
    """Relative slow-downs: what takes a second alone takes ``1 + compute`` (ops) or ``1 + network`` (collectives) seconds
    beside the other, and ``1 + message`` (ops) where every rank sends or receives one message. Measured by a calibration, or
    a device's preset; 0 where they do not meet."""

    HIGH: ClassVar[float] = 10.0

    compute: float = 0.0
    network: float = 0.0
    message: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """``message`` where it is known."""
        return {key: value for key, value in asdict(self).items() if value or key != "message"}
