"""``SearchStats``: counters and bounds of a plan's searches, mergeable across subtasks."""

from __future__ import annotations

from dataclasses import dataclass, field

from autosbp.errors import InfeasibleError
from autosbp.utils.serialization import serializable


@serializable
@dataclass
class SearchStats:
    """Statistics of the searches of one plan.

    Args:
        share: fraction of the usual evaluations that one search may take.
        evaluations: number of costed values.
        bounds: lower bounds in seconds; the least of them bounds the plan.
        cut: whether a search stopped before it had covered its space.
        failure: the most useful reason why other strategies are infeasible.
    """

    share: float = 1.0
    evaluations: int = 0
    bounds: list[float] = field(default_factory=list)
    cut: bool = False
    failure: InfeasibleError | None = None

    def add(self, part: SearchStats) -> None:
        """Add the statistics of a subtask."""
        self.evaluations += part.evaluations
        self.bounds += part.bounds
        self.cut |= part.cut
        if part.failure is not None:
            self.fail(part.failure)

    def fail(self, error: InfeasibleError) -> None:
        self.failure = more_useful_error(self.failure, error)


def more_useful_error(known: InfeasibleError | None, new: InfeasibleError) -> InfeasibleError:
    """The more useful of two errors: memory rather than batch, then the one that needs less."""
    if known is None or (known.constraint == "micro_batch" and new.constraint != "micro_batch"):
        return new
    if (
        new.constraint == known.constraint
        and new.needed is not None
        and (known.needed is None or new.needed < known.needed)
    ):
        return new
    return known
