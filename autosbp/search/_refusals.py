"""What is told of a plan that there is not: in the terms of what was asked for, and with what would do."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.errors import InfeasibleError
from autosbp.search.plan_options import PlanOptions
from autosbp.search.space.candidate import Candidate


def of_batch(error: InfeasibleError, options: PlanOptions, global_batch: int) -> InfeasibleError:
    """Where nobody asked for a microbatch, it is the batch that no microbatch of splits evenly."""
    if error.constraint != "micro_batch" or options.micro_batch is not None:
        return error
    samples = "samples" if error.limit != 1 else "sample"
    detail = f"no microbatch splits evenly: of {error.limit} {samples}, {error.detail}"
    return InfeasibleError("global_batch", global_batch, error.needed, detail, error.conflict)


def with_need(error: InfeasibleError, lean: Sequence[Candidate]) -> InfeasibleError:
    """The error with the least memory of the strategies found, leanest first, as what is needed."""
    if not lean:
        return error
    needed, detail = lean[0].costs.memory_bytes_per_device, "that is the least that any strategy found takes"
    detail = f"{detail}; {error.detail}" if error.detail else detail
    return InfeasibleError(error.constraint, error.limit, needed, detail, error.conflict, found=True)
