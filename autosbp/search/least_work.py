"""Lower bound on step time from the model's total work, over all allowed microbatch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.search.bounds.work_bound import Bound, is_work_proportional, work_bound_s
from autosbp.search.plan_options import GAP_TOLERANCE, PlanOptions


@dataclass(frozen=True)
class WorkBound:
    """Work bound of a planning request.

    Args:
        bound: binds the graph to a microbatch size.
        sizes: allowed microbatch sizes, largest first.
        global_batch: in samples.
    """

    bound: Bound
    sizes: Sequence[int]
    global_batch: int
    cluster: Cluster
    calibration: Calibration | None
    options: PlanOptions

    @cached_property
    def in_proportion(self) -> bool:
        """Whether the work of ops is proportional to the microbatch size, so that the largest bounds all."""
        return is_work_proportional(self.bound, self.sizes)

    @cached_property
    def seconds(self) -> float:
        """Lower bound on step time; -inf if none is known."""
        sizes = self.sizes[:1] if self.in_proportion else self.sizes
        return work_bound_s(
            self.bound, sizes, self.global_batch, self.cluster, self.calibration,
            optimizer=self.options.optimizer, offload=self.options.offload,
        )  # fmt: skip

    @property
    def enough_s(self) -> float:
        """Step time within the gap tolerance of the bound, if the tolerance is above the default; else -inf."""
        tolerance = self.options.gap_tolerance
        return self.seconds / (1 - tolerance) if tolerance > GAP_TOLERANCE else float("-inf")
