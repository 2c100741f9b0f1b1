"""Choice of the bucket size: how many bytes one parameter gather or gradient reduction carries.

Large buckets have fewer latencies. Small ones start earlier, and leave less of the last message exposed after the pass
that it overlaps with. Gradients of several microbatches are accumulated next to the buffers in which they are reduced,
so small buckets also save memory. Search problems use the seconds of the largest size and the bytes of the smallest,
which bounds all sizes. A strategy is costed with ``BUCKET_BYTES``, with smaller buckets if it does not fit, and the
best strategy with each size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration, CollectiveFit
from autosbp.costmodel.network import fitted_s
from autosbp.plan.plan import BUCKET_BYTES, Costs, Strategy
from autosbp.sbp.layout import B
from autosbp.search.branch_and_bound.candidate import Candidate

BUCKET_SIZES = tuple(size * 2**20 for size in (100, 25, 12, 6, 3, 1))
"""Largest first; includes ``BUCKET_BYTES``."""
MIN_GAIN = 1e-3
"""Least relative gain for which another size is chosen."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter")


def bucket_sizes(asked: int | None, cluster: Cluster, calibration: Calibration | None) -> tuple[int, ...]:
    """Bucket sizes that a search may choose from, largest first.

    Args:
        asked: the requested size in bytes; then the only one.
        cluster: groups of unlike devices allow only ``BUCKET_BYTES``.
        calibration: if a byte of a small message was measured to be cheaper than of a large one, only ``BUCKET_BYTES``.
    """
    if asked is not None:
        return (asked,)
    if cluster.groups or not all(map(_favours_large, () if calibration is None else calibration.collectives)):
        return (BUCKET_BYTES,)
    return BUCKET_SIZES


def _favours_large(fit: CollectiveFit) -> bool:
    """Whether a byte in a smaller message takes at least as long as in the largest.

    Checked for the measured number of ranks and for two. The time is linear between knots, so time per byte is monotone
    there, and checking the knots suffices.
    """
    if fit.kind not in KINDS:
        return True
    knots = [start for start, _ in fit.knots if BUCKET_SIZES[-1] < start < BUCKET_SIZES[0]]
    points = np.array([*BUCKET_SIZES[::-1], *knots, BUCKET_SIZES[0]], dtype=np.float64)
    shapes = (fit.group_shape, (2,))
    rates = [fitted_s(replace(fit, group_shape=shape), points) / points for shape in shapes]
    return all(bool((each >= each[-1] * (1 - 1e-9)).all()) for each in rates)


def with_smaller_buckets(
    candidate: Candidate,
    sizes: tuple[int, ...],
    costs: Callable[[Strategy], Costs],
    has_room: Callable[[Candidate], bool],
    limit: int,
) -> Candidate:
    """The strategy with the largest of ``sizes`` that makes it fit; unchanged if it fits already, or if no size helps.

    Only reduced gradients and their buffers shrink. The smallest size is tried first: if it does not fit, none does.
    """
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


def best_bucket_size(candidate: Candidate, others: Iterable[Candidate]) -> Candidate:
    """The fastest of a strategy and its variants with other bucket sizes, if they gain at least ``MIN_GAIN``."""
    best = candidate
    for other in others:
        if other.costs.step_time_s < best.costs.step_time_s * (1 - MIN_GAIN):
            best = other
    return best
