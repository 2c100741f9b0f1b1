"""Coordinate descent with restarts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autosbp.search._base import Costs, SearchOptions, SearchProblem, SearchResult
from autosbp.search.solvers.conditional_costs import Neighbourhood
from autosbp.search.solvers.parallel_restarts import part_generator, run_parts
from autosbp.search.solvers.solver_state import SolverState

DEFAULT_RESTARTS = 16
VALUES_OF_PART = 1 << 14
"""Least number of values tried by the starts of one part: single starts of small problems are too short."""
MAX_SWEEPS = 200
VARIABLES_BETWEEN_CHECKS = 16
"""Variables between two checks of the clock."""
FIRST_PRICE, PRICE_STEP, MAX_PRICE_STEPS = 1e-4, 3.0, 20


def coordinate_descent(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Set each variable in turn to its best value given the others, until none changes; restart (AutoDDL, section 4.6).

    The first start is ``options.start`` or each variable's cheapest value. Later ones are random points. Every second
    one is *grown*: variables in random order take their best value given those already set, which meets constraints
    between neighbours that a random point breaks. Stops after ``max_evaluations``, or after ``DEFAULT_RESTARTS`` starts
    without a limit. ``evaluations`` counts the values tried. Proves nothing.

    Raises:
        InfeasibleError: the least memories do not fit (proved), or no fixed point was feasible.
    """
    run = SolverState("coordinate_descent", problem, options)
    run.require_least_memory()
    near = Neighbourhood.of(problem)

    most = None if options.max_evaluations is not None else DEFAULT_RESTARTS
    if problem.num_variables == 0:
        most = 1
    of_part = max(VALUES_OF_PART // max(sum(map(len, near.unary_s)), 1), 1)

    def part(at: int, own: SolverState) -> float:
        rng = part_generator(options.seed, at)
        for start in range(at * of_part, (at + 1) * of_part):
            if start == most or own.should_stop():
                return float(start - at * of_part)
            descend(near, _start_assignment(near, start, options.start, rng, own), own)
        return float(of_part)

    starts = run_parts(run, part, None if most is None else -(-most // of_part))
    return run.result({"starts": sum(starts)})


def _start_assignment(
    near: Neighbourhood, start: int, given: Sequence[int] | None, rng: np.random.Generator, run: SolverState
) -> list[int]:
    """The assignment that start number ``start`` begins with."""
    if start == 0:
        return cheapest_values(near) if given is None else list(given)
    return _grow(near, rng, run) if start % 2 == 0 else _random_point(near, rng)


def cheapest_values(near: Neighbourhood) -> list[int]:
    """The best assignment without edges."""
    return [int(costs.argmin()) for costs in near.unary_s]


def descend(near: Neighbourhood, assignment: list[int], run: SolverState) -> None:
    """Descend in place from ``assignment`` to a fixed point, and offer it to ``run``.

    With a memory limit, bytes over the limit are penalised, and the penalty rises until the assignment fits; a last
    descent then forbids exceeding the limit. So memory is saved where that costs least, not where it comes first."""
    state = _State(near, assignment, near.memory(assignment), 0.0)
    _sweep(state, run)
    if state.over_bytes > 0:
        price = near.max_useful_penalty_s_per_byte() * FIRST_PRICE
        for _ in range(MAX_PRICE_STEPS):
            state.price = price
            _sweep(state, run)
            if state.over_bytes <= 0 or run.stopped != "done":
                break
            price *= PRICE_STEP
    if near.memory_limit_bytes is not None:
        state.price = near.forbidden_s
        _sweep(state, run)
    run.offer(assignment)
    run.evaluations -= 1  # its values are already counted


@dataclass(slots=True)
class _State:
    near: Neighbourhood
    assignment: list[int]
    used_bytes: int
    price: float  # seconds per byte over the limit
    known_price: float = 0.0
    known: dict[tuple[int, ...], tuple[int, bool]] = field(default_factory=dict)  # valid at this penalty and memory use

    @property
    def over_bytes(self) -> int:
        limit = self.near.memory_limit_bytes
        return 0 if limit is None else self.used_bytes - limit

    def best(self, variable: int) -> tuple[int, bool]:
        """The cheapest value, and whether it is cheaper than the current one."""
        costs = self.costs(variable)
        best = int(costs.argmin())
        return best, bool(costs[best] < costs[self.assignment[variable]])

    def costs(self, variable: int) -> Costs:
        costs = self.near.costs(variable, self.assignment)
        if self.price > 0.0:
            use = self.near.memory_bytes[variable]
            others = self.over_bytes - int(use[self.assignment[variable]])
            if others + self.near.max_bytes[variable] > 0:
                costs = costs + self.price * np.maximum(use + others, 0)
        return costs


def _sweep(state: _State, run: SolverState) -> None:
    """Sweep until nothing changes. Leaves early, with a valid assignment, when the run must stop.

    A variable is revisited only after a neighbour has changed, or, while memory is penalised, after anything has. Equal
    variables with equal surroundings, as in repeated blocks, are evaluated once as long as memory costs the same."""
    near, assignment, known = state.near, state.assignment, state.known
    memory, others, kinds = near.memory_bytes, near.others, near.kinds
    count, priced = len(assignment), state.price > 0.0
    most = math.inf if run.options.max_evaluations is None else run.options.max_evaluations
    if state.price != state.known_price:
        state.known_price = state.price
        known.clear()
    stale, looked = [True] * count, 0
    for _ in range(MAX_SWEEPS):
        changed = False
        for i in range(count):
            if not stale[i]:
                continue
            if (not looked % VARIABLES_BETWEEN_CHECKS or run.evaluations >= most) and run.should_stop():
                return
            looked += 1
            now = assignment[i]
            if kinds:
                key = (kinds[i], now, *[assignment[other] for other in others[i]])
                found = known.get(key)
                if found is None:
                    found = known[key] = state.best(i)
                best, better = found
            else:
                best, better = state.best(i)
            run.evaluations += len(memory[i])
            stale[i] = False
            if better:
                used = int(memory[i][best]) - int(memory[i][now])
                state.used_bytes += used
                assignment[i] = best
                changed = True
                if used and priced:
                    known.clear()
                    stale = [True] * count
                for other in others[i]:
                    stale[other] = True
        if not changed:
            return


def _random_point(near: Neighbourhood, rng: np.random.Generator) -> list[int]:
    return [int(rng.integers(len(costs))) for costs in near.unary_s]


def _grow(near: Neighbourhood, rng: np.random.Generator, run: SolverState) -> list[int]:
    """Walk the graph from a random variable; each variable takes its best value given those already set."""
    count = len(near.unary_s)
    assignment = [-1] * count
    for root in rng.permutation(count):
        queue = [int(root)] if assignment[root] < 0 else []
        for i in queue:  # grows during the loop
            if assignment[i] >= 0:
                continue
            if i == root:
                assignment[i] = int(rng.integers(len(near.unary_s[i])))
            else:
                costs = near.partial_costs(i, assignment)
                run.evaluations += len(costs)
                assignment[i] = int(costs.argmin())
            queue.extend(other for other, _ in near.rows[i] if assignment[other] < 0)
    return assignment
