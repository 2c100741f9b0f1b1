"""Coordinate descent with restarts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autosbp.search._base import Costs, SearchOptions, SearchProblem, SearchResult
from autosbp.search.searchers.local import Neighbourhood
from autosbp.search.searchers.parts import part_generator, run_parts
from autosbp.search.searchers.run import Run

DEFAULT_RESTARTS = 16
VALUES_OF_PART = 1 << 14
"""Starts that try about so many values at the least belong together: single ones of small problems are soon over."""
MAX_SWEEPS = 200
LOOKS = 16
"""At variables, between two at the time."""
FIRST_PRICE, PRICE_STEP, MAX_PRICE_STEPS = 1e-4, 3.0, 20


def coordinate_descent(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Set each variable in turn to its best value given the others, until none changes; restart (AutoDDL, section 4.6).

    The first start is ``options.start`` or each variable's cheapest value. Later ones are random points, and every
    second one is *grown*: variables in random order take their best value given those already set, which meets
    constraints between neighbours that a random point breaks. Stops after ``max_evaluations``, or after
    ``DEFAULT_RESTARTS`` starts when no limit is given. ``evaluations`` counts the values tried. Proves nothing.

    Raises:
        InfeasibleError: the least memories do not fit (proved), or no fixed point was feasible.
    """
    run = Run("coordinate_descent", problem, options)
    run.require_least_memory()
    near = Neighbourhood.of(problem)

    most = None if options.max_evaluations is not None else DEFAULT_RESTARTS
    if problem.num_variables == 0:
        most = 1
    of_part = max(VALUES_OF_PART // max(sum(map(len, near.unary_s)), 1), 1)

    def part(at: int, own: Run) -> float:
        rng = part_generator(options.seed, at)
        for start in range(at * of_part, (at + 1) * of_part):
            if start == most or own.should_stop():
                return float(start - at * of_part)
            descend(near, _point(near, start, options.start, rng, own), own)
        return float(of_part)

    starts = run_parts(run, part, None if most is None else -(-most // of_part))
    return run.result({"starts": sum(starts)})


def _point(
    near: Neighbourhood, start: int, given: Sequence[int] | None, rng: np.random.Generator, run: Run
) -> list[int]:
    """Where the start of a number begins."""
    if start == 0:
        return cheapest_values(near) if given is None else list(given)
    return _grow(near, rng, run) if start % 2 == 0 else _random_point(near, rng)


def cheapest_values(near: Neighbourhood) -> list[int]:
    """The assignment that is best when edges are left out."""
    return [int(costs.argmin()) for costs in near.unary_s]


def descend(near: Neighbourhood, assignment: list[int], run: Run) -> None:
    """Descend in place from ``assignment`` to a fixed point, and offer it to ``run``.

    With a memory limit, bytes over the limit are priced; the price rises until the assignment fits, and a last descent
    forbids to leave what fits. So the memory is given up where it costs least, not where it is met first.
    """
    state = _State(near, assignment, near.memory(assignment), 0.0)
    _sweep(state, run)
    if state.over_bytes > 0:
        price = near.second_per_byte() * FIRST_PRICE
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
    run.evaluations -= 1  # its values are counted


@dataclass(slots=True)
class _State:
    near: Neighbourhood
    assignment: list[int]
    used_bytes: int
    price: float  # seconds per byte over the limit
    known_price: float = 0.0
    known: dict[tuple[int, ...], tuple[int, bool]] = field(default_factory=dict)  # at this price, and with as much used

    @property
    def over_bytes(self) -> int:
        limit = self.near.memory_limit_bytes
        return 0 if limit is None else self.used_bytes - limit

    def best(self, variable: int) -> tuple[int, bool]:
        """The cheapest value, and whether it is cheaper than the one there is."""
        costs = self.costs(variable)
        best = int(costs.argmin())
        return best, bool(costs[best] < costs[self.assignment[variable]])

    def costs(self, variable: int) -> Costs:
        costs = self.near.costs(variable, self.assignment)
        if self.price > 0.0:
            use = self.near.memory_bytes[variable]
            others = self.over_bytes - int(use[self.assignment[variable]])
            if others + self.near.most_bytes[variable] > 0:
                costs = costs + self.price * np.maximum(use + others, 0)
        return costs


def _sweep(state: _State, run: Run) -> None:
    """Sweeps until nothing changes. Leaves early, with the assignment intact, when the run must stop.

    A variable is looked at again only when a neighbour has changed, or, while memory is priced, when anything has. Like
    variables of like surroundings, as in repeated blocks, are looked at once as long as memory costs the same.
    """
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
            if (not looked % LOOKS or run.evaluations >= most) and run.should_stop():
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


def _grow(near: Neighbourhood, rng: np.random.Generator, run: Run) -> list[int]:
    """Walk the graph from a random variable; each variable takes its best value given those already set."""
    count = len(near.unary_s)
    assignment = [-1] * count
    for root in rng.permutation(count):
        queue = [int(root)] if assignment[root] < 0 else []
        for i in queue:  # grows while it is read
            if assignment[i] >= 0:
                continue
            if i == root:
                assignment[i] = int(rng.integers(len(near.unary_s[i])))
            else:
                costs = near.known_costs(i, assignment)
                run.evaluations += len(costs)
                assignment[i] = int(costs.argmin())
            queue.extend(other for other, _ in near.rows[i] if assignment[other] < 0)
    return assignment
