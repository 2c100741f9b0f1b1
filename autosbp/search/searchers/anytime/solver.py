"""Two workers take turns of equal work: bounds with prices of memory, and annealing with moves of trees.

A turn is twice as long as the one before; the last ones share what time is left. What each does depends on the seed and on
what was found before, not on the clock: where no limit strikes, equal calls give equal results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from operator import itemgetter
from threading import Event, Thread
from typing import Any

import numpy as np

from autosbp.search.searchers.anytime.anneal import descend, make_room
from autosbp.search.searchers.anytime.annealing import Annealing
from autosbp.search.searchers.anytime.bound import Bound
from autosbp.search.searchers.anytime.contract import folded
from autosbp.search.searchers.anytime.merge import merged_problem
from autosbp.search.searchers.anytime.network import lay_out
from autosbp.search.searchers.anytime.problem import Floats, IntervalProblem, Ints
from autosbp.search.searchers.anytime.proof import Proof, prove
from autosbp.search.searchers.anytime.state import TINY, state_of
from autosbp.search.searchers.anytime.watched import Watched


@dataclass(frozen=True)
class Variant:
    """Of annealing: the temperature that it begins with, times the cost of a node above the least; and single moves for each
    tree."""

    heat: float
    flips: int


FIRST_WORK = 50_000_000
"""Entries touched by a worker in its first turn: about a second."""
FIRST_IMPROVEMENTS, FIRST_DECODES, DECODE_TURNS = 60, 3, 20
"""Of the bound, before anything else; assignments read from it, and passes before each."""
PROVABLE = 150_000
"""Entries of tables up to which the whole is given to branch and bound."""
REFINING = (Variant(2.5, 50), Variant(0.25, 300))
"""From the best so far."""
EXPLORING = (Variant(10.0, 20), Variant(10.0, 50), Variant(20.0, 20), Variant(5.0, 20))
"""From what the bound's prices say."""
COOLING = 100.0
LEVEL, PATIENCE = 3, 24
"""Turns that get twice as long in any case, after these only those that refine with gain; explorations get longer after so
many."""
GAIN = 0.01
"""Of the gap: what refining has to gain for more of it."""
BARELY, ENOUGH = 0.01, 500
"""Of the gap: a bound that rose by less in its turn rests, once it was improved often enough."""
POOL = 12
"""Assignments whose values may be merged."""
MERGE_EVERY = 8
"""Explorations."""
STALE = 40
"""Turns without a gain, after which nothing more is expected."""
LOOK_S = 0.1


@dataclass
class Found:
    """The best so far. ``x`` is None, and ``cost`` inf, before anything fits."""

    x: Ints | None
    cost: float
    bound: float
    work: int = 0
    infeasible: bool = False

    @property
    def proved(self) -> bool:
        return self.cost - self.bound < 2 * TINY


@dataclass(frozen=True)
class Annealed:
    """The best that one annealing met, and the instants that it watched; what it took."""

    x: Ints
    cost: float
    instants: Ints
    touched: int
    seconds: float


