"""What searches add up to, and how two that are part of one add up."""

from __future__ import annotations

from dataclasses import dataclass, field

from autosbp.errors import InfeasibleError
from autosbp.handed import handed_over


@handed_over
@dataclass
class Tally:
    """What the searches of one plan add up to. ``share`` is the part of a whole search that one of them may take, ``cut``
    whether one of them was ended before it had looked at all."""

    share: float = 1.0
    evaluations: int = 0
    bounds: list[float] = field(default_factory=list)
    cut: bool = False

    def add(self, part: Tally) -> None:
        """What a part of them adds up to."""
        self.evaluations += part.evaluations
        self.bounds += part.bounds
        self.cut |= part.cut


def nearer(known: InfeasibleError | None, new: InfeasibleError) -> InfeasibleError:
    """The more useful of two failures: memory before batch, then the one that needs less."""
    if known is None or (known.constraint == "micro_batch" and new.constraint != "micro_batch"):
        return new
    if (
        new.constraint == known.constraint
        and new.needed is not None
        and (known.needed is None or new.needed < known.needed)
    ):
        return new
    return known
