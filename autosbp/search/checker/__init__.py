"""An independent checker of certificates: it recomputes cost and bound from the problem alone.

Nothing of the searchers is used, only the definition of a problem (``_base``). An assignment that would refute a bound fits
the memory limit and costs less. It holds no value whose min-marginal, the least priced cost of any assignment with it by
bucket elimination, reaches the bound; nor one whose least memory exceeds the limit. The checker leaves out such values
until no more go:

- ``left`` must hold what remains below ``relaxed_bound_s`` by costs without a price and by memory; and the relaxation at
  the certificate's price, over ``left``, must reach ``relaxed_bound_s``.
  ``shifts`` prove that without an elimination (``checker.shifts``).
- For a ``bound_s`` above it, values go by all three relaxations; a depth-first branch and bound over those that remain
  looks for an assignment that refutes it. Messages of the eliminations give exact minima of the relaxations below a node.

**Rounding**: claims may be off by ``TOLERANCE`` times the sum of the absolute terms of the assignment's cost (costs of a step
are nonnegative, so that this is relative to the cost). The checker's own sums are bounded in exact arithmetic
(``checker.relaxation``), the price of memory never widens the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autosbp.errors import CertificateError, UnverifiedError
from autosbp.search._base import SearchProblem
from autosbp.search.certificate import CLOSINGS, RELAXATION, Certificate
from autosbp.search.checker.branching import Branching
from autosbp.search.checker.buckets import Order, greatest_table, min_fill
from autosbp.search.checker.relaxation import Kept, Relaxation, lean, priced
from autosbp.search.checker.shifts import shifted_bound

TOLERANCE = 1e-9
MAX_NODES = 100_000
MAX_TABLE_ENTRIES = 1 << 27
MAX_ROUNDS = 8


def check_certificate(problem: SearchProblem, certificate: Certificate, max_nodes: int = MAX_NODES) -> None:
    """Return if every claim of the certificate holds.

    Args:
        problem: as ``validate`` accepts it.
        max_nodes: of the branch and bound that verifies what lies above the relaxation.

    Raises:
        CertificateError: a claim is wrong: the field, what is claimed and what holds.
        UnverifiedError: nothing wrong was found, but the bound is verified only up to ``proved_s``: the branch and bound met
            ``max_nodes``, or a table of the elimination has more than ``MAX_TABLE_ENTRIES``.
    """
    cost, size = _cost(problem, certificate)
    tolerance = TOLERANCE * size
    _require(
        abs(certificate.cost_s - cost) <= tolerance, "cost_s", certificate.cost_s, f"the assignment costs {cost!r}"
    )
    bound, relaxed, price = certificate.bound_s, certificate.relaxed_bound_s, certificate.price_s_per_byte
    _require(certificate.closed_by in CLOSINGS, "closed_by", certificate.closed_by, f"one of {', '.join(CLOSINGS)}")
    _require(math.isfinite(bound) and bound <= cost + tolerance, "bound_s", bound, f"the assignment costs {cost!r}")
    _require(relaxed <= bound + tolerance, "relaxed_bound_s", relaxed, f"the bound is {bound!r}")
    needless = problem.memory_limit_bytes is None and price > 0.0
    _require(0.0 <= price < math.inf and not needless, "price_s_per_byte", price, "not a price of a memory limit")
    if certificate.shifts is not None and certificate.left is None:
        shifted = shifted_bound(problem, certificate.shifts, price)
        _require(relaxed <= shifted + tolerance, "relaxed_bound_s", relaxed, f"the shifts prove {shifted!r}")
        if bound <= relaxed + tolerance:
            return
    order = min_fill(problem.num_variables, [(edge.u, edge.v) for edge in problem.edges])
    sizes = [len(costs) for costs in problem.unary_s]
    entries = greatest_table(order, sizes)
    if entries > MAX_TABLE_ENTRIES:
        raise UnverifiedError(-math.inf, f"a table of {entries:,} entries is more than {MAX_TABLE_ENTRIES:,}")
    left = _check_left(problem, order, certificate, relaxed - tolerance)
    proved = priced(problem, order, left, price, relaxed - tolerance)
    told = f"the relaxation at {price!r} s per byte proves {proved.least!r}"
    _require(proved.is_hopeless, "relaxed_bound_s", relaxed, told)
    if bound <= relaxed + tolerance:
        return
    _require(certificate.closed_by != RELAXATION, "bound_s", bound, f"the relaxation proves {relaxed!r}")
    relaxations = _relaxations(problem, order, {price, 0.0}, bound - tolerance)
    open_values = _values_left(relaxations, sizes)
    if open_values is None:
        return
    search = Branching(problem, open_values, [over(open_values) for over in relaxations], bound - tolerance, max_nodes)
    cheaper = search.run()
    if cheaper is not None:
        raise CertificateError("bound_s", bound, f"the assignment {cheaper} fits and costs less")
    if search.is_cut_short:
        raise UnverifiedError(relaxed, f"{max_nodes:,} nodes of branch and bound do not prove {bound!r}")


def _require(holds: bool, field: str, claimed: object, found: str) -> None:
    if not holds:
        raise CertificateError(field, claimed, found)


def _cost(problem: SearchProblem, certificate: Certificate) -> tuple[float, float]:
    """What the assignment costs by the definition, and the sum of the absolute terms; memory is checked on the way."""
    values = certificate.assignment
    _require(len(values) == problem.num_variables, "assignment", len(values), f"{problem.num_variables} variables")
    for value, costs in zip(values, problem.unary_s, strict=True):
        _require(0 <= value < len(costs), "assignment", value, f"a variable has the values 0..{len(costs) - 1}")
    memory = problem.fixed_memory_bytes
    for use, value in zip(problem.memory_bytes, values, strict=True):
        memory += int(use[value])
    claimed, limit = certificate.memory_bytes, problem.memory_limit_bytes
    _require(memory == claimed, "memory_bytes", claimed, f"the assignment takes {memory}")
    _require(limit is None or memory <= limit, "memory_bytes", claimed, f"the limit is {limit}")
    terms = [problem.fixed_s]
    terms += [float(costs[value]) for costs, value in zip(problem.unary_s, values, strict=True)]
    terms += [float(edge.table[values[edge.u], values[edge.v]]) for edge in problem.edges]
    _require(all(map(math.isfinite, terms)), "assignment", values, "it holds a forbidden value or pair")
    return math.fsum(terms), math.fsum(map(abs, terms))


def _check_left(problem: SearchProblem, order: Order, certificate: Certificate, target_s: float) -> Kept:
    """The values that the relaxation is over; none is left out that an assignment below the target could hold."""
    whole: Kept = [np.arange(len(costs)) for costs in problem.unary_s]
    if certificate.left is None:
        return whole
    _require(len(certificate.left) == len(whole), "left", len(certificate.left), f"{len(whole)} variables")
    left: Kept = [np.array(values, dtype=np.int64) for values in certificate.left]
    for i, (given, values) in enumerate(zip(left, whole, strict=True)):
        known = len(given) > 0 and bool(np.isin(given, values).all()) and bool((np.diff(given) > 0).all())
        _require(known, "left", certificate.left[i], f"ascending values of variable {i} are needed, one at least")
    if all(len(given) == len(values) for given, values in zip(left, whole, strict=True)):
        return whole
    needed = _values_left(_relaxations(problem, order, {0.0}, target_s), [len(values) for values in whole])
    for i, (given, values) in enumerate(zip(left, needed or left, strict=True)):
        missing = np.setdiff1d(values, given)
        _require(not len(missing), "left", certificate.left[i], f"value {missing[:1]} of variable {i} may be held")
    return left


def _relaxations(
    problem: SearchProblem, order: Order, prices: set[float], target_s: float
) -> list[Callable[[Kept], Relaxation]]:
    """Over the values kept: at each price, the greatest first, and under a memory limit for the memory itself."""

    def at(price: float) -> Callable[[Kept], Relaxation]:
        return lambda kept: priced(problem, order, kept, price, target_s)

    found = [at(price) for price in sorted(prices, reverse=True)]
    limit = problem.memory_limit_bytes
    if limit is not None:
        found.append(lambda kept: lean(problem, order, kept, limit))
    return found


def _values_left(relaxations: Sequence[Callable[[Kept], Relaxation]], sizes: Sequence[int]) -> Kept | None:
    """The values that an assignment that fits and costs less than the target could hold; None where there is none."""
    kept: Kept = [np.arange(size) for size in sizes]
    if relaxations[0](kept).is_hopeless:
        return None
    for _ in range(MAX_ROUNDS):
        before = sum(map(len, kept))
        for over in relaxations:
            relaxation = over(kept)
            if relaxation.is_hopeless:
                return None
            sums = relaxation.buckets.marginals()
            kept = [values[~relaxation.hopeless(own)] for values, own in zip(kept, sums, strict=True)]
            if not all(map(len, kept)):
                return None
        if sum(map(len, kept)) == before:
            break
    return kept
