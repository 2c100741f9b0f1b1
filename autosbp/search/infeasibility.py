"""Infeasibility errors, phrased in the user's options, with the memory that would suffice."""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.errors import InfeasibleError
from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.search.plan_options import PlanOptions


def blame_batch(error: InfeasibleError, options: PlanOptions, global_batch: int) -> InfeasibleError:
    """Blame ``global_batch`` if no microbatch splits evenly and the user gave no ``micro_batch``."""
    if error.constraint != "micro_batch" or options.micro_batch is not None:
        return error
    samples = "samples" if error.limit != 1 else "sample"
    detail = f"no microbatch splits evenly: of {error.limit} {samples}, {error.detail}"
    return InfeasibleError("global_batch", global_batch, error.needed, detail, error.conflict)


def at_limit(error: InfeasibleError, limit: int) -> InfeasibleError:
    """The error with the memory limit that was asked for, where a search had tightened it to make estimates fit."""
    if error.constraint != "memory_limit_bytes" or error.limit == limit:
        return error
    needed = error.needed if error.needed is not None and error.needed > limit else None
    detail = error.detail or "no strategy was found that fits"
    return InfeasibleError(error.constraint, limit, needed, detail, error.conflict, found=error.found)


def with_whole_batch(error: InfeasibleError, mixing_op: str, global_batch: int) -> InfeasibleError:
    """The error with why the batch is not split, if ``mixing_op`` says so, and how to split it nevertheless."""
    if not mixing_op:
        return error
    detail = (
        f"{mixing_op} combines several samples, so the batch of {global_batch} is not split into microbatches: "
        "micro_batch (--micro-batch) splits it all the same, into losses of fewer samples each"
    )
    detail = f"{error.detail}; {detail}" if error.detail else detail
    return InfeasibleError(error.constraint, error.limit, error.needed, detail, error.conflict, found=error.found)


def with_needed_memory(error: InfeasibleError, lean: Sequence[Candidate]) -> InfeasibleError:
    """The error with the memory of the smallest strategy found as ``needed``; ``lean`` is sorted by memory."""
    if not lean:
        return error
    needed, detail = lean[0].costs.memory_bytes_per_device, "the minimum of all strategies found"
    detail = f"{detail}; {error.detail}" if error.detail else detail
    return InfeasibleError(error.constraint, error.limit, needed, detail, error.conflict, found=True)
