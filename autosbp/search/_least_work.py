"""The least work of what a plan is asked for: whether microbatches bound each other, what it bounds, and what is near to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.search.bounds.work import Bound, is_in_proportion, work_bound_s
from autosbp.search.plan_options import GAP_TOLERANCE, PlanOptions


@dataclass(frozen=True)
class LeastWork:
    """``bound`` is the graph at a microbatch, ``sizes`` are those that may be run, largest first."""

    bound: Bound
    sizes: Sequence[int]
    global_batch: int
    cluster: Cluster
    calibration: Calibration | None
    options: PlanOptions

    @cached_property
    def in_proportion(self) -> bool:
        """Whether ops work in proportion to the samples of a microbatch, so that the largest one bounds the others."""
        return is_in_proportion(self.bound, self.sizes)

    @cached_property
    def seconds(self) -> float:
        """What no step is shorter than; -inf where nothing is known."""
        sizes = self.sizes[:1] if self.in_proportion else self.sizes
        return work_bound_s(
            self.bound, sizes, self.global_batch, self.cluster, self.calibration,
            optimizer=self.options.optimizer, offload=self.options.offload,
        )  # fmt: skip

    @property
    def enough_s(self) -> float:
        """A step that is within the tolerance of it, where more of that is tolerated than usual."""
        tolerance = self.options.gap_tolerance
        return self.seconds / (1 - tolerance) if tolerance > GAP_TOLERANCE else float("-inf")
