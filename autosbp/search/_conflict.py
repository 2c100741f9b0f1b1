"""Which of a plan's constraints exclude each other: a minimal set, of which each is needed for nothing to be left.

A deletion filter (Chinneck and Dravnieks 1991, section 2): constraints are dropped one after the other, and stay dropped
where the others still leave no strategy. What remains is minimal, not always smallest. Of many, such as a pin for each
parameter of a model, parts are dropped in the same way before.
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
)
"""Options that take strategies away, those first that say nothing without others; batch and optimizer are part of the task."""
MAPPINGS = ("pins", "stage_of")
MAX_CONSTRAINTS = 32
"""More are dropped by halves, quarters and so on at first, until no more are left."""
MAX_TRIALS = 64
"""Of dropping several at once; where more are left then, none are named."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """An option, or one entry of an option that is a mapping."""

    option: str
    key: str | None
    text: str


def with_conflict(
    error: InfeasibleError, options: PlanOptions, feasible: Callable[[PlanOptions], bool]
) -> InfeasibleError:
    """The error, with the constraints among ``options`` that exclude each other; as it is where there would be no strategy
    without any. ``feasible`` tells whether options leave a strategy; it may raise ``InfeasibleError`` instead, or
    ``InputError`` for options that say nothing without those left out, which then stay."""
    kept = constraints(options)
    if not kept or not _holds(options, [], feasible):
        return error
    kept = _fewer(kept, lambda fewer: not _holds(options, fewer, feasible))
    if len(kept) > MAX_CONSTRAINTS:
        return error
    for each in list(kept):
        fewer = [other for other in kept if other is not each]
        if not _holds(options, fewer, feasible):
            kept = fewer
    conflict = tuple(each.text for each in kept)
    return InfeasibleError(error.constraint, error.limit, error.needed, error.detail, conflict, found=error.found)


def _fewer(kept: list[Constraint], exclude: Callable[[list[Constraint]], bool]) -> list[Constraint]:
    """Some of many constraints that ``exclude`` each other, too: without the parts that are not needed, large ones first."""
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
    """The options that differ from the defaults; of mappings, each entry for itself."""
    defaults = _defaults()
    found = []
    for name in NAMES:
        value = getattr(options, name)
        if value != defaults[name]:
            text = ",".join(value) if isinstance(value, tuple) else value
            found.append(Constraint(name, None, f"{name}={text}"))
    return found + [
        Constraint(option, key, f"{option}.{key}={value}")
        for option in MAPPINGS
        for key, value in getattr(options, option).items()
    ]


def _with(options: PlanOptions, kept: list[Constraint]) -> PlanOptions:
    """The options with no other constraints than these, and no baselines."""
    dropped = {name: value for name, value in _defaults().items() if name not in {each.option for each in kept}}
    entries = {
        option: {each.key: getattr(options, option)[each.key] for each in kept if each.option == option}
        for option in MAPPINGS
    }
    return replace(options, **{**dropped, **entries, "baselines": ()})


def _defaults() -> dict[str, Any]:
    return {each.name: each.default for each in fields(PlanOptions) if each.name in NAMES}


def _holds(options: PlanOptions, kept: list[Constraint], feasible: Callable[[PlanOptions], bool]) -> bool:
    try:
        return feasible(_with(options, kept))
    except InfeasibleError:
        return False
    except InputError:
        return True
