"""Sizes of messages: what parameters are gathered in together, and gradients reduced.

Large messages have fewer latencies; small ones begin earlier, and leave less of the last one behind the pass that they run
beside. Gradients of several microbatches are added up beside the buffers that they are reduced in, so that small messages save
memory, too. Problems of a search have the seconds of the largest size and the bytes of the smallest, which bounds all sizes; a
strategy is costed with ``BUCKET_BYTES``, with smaller ones where it does not fit, and the best one with each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit
from autosbp.costmodel.network import fitted_s
from autosbp.plan import BUCKET_BYTES, Costs, Strategy
from autosbp.sbp.placement import B
from autosbp.search.space.candidate import Candidate

SIZES = tuple(size * 2**20 for size in (100, 25, 12, 6, 3, 1))
"""The largest first; ``BUCKET_BYTES`` is one."""
GAIN = 1e-3
"""Relative: what another size has to save at the least."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter")


def sizes_of(asked: int | None, cluster: Cluster, calibration: Calibration | None) -> tuple[int, ...]:
    """The sizes that a search may choose from, the largest first: the one that is asked for, or some. Groups of unlike devices
    have one, and so has a cluster where a byte of a smaller message was measured to take less."""
    if asked is not None:
        return (asked,)
    if cluster.groups or not all(map(_favours_large, () if calibration is None else calibration.collectives)):
        return (BUCKET_BYTES,)
    return SIZES


def _favours_large(fit: CollectiveFit) -> bool:
    """Whether a byte takes no less in a smaller message than in the largest, of as many ranks as were measured or of two: the
    time is a line between knots, and its part of the size monotone there."""
    if fit.kind not in KINDS:
        return True
    knots = [start for start, _ in fit.knots if SIZES[-1] < start < SIZES[0]]
    points = np.array([*SIZES[::-1], *knots, SIZES[0]], dtype=np.float64)
    shapes = (fit.group_shape, (2,))
    rates = [fitted_s(replace(fit, group_shape=shape), points) / points for shape in shapes]
    return all(bool((each >= each[-1] * (1 - 1e-9)).all()) for each in rates)


def with_smaller_messages(
    candidate: Candidate,
    sizes: tuple[int, ...],
    costs: Callable[[Strategy], Costs],
    has_room: Callable[[Candidate], bool],
    limit: int,
) -> Candidate:
    """The strategy with the largest of ``sizes`` with which it has room; as it is where it has, or where none can make it.
    Gradients that are reduced, with their buffers, are all that becomes less; the smallest size tells whether it is enough."""
    strategy, excess = candidate.strategy, candidate.costs.memory_bytes_per_device - limit
    reduced = any(B in layout for layout in strategy.parameters.values())
    if has_room(candidate) or not reduced or excess > candidate.costs.memory.get("gradients", 0):
        return candidate

    def fitting(size: int) -> Candidate | None:
        changed = replace(strategy, bucket_bytes=size)
        tried = Candidate(changed, costs(changed))
        return tried if has_room(tried) else None

    smaller = [size for size in sizes if size < strategy.bucket_bytes]
    leanest = fitting(smaller[-1]) if smaller else None
    if leanest is None:
        return candidate
    return next(filter(None, map(fitting, smaller[:-1])), leanest)


def best_messages(candidate: Candidate, others: Iterable[Candidate]) -> Candidate:
    """The quickest of a strategy and the same one with ``others``' messages, where these gain enough."""
    best = candidate
    for other in others:
        if other.costs.step_time_s < best.costs.step_time_s * (1 - GAIN):
            best = other
    return best
