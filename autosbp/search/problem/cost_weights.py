"""Weights of seconds and bytes in a search problem: all of them on one set of devices, a stage's share in a pipeline.

Gradients and parameters are communicated while ops run, so a step's time is not a plain sum. It is a maximum of linear
forms: the work of the program itself, and, for a queue of messages, its start plus all that it sends. A problem takes a
convex combination of these, with ``OverlapMultipliers``: no step is shorter than its optimum, whatever the multipliers
(weak duality)."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.costmodel.boxing import CostShares
from autosbp.costmodel.overlap import Overlap
from autosbp.sbp.mesh import Mesh

UNSHARDED, GATHER_PER_STEP, GATHER_PER_USE, FASTEST, CHEAPEST = "as_used", "step", "use", "fastest", "cheapest"
"""Parameter shardings.

``as_used``: stored as used. ``step`` and ``use``: split over the ranks that would hold the same values, and gathered
once a step (ZeRO-2) or for each use (ZeRO-3). ``fastest``: the faster of ``as_used`` and ``step`` per parameter.
``cheapest``: for bounds, the least seconds and the least bytes of all."""


ZONES = EARLY, INNER, LATE = "early", "inner", "late"
"""Positions of an op in a forward pass.

``early``: before the first matrix product; ``inner``: from it on; ``late``: from the last product that reads a
parameter. A parameter has the zone of its first reader, except that those of the first product are early, and those of
the last one inner."""


@dataclass(frozen=True, slots=True)
class OverlapFactors:
    """Weights of a pass's overlapped messages, which replace the same part of its ops' seconds.

    Let C be the seconds of a forward pass's ops and blocking messages. The pass takes at least

    - C;
    - all overlapped gathers over links of one level, plus its blocking messages over these links, plus the late ops,
      which follow the last gather;
    - the gathers of what early ops and the first product read, plus all that follows.

    A backward pass is the mirror image, with reductions: late ops precede the first one, early ones precede the last.
    Any convex combination of the three is a lower bound. ``inner`` is the weight of the second form, ``early`` that of
    the second and third together.

    Args:
        level, early_level: link level whose messages count in the second, and in the third form.
    """

    inner: float = 0.0
    early: float = 0.0
    level: int = 0
    early_level: int = 0

    def hidden_op_share(self, zone: str) -> float:
        """Part of an op's second that does not count."""
        return {EARLY: self.early, INNER: self.inner, LATE: 0.0}[zone]

    def message_weight(self, level: int, zone: str) -> float:
        """Weight of a second of an overlapped message."""
        second, third = self.inner * (level == self.level), (self.early - self.inner) * (level == self.early_level)
        return {EARLY: second + third, INNER: second, LATE: 0.0}[zone]


@dataclass(frozen=True, slots=True)
class OverlapMultipliers:
    """Weights of messages that overlap with ``forward`` and ``backward`` passes.

    A second of the remaining messages over links of ``level`` makes a pass longer by ``slowdown``
    (``hidden_slowdown``)."""

    forward: OverlapFactors
    backward: OverlapFactors
    level: int = 0
    slowdown: float = 0.0

    def moved(self, beside: OverlapFactors, level: int, zone: str) -> float:
        """Total weight of a second of an overlapped message."""
        hidden = (1 - beside.hidden_op_share(zone)) * self.slowdown * (level == self.level)
        return beside.message_weight(level, zone) + hidden

    def blocking_message_weight(self, beside: OverlapFactors, level: int, zone: str = INNER) -> float:
        """Weight of a second of a blocking message. One on another level may hide a slowdown of ops."""
        first = (1 - beside.hidden_op_share(zone)) * (1.0 - self.slowdown * (level != self.level))
        return first + beside.message_weight(level, zone)

    def paths(self, beside: OverlapFactors, level: int) -> float:
        """``waited`` for boxing of a parameter to its use or back, whatever op reads it."""
        return min(self.blocking_message_weight(beside, level), self.blocking_message_weight(beside, level, EARLY))


