"""Independent checker of certificates: it recomputes cost and bound from the problem alone.

It uses nothing of the solvers, only the definition of a problem (``_base``). An assignment that refutes a bound fits
the memory limit and costs less than the bound. So it holds no value whose min-marginal reaches the bound, and no value
whose least memory exceeds the limit. (The min-marginal is the least penalised cost of any assignment with that value,
by bucket elimination.) The checker removes such values until no more can go:

- ``left`` must hold all values that remain below ``relaxed_bound_s`` by unpenalised costs and by memory. The relaxation
  at the certificate's Lagrange multiplier, over ``left``, must reach ``relaxed_bound_s``. ``shifts`` prove that without
  an elimination (``checker.reparametrization``).
- For a ``bound_s`` above it, all three relaxations remove values. A depth-first branch and bound over the remaining
  values looks for an assignment that refutes the bound. The elimination's messages give exact minima of the relaxations
  below a node.

**Rounding**: claims may be off by ``TOLERANCE`` times the sum of the absolute terms of the assignment's cost (costs of
a step are nonnegative, so this is relative to the cost). The checker bounds its own sums in exact arithmetic
(``checker.relaxation``). The Lagrange multiplier never widens the tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autosbp.errors import CertificateError, UnverifiedError
from autosbp.search._base import SearchProblem
from autosbp.search.certificate import PROOF_METHODS, RELAXATION, Certificate
from autosbp.search.checker.branching import Branching
from autosbp.search.checker.bucket_elimination import BucketOrder, greatest_table, min_fill
from autosbp.search.checker.relaxation import Kept, Relaxation, lagrangian_relaxation, memory_relaxation
from autosbp.search.checker.reparametrization import shifted_bound

TOLERANCE = 1e-9
MAX_NODES = 100_000
MAX_TABLE_ENTRIES = 1 << 27
MAX_ROUNDS = 8


def check_certificate(problem: SearchProblem, certificate: Certificate, max_nodes: int = MAX_NODES) -> None:
    """Return if every claim of the certificate holds.

    Args:
        problem: as ``validate`` accepts it.
        max_nodes: limit of the branch and bound that verifies what lies above the relaxation.

    Raises:
        CertificateError: a claim is wrong; it names the field, the claim and the correct value.
        UnverifiedError: nothing is known to be wrong, but the bound is verified only up to ``proved_s``: the branch and
            bound reached ``max_nodes``, or an elimination table has more than ``MAX_TABLE_ENTRIES`` entries.
    """
    cost, size = _cost(problem, certificate)
    tolerance = TOLERANCE * size
    _require(
        abs(certificate.cost_s - cost) <= tolerance, "cost_s", certificate.cost_s, f"the assignment costs {cost!r}"
    )
    bound, relaxed, price = certificate.bound_s, certificate.relaxed_bound_s, certificate.price_s_per_byte
    _require(
        certificate.closed_by in PROOF_METHODS,
        "closed_by",
        certificate.closed_by,
        (f"expected one of {', '.join(PROOF_METHODS)}"),
    )
    _require(math.isfinite(bound) and bound <= cost + tolerance, "bound_s", bound, f"the assignment costs {cost!r}")
    _require(relaxed <= bound + tolerance, "relaxed_bound_s", relaxed, f"the bound is {bound!r}")
    needless = problem.memory_limit_bytes is None and price > 0.0
    _require(
        0.0 <= price < math.inf and not needless,
        "price_s_per_byte",
        price,
        ("expected a finite multiplier of at least 0, and 0 without a memory limit"),
    )
    if certificate.shifts is not None and certificate.left is None:
        shifted = shifted_bound(problem, certificate.shifts, price)
        _require(relaxed <= shifted + tolerance, "relaxed_bound_s", relaxed, f"the shifts prove {shifted!r}")
        if bound <= relaxed + tolerance:
            return
    order = min_fill(problem.num_variables, [(edge.u, edge.v) for edge in problem.edges])
    sizes = [len(costs) for costs in problem.unary_s]
    entries = greatest_table(order, sizes)
    if entries > MAX_TABLE_ENTRIES:
        raise UnverifiedError(-math.inf, f"a table of {entries:,} entries exceeds the limit of {MAX_TABLE_ENTRIES:,}")
    left = _check_left(problem, order, certificate, relaxed - tolerance)
    proved = lagrangian_relaxation(problem, order, left, price, relaxed - tolerance)
    told = f"the relaxation at {price!r} s per byte proves {proved.least!r}"
    _require(proved.is_proved, "relaxed_bound_s", relaxed, told)
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
        raise CertificateError("bound_s", bound, f"the assignment {cheaper} is feasible and cheaper")
    if search.is_cut_short:
        raise UnverifiedError(relaxed, f"{max_nodes:,} branch-and-bound nodes did not prove {bound!r}")


def _require(holds: bool, field: str, claimed: object, found: str) -> None:
    if not holds:
        raise CertificateError(field, claimed, found)


def _cost(problem: SearchProblem, certificate: Certificate) -> tuple[float, float]:
    """Cost of the assignment by definition, and the sum of its absolute terms; also checks memory."""
    values = certificate.assignment
    _require(
        len(values) == problem.num_variables, "assignment", len(values), (f"expected {problem.num_variables} variables")
    )
    for value, costs in zip(values, problem.unary_s, strict=True):
        _require(0 <= value < len(costs), "assignment", value, f"expected 0..{len(costs) - 1}")
    memory = problem.fixed_memory_bytes
    for use, value in zip(problem.memory_bytes, values, strict=True):
        memory += int(use[value])
    claimed, limit = certificate.memory_bytes, problem.memory_limit_bytes
    _require(memory == claimed, "memory_bytes", claimed, f"the assignment takes {memory}")
    _require(limit is None or memory <= limit, "memory_bytes", claimed, f"the limit is {limit}")
    terms = [problem.fixed_s]
    terms += [float(costs[value]) for costs, value in zip(problem.unary_s, values, strict=True)]
    terms += [float(edge.table[values[edge.u], values[edge.v]]) for edge in problem.edges]
    _require(all(map(math.isfinite, terms)), "assignment", values, "it has a forbidden value or pair")
    return math.fsum(terms), math.fsum(map(abs, terms))


def _check_left(problem: SearchProblem, order: BucketOrder, certificate: Certificate, target_s: float) -> Kept:
    """The values that the relaxation covers; requires every value that an assignment below the target could hold."""
    whole: Kept = [np.arange(len(costs)) for costs in problem.unary_s]
    if certificate.left is None:
        return whole
    _require(len(certificate.left) == len(whole), "left", len(certificate.left), f"expected {len(whole)} variables")
    left: Kept = [np.array(values, dtype=np.int64) for values in certificate.left]
    for i, (given, values) in enumerate(zip(left, whole, strict=True)):
        known = len(given) > 0 and bool(np.isin(given, values).all()) and bool((np.diff(given) > 0).all())
        _require(known, "left", certificate.left[i], f"expected at least one value of variable {i}, in ascending order")
    if all(len(given) == len(values) for given, values in zip(left, whole, strict=True)):
        return whole
    needed = _values_left(_relaxations(problem, order, {0.0}, target_s), [len(values) for values in whole])
    for i, (given, values) in enumerate(zip(left, needed or left, strict=True)):
        missing = np.setdiff1d(values, given)
        _require(
            not len(missing), "left", certificate.left[i], (f"value {missing[:1]} of variable {i} must not be excluded")
        )
    return left


def _relaxations(
    problem: SearchProblem, order: BucketOrder, prices: set[float], target_s: float
) -> list[Callable[[Kept], Relaxation]]:
    """Relaxations over the values kept: at each multiplier, highest first, and of memory itself if there is a limit."""

    def at(price: float) -> Callable[[Kept], Relaxation]:
        return lambda kept: lagrangian_relaxation(problem, order, kept, price, target_s)

    found = [at(price) for price in sorted(prices, reverse=True)]
    limit = problem.memory_limit_bytes
    if limit is not None:
        found.append(lambda kept: memory_relaxation(problem, order, kept, limit))
    return found


def _values_left(relaxations: Sequence[Callable[[Kept], Relaxation]], sizes: Sequence[int]) -> Kept | None:
    """The values that an assignment below the target could hold within memory; None if there is no such assignment."""
    kept: Kept = [np.arange(size) for size in sizes]
    if relaxations[0](kept).is_proved:
        return None
    for _ in range(MAX_ROUNDS):
        before = sum(map(len, kept))
        for over in relaxations:
            relaxation = over(kept)
            if relaxation.is_proved:
                return None
            sums = relaxation.buckets.marginals()
            kept = [values[~relaxation.is_refuted(own)] for values, own in zip(kept, sums, strict=True)]
            if not all(map(len, kept)):
                return None
        if sum(map(len, kept)) == before:
            break
    return kept