class Solver:
    """Solves a problem whose nodes have a value each at least.

    Args:
        seed: of all random numbers.
        deadline: of ``time.monotonic``.
        should_stop: called every 0.1 s or so with what is found; True ends the search.
    """

    def __init__(
        self, problem: IntervalProblem, seed: int, deadline: float, should_stop: Callable[[Found], bool]
    ) -> None:
        self.problem = problem
        network = lay_out(folded(problem))
        self.network, self.seed, self.deadline, self.should_stop = network, seed, deadline, should_stop
        self.watched = Watched(network)
        self.free = np.flatnonzero(network.num_values > 1)
        self.found = Found(None, np.inf, -np.inf)
        self.stop = Event()
        self._bound = Bound(network)
        self._pool: list[tuple[float, Ints]] = []
        self._refined = self._explored = self._draws = 0
        self._rate = 0.0
        self._floor = float(np.minimum.reduceat(network.costs, network.links.first[:-1]).sum())
        self._proof: list[Proof] = []

    def run(self, start: Ints | None = None) -> Found:
        """Search from an assignment, or the leanest one, until the optimum is proved, nothing is gained, or time is up."""
        self._begin(start)
        if not self._over() and self.network.num_entries <= PROVABLE:
            # Nothing else takes the place of an optimum that is found in time; what is found meanwhile counts otherwise.
            early = Found(self.found.x, self.found.cost, self.found.bound)
            Thread(target=self._prove, args=(self.found.cost,), daemon=True).start()
            self._turns()
            self._take_proof(early)
        elif not self._over():
            self._turns()
        return self.found

    def _prove(self, cost: float) -> None:
        self._proof.append(prove(self.network, cost, self.deadline))

    def _take_proof(self, early: Found) -> None:
        for proof in self._proof:
            self.found.bound = max(self.found.bound, proof.bound)
            if proof.infeasible and self.found.x is None:
                self.found.infeasible = True
            if proof.x is not None and proof.optimal:
                self.found.x, self.found.cost = early.x, early.cost
                self._keep(proof.x)
                self.found.bound = self.found.cost
            self._keep(proof.x)

    def _begin(self, start: Ints | None) -> None:
        """The first assignments and bound."""
        for x in (start, self._leanest()):
            if x is not None:
                self._keep(self._fitted(x))
        for _ in range(FIRST_IMPROVEMENTS):
            if self._over():
                return
            self._improve(self.found.cost)
        for _ in range(FIRST_DECODES):
            self._decode()
        while self.found.x is None and self.network.num_entries > PROVABLE and not self._over():
            # Nothing fits yet: other prices lead elsewhere.
            for _ in range(DECODE_TURNS):
                self._improve(self.found.cost)
            self._decode()

    def _decode(self) -> None:
        """An assignment that the bound's prices lead to."""
        if not self._over():
            self._keep(self._fitted(self._bound.decode(DECODE_TURNS)))
            self.found.bound = max(self.found.bound, self._bound.bound)

    @property
    def _closed(self) -> bool:
        """Whether branch and bound has an answer."""
        return any(proof.infeasible or proof.x is not None for proof in self._proof)

    def _improve(self, cost: float) -> None:
        known = cost if np.isfinite(cost) else 2.0 * abs(self._bound.bound) if np.isfinite(self._bound.bound) else 1.0
        self._bound.improve(known)
        self.found.bound = max(self.found.bound, self._bound.bound)

    def _leanest(self) -> Ints:
        """The values that use least, and of these the cheapest."""
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

    def _keep(self, x: Ints | None) -> None:
        """An assignment that fits, if it is better than the best."""
        if x is not None:
            self._offer(x, float(state_of(self.network, x).total[0]))

    def _fitted(self, x: Ints) -> Ints | None:
        """An assignment with room made, then improved move by move; None where no room is found."""
        network = self.network
        state = state_of(network, x)
        moves = 20 * network.num_nodes
        if not make_room(state, network.links, network.rows, network.limit, self.free, moves):
            return None
        descend(state, network.links, network.rows, network.limit, self.free)
        return state.x

    def _offer(self, x: Ints, cost: float) -> None:
        if cost < self.found.cost - TINY:
            self.found.x, self.found.cost = x.copy(), cost

    def _over(self) -> bool:
        if self.found.proved or time.monotonic() >= self.deadline or self.should_stop(self.found):
            self.stop.set()
        return self.stop.is_set()

    def _turns(self) -> None:
        level, explored, stale, bounding, refining = 0, 0, 0, True, True
        with ThreadPoolExecutor(2) as workers:
            while not self._over() and stale < STALE and not self._closed and self.found.x is not None:
                cost, bound = self.found.cost, self.found.bound
                work = self._work(level if refining else min(level, LEVEL + explored // PATIENCE))
                alone = bounding or self.network.num_entries <= PROVABLE
                merging = not alone and not refining and len(self._pool) > 1 and explored % MERGE_EVERY == 0
                begins = [self._refinement() if refining else self._exploration()]
                begins += [] if alone or merging else [self._exploration()]
                self.watched.add(np.array(self._bound.active, dtype=np.int64))
                prices = self._bound.prices.copy()
                anneals = [workers.submit(self._anneal, *begin, prices, work) for begin in begins]
                raising = [workers.submit(self._raise_bound, cost, work)] if bounding else []
                merges = [workers.submit(self._merge, list(self._pool), cost, self._drawn())] if merging else []
                self._await([*anneals, *raising, *merges])
                for task in anneals:
                    self._learn(task.result())
                for merge in merges:
                    self._keep(merge.result())
                gap, gained = max(cost - bound, TINY), cost - self.found.cost
                if bounding:
                    bounding = self.found.bound - bound > BARELY * gap or self._bound.count < ENOUGH
                level += 1 if level < LEVEL or (refining and gained > GAIN * gap) else 0
                explored += not refining
                self._refined += refining and gained <= GAIN * gap
                refining = gained > GAIN * gap or (not refining and gained > 0.0)
                stale = 0 if gained > 0.0 or bounding else stale + 1
        # A proof that runs still may come in time.
        while self.network.num_entries <= PROVABLE and not self._proof and not self._over():
            time.sleep(LOOK_S)

    def _refinement(self) -> tuple[Ints, Variant, int]:
        assert self.found.x is not None
        return self.found.x, REFINING[self._refined % len(REFINING)], self._drawn()

    def _exploration(self) -> tuple[Ints, Variant, int]:
        """From an assignment that the bound's prices lead to, where that fits."""
        begin = self._fitted(self._bound.decode(DECODE_TURNS))
        assert self.found.x is not None
        self._explored += 1
        variant = EXPLORING[self._explored % len(EXPLORING) - 1]
        return self.found.x if begin is None else begin, variant, self._drawn()

    def _drawn(self) -> int:
        """A seed for one annealing."""
        self._draws += 1
        return 1_000_003 * self.seed + 7919 * self._draws

    def _work(self, level: int) -> int:
        """Entries of one worker's turn; the last one takes what is left."""
        work = int(FIRST_WORK * 2**level)
        if self._rate:
            left = int(self._rate * (self.deadline - time.monotonic()))
            work = left if left < 2 * work else work
        return max(work, 1)

    def _await(self, tasks: list[Future[Any]]) -> None:
        pending = set(tasks)
        while pending:
            _, pending = wait(pending, LOOK_S)
            if self._over() or self._closed:
                self.stop.set()

    def _raise_bound(self, cost: float, work: int) -> None:
        done = 0
        while done < work and not self.stop.is_set():
            self._improve(cost)
            done += self._bound.work
        self.found.work += done

    def _learn(self, done: Annealed) -> None:
        self.found.work += done.touched
        self._rate = max(done.touched / max(done.seconds, 1e-3), 1.0)
        self.watched.add(done.instants)
        self._pool = sorted([*self._pool, (done.cost, done.x)], key=itemgetter(0))[:POOL]
        if done.cost < self.found.cost - TINY:
            self._keep(done.x)

    def _merge(self, pool: list[tuple[float, Ints]], cost: float, seed: int) -> Ints | None:
        some = merged_problem(self.problem, self.network, [x for _, x in pool], self._bound.prices, seed)
        return None if some is None else some.best(cost, self.deadline)

    def _anneal(self, begin: Ints, variant: Variant, seed: int, prices: Floats, work: int) -> Annealed:
        """One annealing from an assignment."""
        began = time.monotonic()
        run = Annealing(self.network, self.watched.instants, self.free, begin, prices, variant.flips)
        hot = variant.heat * max(run.best - self._floor, 1.0) / len(self.free)
        touched = chunk = 0
        while touched < work and not self.stop.is_set():
            touched += run.step(hot * COOLING ** -(touched / work), (seed + 2 * chunk) % 2**31)
            chunk += 1
        return Annealed(run.best_x, run.best, run.instants, touched, time.monotonic() - began)