def hidden_slowdown(overlap: Overlap) -> float:
    """Least seconds by which a pass gets longer for each second of messages hidden behind its computation.

    While they overlap, ops take 1 + c times and messages 1 + n times as long as alone: a second of messages takes 1 + n
    seconds, in which (1 + n) / (1 + c) seconds of computation get done."""
    return min(1.0, (1 + overlap.network) * overlap.compute / (1 + overlap.compute))


@dataclass(frozen=True, slots=True)
class CostWeights:
    """Factors of seconds and bytes in a problem.

    Args:
        micro: of the seconds of a microbatch; the number of microbatches on one set of devices.
        once: of seconds once a step: gradients, the optimizer, copies of parameters.
        state: of the bytes of parameters, gradients and optimizer state.
        kept: of the bytes that one microbatch saves for backward.
        handed: of the bytes that checkpointed segments read from elsewhere.
        working: of the bytes that ops of checkpointed segments save.
        multipliers: of messages that overlap with passes; None if all messages count in full.
        passes: number of forward passes, and of backward passes, that overlap with gathers and reductions of sharded
            parameters, weighted like ``once`` and ``micro``.
    """

    micro: float
    once: float = 1.0
    state: float = 1.0
    kept: float = 1.0
    segment_inputs: float = 1.0
    segment_internals: float = 1.0
    multipliers: OverlapMultipliers | None = None
    passes: float = 1.0

    def forward(self, zone: str = INNER) -> float:
        """Weight of an op's forward seconds."""
        found = self.multipliers
        return self.micro if found is None else self.micro - self.passes * found.forward.hidden_op_share(zone)

    def backward(self, zone: str = INNER) -> float:
        """Weight of an op's backward seconds."""
        found = self.multipliers
        return self.micro if found is None else self.micro - self.passes * found.backward.hidden_op_share(zone)

    def messages(self, level: int, zone: str = INNER) -> tuple[float, float]:
        """Weights of blocking messages, forward and backward."""
        found = self.multipliers
        if found is None:
            return self.micro, self.micro
        ahead, back = (1 - found.blocking_message_weight(each, level, zone) for each in (found.forward, found.backward))
        return self.micro - self.passes * ahead, self.micro - self.passes * back

    def gathered(self, level: int, zone: str) -> float:
        """Weight of gathers that overlap with a forward pass, for each of ``passes``."""
        found = self.multipliers
        return 1.0 if found is None else found.moved(found.forward, level, zone)

    def reduced(self, level: int, zone: str) -> float:
        """Weight of gathers and reductions that overlap with a backward pass, for each of ``passes``."""
        found = self.multipliers
        return 1.0 if found is None else found.moved(found.backward, level, zone)

    def local_copy_weight(self) -> float:
        """Least weight of a parameter's local copies, forward and backward, for each of ``passes``."""
        found = self.multipliers
        return 1.0 if found is None else 1.0 - max(found.forward.early, found.backward.early)


def shares_of(weights: CostWeights, mesh: Mesh, zone: str) -> CostShares | None:
    """Shares with which boxing for ops in a zone counts in a microbatch; None if all of it counts in full."""
    if weights.multipliers is None:
        return None
    levels = [weights.messages(level, zone) for level in range(len(mesh.level_counts) + 1)]
    shares = CostShares(
        tuple(ahead / weights.micro for ahead, _ in levels),
        tuple(back / weights.micro for _, back in levels),
        weights.forward(zone) / weights.micro,
        weights.backward(zone) / weights.micro,
    )
    return None if shares.counts_everything else shares


def path_shares_of(weights: CostWeights, mesh: Mesh) -> CostShares | None:
    """Shares of boxing parameters by the steps of a path, for which the program waits once a step."""
    found = weights.multipliers
    if found is None:
        return None
    levels = range(len(mesh.level_counts) + 1)
    shares = CostShares(
        tuple(found.paths(found.forward, level) for level in levels),
        tuple(found.paths(found.backward, level) for level in levels),
        1.0 - found.forward.early,
        1.0 - found.backward.early,
    )
    return None if shares.counts_everything else shares
