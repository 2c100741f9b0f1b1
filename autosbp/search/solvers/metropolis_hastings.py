"""Metropolis-Hastings sampling with annealing."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from autosbp.search._base import SearchOptions, SearchProblem, SearchResult
from autosbp.search.solvers.conditional_costs import Neighbourhood
from autosbp.search.solvers.parallel_restarts import part_generator, run_parts
from autosbp.search.solvers.solver_state import SolverState

RESTARTS = 4
STEPS_PER_VARIABLE = 500
MIN_STEPS, MAX_STEPS = 5_000, 200_000
CHECK_EVERY = 128
# The temperature 1/beta falls from the typical cost of one change to a ten-thousandth of it.
HOTTEST, COLDEST = 1.0, 1e-4
PROBES = 256


def metropolis_hastings(problem: SearchProblem, options: SearchOptions) -> SearchResult:
    """Sample P(S) ~ exp(-beta Cost(S)) by changes of one variable, with beta rising (AutoDDL, section 4.6).

    A proposal sets one uniformly chosen variable to a uniformly chosen value, and is accepted with probability
    min(1, P(new) / P(old)). AutoDDL leaves beta to the user; here 1/beta is a fraction of the mean cost of one change,
    so that scaling all costs changes nothing, and falls geometrically within each of ``RESTARTS`` chains. Memory over
    the limit is penalised in the energy, and only assignments that fit are returned. ``evaluations`` counts proposals;
    ``max_evaluations`` limits their number. Proves nothing.

    Raises:
        InfeasibleError: the least memories do not fit (proved), or no state reached was feasible.
    """
    run = SolverState("metropolis_hastings", problem, options)
    run.require_least_memory()
    near = Neighbourhood.of(problem)
    movable = [i for i, costs in enumerate(near.unary_s) if len(costs) > 1]
    steps = min(max(STEPS_PER_VARIABLE * len(movable), MIN_STEPS), MAX_STEPS)
    if options.max_evaluations is not None:
        # A start also counts. One evaluation stays unused, so that the limit does not cut the last chain.
        steps = max((options.max_evaluations - run.evaluations - 1) // RESTARTS - 1, 1)

    def chain(at: int, own: SolverState) -> _Chain:
        rng = part_generator(options.seed, at)
        if at == 0 and options.start is not None:
            return _Chain(near, own, rng, movable, list(options.start))
        return _Chain(near, own, rng, movable, [int(rng.integers(len(costs))) for costs in near.unary_s])

    def walk(at: int, own: SolverState) -> float:
        walker = chain(at, own)
        own.offer(walker.state)
        return float(walker.walk(steps, scale)) if movable else 0.0

    scale, probes = 1.0, min(PROBES, steps)
    began = time.perf_counter()
    if movable:
        scale = chain(0, run).typical_change(probes)
    each_s = (time.perf_counter() - began) * steps / probes
    accepted = run_parts(run, walk, RESTARTS if movable else 1, each_s)
    return run.result({"accepted": sum(accepted)})


@dataclass(slots=True)
class _Chain:
    near: Neighbourhood
    run: SolverState
    rng: np.random.Generator
    movable: list[int]
    state: list[int]

    def walk(self, steps: int, scale: float) -> int:
        """Run one chain from a temperature of ``scale`` seconds and return the number of accepted proposals.

        Offers the best state so far as it goes."""
        limit = self.near.memory_limit_bytes
        over = self.near.memory(self.state) - limit if limit is not None else -1
        price = 0.0 if limit is None else 10.0 * self.near.forbidden_s / max(limit, 1)
        cooling = (COLDEST / HOTTEST) ** (1.0 / steps)
        temperature = HOTTEST * scale
        energy, best_energy, best = 0.0, 0.0, self.state.copy()  # energies relative to the start
        is_new, accepted = False, 0
        for step in range(steps):
            if step % CHECK_EVERY == 0:
                if is_new:
                    self._offer(best)
                    is_new = False
                if self.run.should_stop():
                    break
                variables, values, dice = self._draw(min(CHECK_EVERY, steps - step))
            variable, value = variables[step % CHECK_EVERY], values[step % CHECK_EVERY]
            old = self.state[variable]
            use = self.near.memory_bytes[variable]
            new_over = over + int(use[value]) - int(use[old]) if limit is not None else -1
            change = self._change(variable, value) + price * (max(new_over, 0) - max(over, 0))
            self.run.evaluations += 1
            temperature *= cooling
            if change <= 0.0 or dice[step % CHECK_EVERY] < math.exp(-change / temperature):
                self.state[variable] = value
                energy += change
                over = new_over
                accepted += 1
                if energy < best_energy:
                    best_energy, best, is_new = energy, self.state.copy(), True
        if is_new:
            self._offer(best)
        return accepted

    def _offer(self, assignment: list[int]) -> None:
        self.run.offer(assignment)
        self.run.evaluations -= 1  # already counted as a proposal

    def _change(self, variable: int, value: int) -> float:
        """Seconds that setting ``variable`` to ``value`` adds, from its neighbours alone."""
        old, unary = self.state[variable], self.near.unary_s[variable]
        change = float(unary[value]) - float(unary[old])
        for other, table in self.near.rows[variable]:
            row = table[self.state[other]]
            change += float(row[value]) - float(row[old])
        return change

    def _draw(self, count: int) -> tuple[list[int], list[int], list[float]]:
        """Proposals: variables, a value for each, and numbers in [0, 1)."""
        picks = self.rng.integers(len(self.movable), size=count)
        variables = [self.movable[k] for k in picks]
        values = self.rng.integers(0, np.array([len(self.near.unary_s[i]) for i in variables]))
        return variables, values.tolist(), self.rng.random(count).tolist()

    def typical_change(self, probes: int) -> float:
        """Mean absolute cost of a random change that neither makes nor breaks a forbidden pair; above 0."""
        variables, values, _ = self._draw(probes)
        changes = [abs(self._change(i, x)) for i, x in zip(variables, values, strict=True)]
        usual = [c for c in changes if 0.0 < c < self.near.forbidden_s / 2.0]
        return sum(usual) / len(usual) if usual else 1e-30
