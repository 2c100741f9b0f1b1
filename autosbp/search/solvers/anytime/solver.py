"""Two workers take turns of equal work: Lagrangian bounds on memory, and annealing with tree moves.

Each turn is twice as long as the previous one; the last ones share the remaining time. Results depend on the seed and
on earlier results, not on the clock: unless a limit strikes, equal calls give equal results."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from operator import itemgetter
from threading import Event, Thread
from typing import Any

import numpy as np

from autosbp.search.solvers.anytime.active_memory_constraints import ActiveConstraints
from autosbp.search.solvers.anytime.annealing import Annealing
from autosbp.search.solvers.anytime.assignment import TINY, state_of
from autosbp.search.solvers.anytime.cost_network import lay_out
from autosbp.search.solvers.anytime.interval_problem import Floats, IntervalProblem, Ints
from autosbp.search.solvers.anytime.lagrangian_bound import PricedBound
from autosbp.search.solvers.anytime.milp import MilpResult, prove
from autosbp.search.solvers.anytime.node_contraction import with_tables_folded
from autosbp.search.solvers.anytime.single_moves import descend, reduce_memory
from autosbp.search.solvers.anytime.solution_crossover import merged_problem


@dataclass(frozen=True)
class AnnealingVariant:
    """Parameters of annealing.

    ``heat``: initial temperature, in multiples of a node's mean cost above the least. ``flips``: single moves per tree
    move."""

    heat: float
    single_moves_per_tree: int


FIRST_WORK = 50_000_000
"""Entries touched by a worker in its first turn: about a second."""
FIRST_IMPROVEMENTS, FIRST_DECODES, DECODE_TURNS = 60, 3, 20
"""Initial improvements of the bound; assignments decoded from it, and passes before each."""
PROVABLE = 150_000
"""Table entries up to which branch and bound gets the whole problem."""
REFINING = (AnnealingVariant(2.5, 50), AnnealingVariant(0.25, 300))
"""Variants that start from the best so far."""
EXPLORING = (
    AnnealingVariant(10.0, 20),
    AnnealingVariant(10.0, 50),
    AnnealingVariant(20.0, 20),
    AnnealingVariant(5.0, 20),
)
"""Variants that start from an assignment decoded from the bound's multipliers."""
COOLING = 100.0
NUM_DOUBLING_TURNS, PATIENCE = 3, 24
"""Lengths of turns.

The first ``NUM_DOUBLING_TURNS`` turns double in length; later only refining turns with a gain do. Explorations get longer after
every ``PATIENCE`` of them."""
MIN_GAIN = 0.01
"""Fraction of the gap that refining has to gain to continue."""
MIN_BOUND_GAIN, MIN_BOUND_IMPROVEMENTS = 0.01, 500
"""The bound rests after a turn that raised it by less than this fraction of the gap, once improved
``MIN_BOUND_IMPROVEMENTS`` times."""
POOL = 12
"""Number of assignments kept for crossover."""
MERGE_EVERY = 8
"""Explorations between two crossovers."""
MAX_STALE_TURNS = 40
"""Turns without a gain after which the search ends."""
POLL_S = 0.1


@dataclass
class BestAssignment:
    """The incumbent. ``x`` is None, and ``cost`` inf, before anything fits."""

    x: Ints | None
    cost: float
    bound: float
    work: int = 0
    infeasible: bool = False

    @property
    def proved(self) -> bool:
        return self.cost - self.bound < 2 * TINY


@dataclass(frozen=True)
class AnnealingResult:
    """Result of one annealing: its best assignment, the instants that it watched, and its effort."""

    x: Ints
    cost: float
    instants: Ints
    touched: int
    seconds: float


