"""Cheapest ways over a tensor's steps: all ways to find them, to the last bit, and as Dijkstra finds them."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from autosbp.costmodel import shortest_paths
from autosbp.sbp.boxing import PMAX, PMIN
from autosbp.sbp.boxing_step_table import EvenSteps, step_table
from autosbp.sbp.layout import B, I, P, S
from autosbp.sbp.mesh import Axis, Mesh

STATES = {"differentiable": (S(0), S(1), S(2), B, I, P), "not": (S(0), S(1), B, P, PMAX, PMIN)}


def steps_of(states: str, sizes: tuple[int, ...], shape: tuple[int, ...]) -> EvenSteps:
    mesh = Mesh(tuple(Axis(f"a{at}", size, 0) for at, size in enumerate(sizes)), (prod(sizes), 1))
    table = step_table(STATES[states], mesh)
    factors = table.factors(mesh.shape)
    return table.even_steps((np.array(shape[: factors.shape[1]]) % factors == 0).all(axis=1))


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize(("sizes", "shape"), [((2,), (4, 6, 8)), ((2, 3), (12, 6, 8)), ((4, 2, 2), (16, 16, 2))])
@pytest.mark.parametrize("seed", range(3))
def test_all_ways_find_the_cheapest(
    monkeypatch: pytest.MonkeyPatch, states: str, sizes: tuple[int, ...], shape: tuple[int, ...], seed: int
) -> None:
    steps = steps_of(states, sizes, shape)
    random = np.random.default_rng(seed)
    step_s = random.uniform(1e-6, 1e-2, len(steps.keep)) * random.choice([1.0, 100.0], len(steps.keep))
    sources = random.permutation(len(steps.chosen))[: max(1, len(steps.chosen) // 2)].tolist()
    found = [shortest_paths.shortest_path_s(steps, step_s, sources)]  # in C, where that is built
    for few in (10**9, 0):
        monkeypatch.setattr(shortest_paths, "LOOPS", None)
        monkeypatch.setattr(shortest_paths, "MAX_WORK_VECTORIZED", few)
        found.append(shortest_paths.shortest_path_s(steps, step_s, sources))
        np.testing.assert_array_equal(*found[-2:])
    # What is asked for beside a source changes no bit of what is found from it.
    np.testing.assert_array_equal(found[0][:1], shortest_paths.shortest_path_s(steps, step_s, sources[:1]))
    ways: dict[tuple[int, int], float] = {}
    for source, target, spent in zip(steps.source.tolist(), steps.target.tolist(), step_s.tolist(), strict=True):
        ways[source, target] = min(spent, ways.get((source, target), np.inf))
    graph = csr_matrix((list(ways.values()), np.array(list(ways)).T), shape=(len(steps.chosen),) * 2)
    np.testing.assert_allclose(found[0], dijkstra(graph, indices=sources), rtol=1e-12)


@pytest.mark.parametrize("native", [True, False])
def test_steps_of_infinite_cost_are_not_taken(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    if not native:
        monkeypatch.setattr(shortest_paths, "LOOPS", None)
    steps = steps_of("differentiable", (2, 2), (4, 4, 4))
    for few in (True, False):
        sources = [0] if few else list(range(len(steps.chosen)))
        found = shortest_paths.shortest_path_s(steps, np.full(len(steps.keep), np.inf), sources)
        assert (np.isinf(found).sum(axis=1) == len(steps.chosen) - 1).all() and found[0, 0] == 0
