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


ZONES = EARLY, INNER, LATE = "early", "inner", "late"
"""Where an op is in a pass: before the first product; from it on; from the last product on that reads a parameter. A parameter
is where the op is that reads it first; but the first product's is early, the last one's inner."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Of a pass and the messages beside it, the parts that count in place of what its ops take.

    A forward pass whose ops and messages take C takes no less than C; nor than all gathers beside it that cross links of one
    level, with its own messages over these links and what comes after the last of them, the late ops; nor than the gathers of
    what early ops and the first product read, with all that follows. A backward pass is the same the other way round, with
    reductions: late ops come before the first one, early ones before the last. Any convex combination of the three is a bound:
    ``inner`` is the second's part, ``early`` that of the second and the third.

    Args:
        level, early_level: whose links the messages cross that count in the second, and in the third.
    """

    inner: float = 0.0
    early: float = 0.0
    level: int = 0
    early_level: int = 0

    def of_op(self, zone: str) -> float:
        """What a second of an op does not count."""
        return {EARLY: self.early, INNER: self.inner, LATE: 0.0}[zone]

    def of_message(self, level: int, zone: str) -> float:
        """What a second of a message beside the pass counts."""
        second, third = self.inner * (level == self.level), (self.early - self.inner) * (level == self.early_level)
        return {EARLY: second + third, INNER: second, LATE: 0.0}[zone]


@dataclass(frozen=True, slots=True)
class Multipliers:
    """What counts of messages beside ``forward`` and ``backward`` passes. Of the rest of those that cross links of ``level`` a
    second makes a pass longer by ``slowdown`` (``hidden_slowdown``)."""

    forward: Beside
    backward: Beside
    level: int = 0
    slowdown: float = 0.0

    def moved(self, beside: Beside, level: int, zone: str) -> float:
        """What a second of a message beside a pass counts in all."""
        hidden = (1 - beside.of_op(zone)) * self.slowdown * (level == self.level)
        return beside.of_message(level, zone) + hidden

    def waited(self, beside: Beside, level: int, zone: str = INNER) -> float:
        """What a second of a message counts that the program waits for. Those of other levels may hide what slows ops down."""
        first = (1 - beside.of_op(zone)) * (1.0 - self.slowdown * (level != self.level))
        return first + beside.of_message(level, zone)

    def paths(self, beside: Beside, level: int) -> float:
        """The same of a parameter's way to its use or back, whatever reads it."""
        return min(self.waited(beside, level), self.waited(beside, level, EARLY))


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
        return self.micro if found is None else self.micro - self.passes * found.forward.of_op(zone)

    def backward(self, zone: str = INNER) -> float:
        """Of an op's backward seconds."""
        found = self.multipliers
        return self.micro if found is None else self.micro - self.passes * found.backward.of_op(zone)

    def messages(self, level: int, zone: str = INNER) -> tuple[float, float]:
        """Of messages that the program waits for, forward and backward."""
        found = self.multipliers
        if found is None:
            return self.micro, self.micro
        ahead, back = (1 - found.waited(each, level, zone) for each in (found.forward, found.backward))
        return self.micro - self.passes * ahead, self.micro - self.passes * back

    def gathered(self, level: int, zone: str) -> float:
        """Of gathers beside a forward pass, for each of the passes."""
        found = self.multipliers
        return 1.0 if found is None else found.moved(found.forward, level, zone)

    def reduced(self, level: int, zone: str) -> float:
        """Of gathers and reductions beside a backward pass, for each of the passes."""
        found = self.multipliers
        return 1.0 if found is None else found.moved(found.backward, level, zone)

    def copies(self) -> float:
        """The least of what local copies on the way of parameters count, forward and backward, for each of the passes."""
        found = self.multipliers
        return 1.0 if found is None else 1.0 - max(found.forward.early, found.backward.early)


def shares_of(weights: Weights, mesh: Mesh, zone: str) -> Shares | None:
    """What boxing for ops in a zone counts of what a microbatch does; None where all of it does in full."""
    if weights.multipliers is None:
        return None
    levels = [weights.messages(level, zone) for level in range(len(mesh.level_counts) + 1)]
    shares = Shares(
        tuple(ahead / weights.micro for ahead, _ in levels),
        tuple(back / weights.micro for _, back in levels),
        weights.forward(zone) / weights.micro,
        weights.backward(zone) / weights.micro,
    )
    return None if shares.is_whole else shares


def path_shares_of(weights: Weights, mesh: Mesh) -> Shares | None:
    """What boxing of parameters by the steps of a path counts, which the program waits for once a step."""
    found = weights.multipliers
    if found is None:
        return None
    levels = range(len(mesh.level_counts) + 1)
    shares = Shares(
        tuple(found.paths(found.forward, level) for level in levels),
        tuple(found.paths(found.backward, level) for level in levels),
        1.0 - found.forward.early,
        1.0 - found.backward.early,
    )
    return None if shares.is_whole else shares
