"""Input checks of searchers.

A mistake raises an ``InputError`` that names the field. A variable without values, which makes every assignment
impossible, raises an ``InfeasibleError``."""

from __future__ import annotations

import math

import numpy as np

from autosbp.errors import InfeasibleError, InputError
from autosbp.search._base import SearchOptions, SearchProblem


def validate(problem: SearchProblem) -> None:
    """Check shapes, dtypes, indexes and values of a problem.

    Arrays that occur several times (repeated blocks) are read once.

    Raises:
        InputError: a NaN or -inf, an array of a wrong shape, an edge that does not join two variables.
        InfeasibleError: a variable with an empty domain, by its name.
    """
    count = problem.num_variables
    for field, length in (("unary_s", len(problem.unary_s)), ("memory_bytes", len(problem.memory_bytes))):
        if length != count:
            raise InputError(field, length, f"expected one array for each of the {count} names")
    if not math.isfinite(problem.fixed_s):
        raise InputError("fixed_s", problem.fixed_s, "expected a finite number of seconds")
    if problem.memory_limit_bytes is not None and problem.memory_limit_bytes < 0:
        raise InputError("memory_limit_bytes", problem.memory_limit_bytes, "expected at least 0")
    checked: set[int] = set()
    pairs: set[tuple[int, int]] = set()
    for i, (costs, use) in enumerate(zip(problem.unary_s, problem.memory_bytes, strict=True)):
        if (id(costs), id(use)) in pairs:
            continue
        pairs.add((id(costs), id(use)))
        if costs.ndim != 1:
            raise InputError(f"unary_s[{i}]", costs.shape, "expected one dim")
        if costs.size == 0:
            raise InfeasibleError(f"unary_s[{i}]", 0, 1, f"{problem.names[i]} has no values")
        if use.shape != costs.shape or not np.issubdtype(use.dtype, np.integer):
            raise InputError(
                f"memory_bytes[{i}]", (use.shape, str(use.dtype)), (f"expected integers of shape {costs.shape}")
            )
        _check_costs(f"unary_s[{i}]", costs, checked)
    sizes = [len(costs) for costs in problem.unary_s]
    for k, edge in enumerate(problem.edges):
        if not (0 <= edge.u < count and 0 <= edge.v < count) or edge.u == edge.v:
            raise InputError(f"edges[{k}]", (edge.u, edge.v), f"expected two different variables in 0..{count - 1}")
        shape = (sizes[edge.u], sizes[edge.v])
        if edge.table.shape != shape:
            raise InputError(f"edges[{k}].table", edge.table.shape, f"expected shape {shape}")
        if id(edge.table) not in checked:
            _check_costs(f"edges[{k}].table", edge.table, checked)


def _check_costs(field: str, costs: np.ndarray[tuple[int, ...], np.dtype[np.float64]], checked: set[int]) -> None:
    if id(costs) in checked:
        return
    checked.add(id(costs))
    if not np.issubdtype(costs.dtype, np.floating):
        raise InputError(field, str(costs.dtype), "expected floating-point seconds")
    lowest = float(np.min(costs))  # propagates NaN
    if math.isnan(lowest) or lowest == -math.inf:
        raise InputError(field, lowest, "expected finite seconds, or inf for forbidden values")


def check_options(problem: SearchProblem, options: SearchOptions) -> None:
    """Check the options against the problem they come with.

    Raises:
        InputError: ``seed < 0``, ``time_limit_s <= 0`` or NaN, ``gap_tolerance`` outside [0, 1),
            ``max_evaluations < 1``, or a ``start`` that is no assignment of this problem.
    """
    if options.seed < 0:
        raise InputError("seed", options.seed, "expected at least 0")
    if not options.time_limit_s > 0:
        raise InputError("time_limit_s", options.time_limit_s, "expected more than 0")
    if not 0.0 <= options.gap_tolerance < 1.0:
        raise InputError("gap_tolerance", options.gap_tolerance, "expected at least 0 and below 1")
    if options.max_evaluations is not None and options.max_evaluations < 1:
        raise InputError("max_evaluations", options.max_evaluations, "expected at least 1, or None")
    if options.start is None:
        return
    if len(options.start) != problem.num_variables:
        raise InputError("start", len(options.start), f"expected {problem.num_variables} values")
    for i, (value, costs) in enumerate(zip(options.start, problem.unary_s, strict=True)):
        if not 0 <= value < len(costs):
            raise InputError(f"start[{i}]", value, f"expected a value in 0..{len(costs) - 1}")