class AnytimeSolver:
    """Solves a problem in which every node has at least one value.

    Args:
        seed: of all random numbers.
        deadline: in terms of ``time.monotonic``.
        should_stop: called about every 0.1 s with the incumbent; True ends the search.
    """

    def __init__(
        self, problem: IntervalProblem, seed: int, deadline: float, should_stop: Callable[[BestAssignment], bool]
    ) -> None:
        self.problem = problem
        network = lay_out(with_tables_folded(problem))
        self.network, self.seed, self.deadline, self.should_stop = network, seed, deadline, should_stop
        self.active_constraints = ActiveConstraints(network)
        self.free = np.flatnonzero(network.num_values > 1)
        self.found = BestAssignment(None, np.inf, -np.inf)
        self.stop = Event()
        self._bound = PricedBound(network)
        self._pool: list[tuple[float, Ints]] = []
        self._refined = self._explored = self._draws = 0
        self._rate = 0.0
        self._floor = float(np.minimum.reduceat(network.costs, network.links.first[:-1]).sum())
        self._proof: list[MilpResult] = []

    def run(self, start: Ints | None = None) -> BestAssignment:
        """Search from ``start``, or the leanest assignment, until it is proved optimal, progress stalls, or the time is up."""
        self._find_first(start)
        if not self._is_finished() and self.network.num_entries <= PROVABLE:
            # An optimum proved in time replaces everything else; otherwise the turns' results count.
            early = BestAssignment(self.found.x, self.found.cost, self.found.bound)
            Thread(target=self._prove, args=(self.found.cost,), daemon=True).start()
            self._run_turns()
            self._use_milp_result(early)
        elif not self._is_finished():
            self._run_turns()
        return self.found

    def _prove(self, cost: float) -> None:
        self._proof.append(prove(self.network, cost, self.deadline))

    def _use_milp_result(self, early: BestAssignment) -> None:
        for proof in self._proof:
            self.found.bound = max(self.found.bound, proof.bound)
            if proof.infeasible and self.found.x is None:
                self.found.infeasible = True
            if proof.x is not None and proof.optimal:
                self.found.x, self.found.cost = early.x, early.cost
                self._offer_fitting(proof.x)
                self.found.bound = self.found.cost
            self._offer_fitting(proof.x)

    def _find_first(self, start: Ints | None) -> None:
        """Find the first assignments and the first bound."""
        for x in (start, self._least_memory_assignment()):
            if x is not None:
                self._offer_fitting(self._repaired(x))
        for _ in range(FIRST_IMPROVEMENTS):
            if self._is_finished():
                return
            self._improve(self.found.cost)
        for _ in range(FIRST_DECODES):
            self._decode()
        while self.found.x is None and self.network.num_entries > PROVABLE and not self._is_finished():
            # Nothing fits yet: other multipliers lead to other assignments.
            for _ in range(DECODE_TURNS):
                self._improve(self.found.cost)
            self._decode()

    def _decode(self) -> None:
        """Keep an assignment decoded from the bound's multipliers."""
        if not self._is_finished():
            self._offer_fitting(self._repaired(self._bound.decode(DECODE_TURNS)))
            self.found.bound = max(self.found.bound, self._bound.bound)

    @property
    def _has_milp_result(self) -> bool:
        """Whether branch and bound has an answer."""
        return any(proof.infeasible or proof.x is not None for proof in self._proof)

    def _improve(self, cost: float) -> None:
        known = cost if np.isfinite(cost) else 2.0 * abs(self._bound.bound) if np.isfinite(self._bound.bound) else 1.0
        self._bound.improve(known)
        self.found.bound = max(self.found.bound, self._bound.bound)

    def _least_memory_assignment(self) -> Ints:
        """Per node, the value that uses the least memory, the cheapest of ties."""
        network = self.network
        x = np.zeros(network.num_nodes, dtype=np.int64)
        for i in self.free.tolist():
            low, high = network.links.first[i], network.links.first[i + 1]
            used = np.zeros(high - low)
            for r in range(network.rows.begin[i], network.rows.begin[i + 1]):
                place = network.rows.place[r]
                used += (network.rows.stop[r] - network.rows.start[r]) * network.rows.used[place : place + high - low]
            x[i] = np.lexsort((network.costs[low:high], used))[0]
        return x

    def _offer_fitting(self, x: Ints | None) -> None:
        """Keep a fitting assignment if it is better than the incumbent."""
        if x is not None:
            self._offer(x, float(state_of(self.network, x).total[0]))

    def _repaired(self, x: Ints) -> Ints | None:
        """The assignment with memory reduced to the limit, then improved by single moves; None if it cannot be made to fit."""
        network = self.network
        state = state_of(network, x)
        moves = 20 * network.num_nodes
        if not reduce_memory(state, network.links, network.rows, network.limit, self.free, moves):
            return None
        descend(state, network.links, network.rows, network.limit, self.free)
        return state.x

    def _offer(self, x: Ints, cost: float) -> None:
        if cost < self.found.cost - TINY:
            self.found.x, self.found.cost = x.copy(), cost

    def _is_finished(self) -> bool:
        if self.found.proved or time.monotonic() >= self.deadline or self.should_stop(self.found):
            self.stop.set()
        return self.stop.is_set()

    def _run_turns(self) -> None:
        level, explored, stale, bounding, refining = 0, 0, 0, True, True
        with ThreadPoolExecutor(2) as workers:
            while (
                not self._is_finished()
                and stale < MAX_STALE_TURNS
                and not self._has_milp_result
                and self.found.x is not None
            ):
                cost, bound = self.found.cost, self.found.bound
                work = self._work(level if refining else min(level, NUM_DOUBLING_TURNS + explored // PATIENCE))
                alone = bounding or self.network.num_entries <= PROVABLE
                merging = not alone and not refining and len(self._pool) > 1 and explored % MERGE_EVERY == 0
                begins = [self._refinement() if refining else self._exploration()]
                begins += [] if alone or merging else [self._exploration()]
                self.active_constraints.add(np.array(self._bound.active, dtype=np.int64))
                prices = self._bound.prices.copy()
                anneals = [workers.submit(self._anneal, *begin, prices, work) for begin in begins]
                raising = [workers.submit(self._raise_bound, cost, work)] if bounding else []
                merges = [workers.submit(self._merge, list(self._pool), cost, self._next_seed())] if merging else []
                self._wait_for([*anneals, *raising, *merges])
                for task in anneals:
                    self._merge_result(task.result())
                for merge in merges:
                    self._offer_fitting(merge.result())
                gap, gained = max(cost - bound, TINY), cost - self.found.cost
                if bounding:
                    bounding = (
                        self.found.bound - bound > MIN_BOUND_GAIN * gap or self._bound.count < MIN_BOUND_IMPROVEMENTS
                    )
                level += 1 if level < NUM_DOUBLING_TURNS or (refining and gained > MIN_GAIN * gap) else 0
                explored += not refining
                self._refined += refining and gained <= MIN_GAIN * gap
                refining = gained > MIN_GAIN * gap or (not refining and gained > 0.0)
                stale = 0 if gained > 0.0 or bounding else stale + 1
        # A running proof may still finish in time.
        while self.network.num_entries <= PROVABLE and not self._proof and not self._is_finished():
            time.sleep(POLL_S)

    def _refinement(self) -> tuple[Ints, AnnealingVariant, int]:
        assert self.found.x is not None
        return self.found.x, REFINING[self._refined % len(REFINING)], self._next_seed()

    def _exploration(self) -> tuple[Ints, AnnealingVariant, int]:
        """Start from an assignment decoded from the bound's multipliers, if it can be made to fit."""
        begin = self._repaired(self._bound.decode(DECODE_TURNS))
        assert self.found.x is not None
        self._explored += 1
        variant = EXPLORING[self._explored % len(EXPLORING) - 1]
        return self.found.x if begin is None else begin, variant, self._next_seed()

    def _next_seed(self) -> int:
        """Seed for one annealing."""
        self._draws += 1
        return 1_000_003 * self.seed + 7919 * self._draws

    def _work(self, level: int) -> int:
        """Entries of one worker's turn; the last turn takes what is left."""
        work = int(FIRST_WORK * 2**level)
        if self._rate:
            left = int(self._rate * (self.deadline - time.monotonic()))
            work = left if left < 2 * work else work
        return max(work, 1)

    def _wait_for(self, tasks: list[Future[Any]]) -> None:
        pending = set(tasks)
        while pending:
            _, pending = wait(pending, POLL_S)
            if self._is_finished() or self._has_milp_result:
                self.stop.set()

    def _raise_bound(self, cost: float, work: int) -> None:
        done = 0
        while done < work and not self.stop.is_set():
            self._improve(cost)
            done += self._bound.work
        self.found.work += done

    def _merge_result(self, done: AnnealingResult) -> None:
        self.found.work += done.touched
        self._rate = max(done.touched / max(done.seconds, 1e-3), 1.0)
        self.active_constraints.add(done.instants)
        self._pool = sorted([*self._pool, (done.cost, done.x)], key=itemgetter(0))[:POOL]
        if done.cost < self.found.cost - TINY:
            self._offer_fitting(done.x)

    def _merge(self, pool: list[tuple[float, Ints]], cost: float, seed: int) -> Ints | None:
        some = merged_problem(self.problem, self.network, [x for _, x in pool], self._bound.prices, seed)
        return None if some is None else some.best(cost, self.deadline)

    def _anneal(self, begin: Ints, variant: AnnealingVariant, seed: int, prices: Floats, work: int) -> AnnealingResult:
        """Run one annealing from an assignment."""
        began = time.monotonic()
        run = Annealing(
            self.network, self.active_constraints.instants, self.free, begin, prices, variant.single_moves_per_tree
        )
        hot = variant.heat * max(run.best - self._floor, 1.0) / len(self.free)
        touched = chunk = 0
        while touched < work and not self.stop.is_set():
            touched += run.step(hot * COOLING ** -(touched / work), (seed + 2 * chunk) % 2**31)
            chunk += 1
        return AnnealingResult(run.best_x, run.best, run.instants, touched, time.monotonic() - began)
