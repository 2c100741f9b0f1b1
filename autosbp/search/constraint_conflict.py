"""Minimal set of the user's constraints that exclude each other.

Uses a deletion filter (Chinneck and Dravnieks 1991, section 2): constraints are dropped one by one, and stay dropped if
the others are still infeasible. The result is minimal, but not always of minimum size. If there are many constraints,
such as a pin for each parameter of a model, groups of them are dropped first in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from autosbp.errors import InfeasibleError, InputError
from autosbp.search.plan_options import PlanOptions

NAMES = (
    "micro_batch",
    "memory_limit_bytes",
    "schedules",
    "stages",
    "storage",
    "data_parallel",
    "tensor_parallel",
    "recompute",
    "deterministic",
    "grid",
)
"""Options that exclude strategies, those that need others first. Batch and optimizer belong to the task."""
MAPPING_OPTIONS = ("pins", "stage_of")
MAX_CONSTRAINTS = 32
"""Above this number, constraints are dropped by halves, quarters and so on first."""
MAX_TRIALS = 64
"""Limit of trials that drop groups. If more than ``MAX_CONSTRAINTS`` remain then, no conflict is reported."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """An option, or one entry of an option that is a mapping."""

    option: str
    key: str | None
    text: str


def with_conflict(
    error: InfeasibleError, options: PlanOptions, feasible: Callable[[PlanOptions], bool]
) -> InfeasibleError:
    """Add a minimal set of conflicting constraints to an infeasibility error.

    Args:
        error: to extend. Returned as it is if even a plan without constraints is infeasible.
        options: with the constraints.
        feasible: whether options admit a strategy. May raise ``InfeasibleError`` instead, or ``InputError`` for options
            that mean nothing without a dropped one; the dropped one then stays.
    """
    kept = constraints(options)
    if not kept or not _is_feasible(options, [], feasible):
        return error
    kept = _drop_groups(kept, lambda fewer: not _is_feasible(options, fewer, feasible))
    if len(kept) > MAX_CONSTRAINTS:
        return error
    for each in list(kept):
        fewer = [other for other in kept if other is not each]
        if not _is_feasible(options, fewer, feasible):
            kept = fewer
    conflict = tuple(each.text for each in kept)
    return InfeasibleError(error.constraint, error.limit, error.needed, error.detail, conflict, found=error.found)


def _drop_groups(kept: list[Constraint], exclude: Callable[[list[Constraint]], bool]) -> list[Constraint]:
    """Drop large groups of constraints first, as long as the rest still exclude each other."""
    size, trials = len(kept) // 2, 0
    while len(kept) > MAX_CONSTRAINTS and size > 1 and trials < MAX_TRIALS:
        at = 0
        while at < len(kept) and len(kept) > MAX_CONSTRAINTS and trials < MAX_TRIALS:
            fewer, trials = kept[:at] + kept[at + size :], trials + 1
            if exclude(fewer):
                kept = fewer
            else:
                at += size
        size //= 2
    return kept


def constraints(options: PlanOptions) -> list[Constraint]:
    """Options that differ from their defaults; each entry of a mapping counts on its own."""
    defaults = _defaults()
    found = []
    for name in NAMES:
        value = getattr(options, name)
        if value != defaults[name]:
            text = ",".join(value) if isinstance(value, tuple) else value
            found.append(Constraint(name, None, f"{name}={text}"))
    return found + [
        Constraint(option, key, f"{option}.{key}={value}")
        for option in MAPPING_OPTIONS
        for key, value in getattr(options, option).items()
    ]


def _with(options: PlanOptions, kept: list[Constraint]) -> PlanOptions:
    """The options with only these constraints, and without baselines."""
    dropped = {name: value for name, value in _defaults().items() if name not in {each.option for each in kept}}
    entries = {
        option: {each.key: getattr(options, option)[each.key] for each in kept if each.option == option}
        for option in MAPPING_OPTIONS
    }
    return replace(options, **{**dropped, **entries, "baselines": ()})


def _defaults() -> dict[str, Any]:
    return {each.name: each.default for each in fields(PlanOptions) if each.name in NAMES}


def _is_feasible(options: PlanOptions, kept: list[Constraint], feasible: Callable[[PlanOptions], bool]) -> bool:
    try:
        return feasible(_with(options, kept))
    except InfeasibleError:
        return False
    except InputError:
        return True
