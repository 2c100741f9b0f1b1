"""The checker's depth-first search for an assignment that refutes a bound, over the values that relaxations leave."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autosbp.search._base import SearchProblem
from autosbp.search.checker.relaxation import Kept, Relaxation


class Branching:
    """Branch and bound for an assignment of the remaining values that fits and costs less than ``target_s``.

    Variables are set in reverse elimination order, so that the messages give each relaxation's exact minimum over
    everything below a node (Kask and Dechter 2001). A node is pruned if any relaxation finds it hopeless."""

    def __init__(
        self, problem: SearchProblem, left: Kept, relaxations: Sequence[Relaxation], target_s: float, max_nodes: int
    ) -> None:
        self.problem, self.left, self.relaxations = problem, left, relaxations
        self.target_s, self.max_nodes = target_s, max_nodes
        self.is_cut_short = False

    def run(self) -> tuple[int, ...] | None:
        """The first refuting assignment; None if there is none.

        Sets ``is_cut_short`` and returns None after ``max_nodes`` nodes."""
        order = self.relaxations[0].buckets.order.variables[::-1]
        values = np.zeros(len(order), dtype=np.int64)
        stack = [(-1, 0, tuple(relaxation.buckets.least for relaxation in self.relaxations))]
        nodes = 0
        while stack:
            depth, value, sums = stack.pop()
            nodes += 1
            if nodes > self.max_nodes:
                self.is_cut_short = True
                return None
            if depth >= 0:
                values[order[depth]] = value
            if depth + 1 == len(order):
                found = tuple(int(kept[x]) for kept, x in zip(self.left, values, strict=True))
                if self._is_cheaper_and_fits(found):
                    return found
                continue
            variable = order[depth + 1]
            lines = [
                least + relaxation.buckets.line(variable, values)
                for least, relaxation in zip(sums, self.relaxations, strict=True)
            ]
            dead = np.any([each.is_refuted(line) for each, line in zip(self.relaxations, lines, strict=True)], axis=0)
            for child in np.argsort(-lines[0], kind="stable"):  # cheapest on top of the stack
                if not dead[child]:
                    stack.append((depth + 1, int(child), tuple(float(line[child]) for line in lines)))
        return None

    def _is_cheaper_and_fits(self, assignment: tuple[int, ...]) -> bool:
        problem = self.problem
        memory = problem.fixed_memory_bytes
        terms = [problem.fixed_s]
        for costs, use, value in zip(problem.unary_s, problem.memory_bytes, assignment, strict=True):
            memory += int(use[value])
            terms.append(float(costs[value]))
        terms += [float(edge.table[assignment[edge.u], assignment[edge.v]]) for edge in problem.edges]
        fits = problem.memory_limit_bytes is None or memory <= problem.memory_limit_bytes
        return fits and all(map(math.isfinite, terms)) and math.fsum(terms) < self.target_s
