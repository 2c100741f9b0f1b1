"""How much seconds and bytes count in a search problem: all of them on one set of devices, a stage's share in a pipeline.

Gradients and parameters travel beside ops, so that a step is no sum. Its end is a maximum of linear forms: what the program
does itself, and, for a queue of messages, when it begins and all that it moves. A problem has a convex combination of these,
with ``Multipliers``: no step takes less than its optimum, whatever the multipliers are (weak duality).
"""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.costmodel.boxing import Shares
from autosbp.costmodel.overlap import Overlap
from autosbp.sbp.mesh import Mesh

AS_USED, STEP, USE, FASTEST, CHEAPEST = "as_used", "step", "use", "fastest", "cheapest"
"""How parameters are stored: as they are used; split over the ranks that would hold them alike, and gathered once a step
(ZeRO-2) or for each use (ZeRO-3); each in the faster of the first two ways; or, for bounds, with the least seconds and the
least bytes of all."""


EARLY, INNER, LATE = "early", "inner", "late"
"""Where an op is in a pass: before the first product; between; from the last product on that reads a parameter. A parameter is
where the op is that reads it first, but that of this last product, which is an inner one."""


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Of the messages that cross the links of a ``level``: the part that a pass counts with what moves beside it, and not with
    what its ops take.

    A forward pass whose ops and messages take C, with gathers G beside it, takes no less than C; nor than all of G and what
    comes after the last gather is there, the late ops; so that (1 - g) C + g (G + C_late) is a bound for g in [0, 1]. It begins
    with a gather, of what early ops read, beside which nothing runs that comes after them. A backward pass is the same the
    other way round, with reductions of gradients: late ops come before the first one, early ones before the last.

    Args:
        gather, reduce: g of forward, and of backward.
        early: g of early ops and parameters.
        slowdown: seconds by which a pass gets longer for each second of messages beside it (``hidden_slowdown``).
    """

    level: int
    gather: float = 0.0
    reduce: float = 0.0
    slowdown: float = 0.0
    early: float = 1.0

    def moved(self, part: float) -> float:
        """What a second of messages counts, given g: all of the part that counts, and its slow-down of the rest."""
        return part + (1 - part) * self.slowdown

    def of_ops(self, zone: str, part: float) -> float:
        """What a second of an op does not count, given g of inner ones."""
        return {EARLY: self.early, INNER: part, LATE: 0.0}[zone]

    def of_messages(self, level: int, zone: str, part: float) -> float:
        """What a second of messages of a parameter counts, given g of inner ones."""
        return self.moved({EARLY: self.early, INNER: part, LATE: 0.0}[zone]) if level == self.level else 0.0


def hidden_slowdown(overlap: Overlap) -> float:
    """Seconds that a pass takes longer, at the least, for each second of messages that is hidden behind its computation.

    Beside each other, ops take 1 + c times and messages 1 + n times as long as alone: a second of messages takes 1 + n, in
    which (1 + n) / (1 + c) of computation gets done.
    """
    return min(1.0, (1 + overlap.network) * overlap.compute / (1 + overlap.compute))


@dataclass(frozen=True, slots=True)
class Weights:
    """Factors.

    Args:
        micro: of the seconds of a microbatch; the number of microbatches on one set of devices.
        once: of seconds that pass once a step: gradients, the optimizer, copies of parameters.
        state: of the bytes of parameters, gradients and optimizer state.
        kept: of the bytes that one microbatch keeps for backward.
        handed: of those that recomputed blocks read from elsewhere.
        working: of those that ops of recomputed blocks keep.
        multipliers: of what moves beside passes; None where all of it counts in full.
        passes: how many forward passes, and backward passes, have gathers and reductions of gathered parameters beside them,
            weighed as ``once`` and ``micro`` are.
    """

    micro: float
    once: float = 1.0
    state: float = 1.0
    kept: float = 1.0
    handed: float = 1.0
    working: float = 1.0
    multipliers: Multipliers | None = None
    passes: float = 1.0

    def forward(self, zone: str = INNER) -> float:
        """Of an op's forward seconds."""
        found = self.multipliers
        return self.micro if found is None else self.micro - self.passes * found.of_ops(zone, found.gather)

    def backward(self, zone: str = INNER) -> float:
        """Of an op's backward seconds."""
        found = self.multipliers
        return self.micro if found is None else self.micro - self.passes * found.of_ops(zone, found.reduce)

    def messages(self, level: int) -> tuple[float, float]:
        """Of messages that the program waits for, forward and backward: those of the queue's level take its links away."""
        found = self.multipliers
        if found is None or level == found.level:
            return self.micro, self.micro
        parts = found.moved(found.gather), found.moved(found.reduce)
        return self.micro - self.passes * parts[0], self.micro - self.passes * parts[1]

    def gathered(self, level: int, zone: str) -> float:
        """Of gathers beside a forward pass, for each of the passes."""
        return 1.0 if self.multipliers is None else self.multipliers.of_messages(level, zone, self.multipliers.gather)

    def reduced(self, level: int, zone: str) -> float:
        """Of gathers and reductions beside a backward pass, for each of the passes."""
        return 1.0 if self.multipliers is None else self.multipliers.of_messages(level, zone, self.multipliers.reduce)

    def copies(self) -> float:
        """The least of what local copies on the way of parameters count, forward and backward, for each of the passes."""
        return 1.0 if self.multipliers is None else 1.0 - max(self.multipliers.gather, self.multipliers.reduce)


def shares_of(weights: Weights, mesh: Mesh) -> Shares | None:
    """What boxing between ops counts of what a microbatch does; None where all of it does in full."""
    return _shares(weights, mesh, weights.passes / weights.micro)


def path_shares_of(weights: Weights, mesh: Mesh) -> Shares | None:
    """What boxing of parameters by the steps of a path counts, which the program waits for once a step."""
    return _shares(weights, mesh, 1.0)


def _shares(weights: Weights, mesh: Mesh, part: float) -> Shares | None:
    """Where so much of it is in passes that have messages beside them."""
    found = weights.multipliers
    if found is None:
        return None
    levels = range(len(mesh.level_counts) + 1)
    shares = Shares(
        tuple(1.0 if level == found.level else 1.0 - part * found.moved(found.gather) for level in levels),
        tuple(1.0 if level == found.level else 1.0 - part * found.moved(found.reduce) for level in levels),
        1.0 - part * found.gather,
        1.0 - part * found.reduce,
    )
    return None if shares.is_whole else shares
