"""Large moves: optimise all nodes of a random tree at once.

A tree grows from a random node: a neighbour joins if it has one edge to the tree. Given all other nodes, dynamic
programming finds its best values. Memory enters only through the multipliers of its instants; nodes that then exceed
the limit revert to their old values. Metropolis' rule accepts a move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosbp.search.solvers.anytime.assignment import (
    TINY,
    AssignmentState,
    assign,
    extra_bytes,
    max_filled,
    num_instants_of_node,
    update_memory,
)
from autosbp.search.solvers.anytime.cost_network import ArcArrays, CostNetwork, UsageRows
from autosbp.search.solvers.anytime.interval_problem import Floats, Ints
from autosbp.search.solvers.numba_functions import compiled_nogil

MAX_TREE_NODES = 300
"""Most nodes of a tree. The number is drawn uniformly on a logarithmic scale."""
UNPENALISED_SHARE, NOISY_SHARE = 0.2, 0.5
"""Fractions of the moves that ignore multipliers, and that add noise to costs."""
PENDING = 64 * MAX_TREE_NODES


class TreeScratch(NamedTuple):
    """Work arrays.

    Per position in the tree: ``node``, ``parent`` (a position) and ``arc`` (from the parent). Per node: ``mark``."""

    mark: Ints
    node: Ints
    parent: Ints
    arc: Ints
    message: Ints
    new: Ints
    old: Ints
    values: Floats
    pending: Ints


def scratch_of(network: CostNetwork) -> TreeScratch:
    def ints(size: int) -> Ints:
        return np.zeros(size, dtype=np.int64)

    most = int(network.num_values.max(initial=1))
    size = MAX_TREE_NODES + 1
    return TreeScratch(
        ints(network.num_nodes), ints(size), ints(size), ints(size), ints(size), ints(size), ints(size),
        np.zeros(size * most), ints(2 * PENDING),
    )  # fmt: skip


@compiled_nogil
def move_trees(
    state: AssignmentState, best: Floats, best_x: Ints, links: ArcArrays, rows: UsageRows, limit: float, scratch: TreeScratch,
    free: Ints, moves: int, temperature: float, priced: Floats, stamp: int, seed: int,
) -> int:  # fmt: skip
    """Move random trees, one after the other.

    ``priced`` are multipliers (cost per byte) summed over the instants before each. ``stamp`` must exceed any mark in
    the scratch. Returns the entries touched."""
    np.random.seed(seed)
    touched = 0
    for at in range(moves):
        size = int(np.exp(np.random.random() * np.log(MAX_TREE_NODES))) + 1
        count = _grow_tree(free[np.random.randint(len(free))], min(size, MAX_TREE_NODES), links, scratch, stamp + at)
        factor = 2.0 * np.random.random() if np.random.random() >= UNPENALISED_SHARE else 0.0
        noise = 2.0 * temperature * np.random.random() if np.random.random() < NOISY_SHARE else 0.0
        touched += _optimise_tree(state, links, rows, scratch, count, priced, factor, noise)
        before = state.total[0]
        changed = False
        for place in range(count):
            i, new = scratch.node[place], scratch.new[place]
            scratch.old[place] = state.x[i]
            if new != state.x[i]:
                changed = True
                update_memory(state, rows, i, new)
                touched += assign(state, links, i, new) + 2 * num_instants_of_node(rows, i)
        if not changed:
            continue
        fits = _fits(state, rows, limit, scratch, count)
        if not fits:
            touched += _revert_exceeding(state, links, rows, limit, scratch, count)
            fits = _fits(state, rows, limit, scratch, count)
        worse = state.total[0] - before
        if fits and (worse <= 0.0 or np.random.random() < np.exp(-worse / temperature)):
            if state.total[0] < best[0] - TINY:
                best[0] = state.total[0]
                best_x[:] = state.x
            continue
        for place in range(count):
            i, old = scratch.node[place], scratch.old[place]
            if state.x[i] != old:
                update_memory(state, rows, i, old)
                touched += assign(state, links, i, old)
        state.total[0] = before
    return touched


@compiled_nogil
def _grow_tree(root: int, size: int, links: ArcArrays, scratch: TreeScratch, stamp: int) -> int:
    """Grow a random induced tree. Returns its number of nodes."""
    half = len(scratch.pending) // 2
    scratch.node[0], scratch.parent[0], scratch.arc[0] = root, -1, -1
    scratch.mark[root] = stamp
    count, pending = 1, 0
    for k in range(links.begin[root], links.begin[root + 1]):
        if pending < half:
            scratch.pending[pending], scratch.pending[half + pending] = k, 0
            pending += 1
    while pending > 0 and count < size:
        chosen = np.random.randint(pending)
        k, parent = scratch.pending[chosen], scratch.pending[half + chosen]
        pending -= 1
        scratch.pending[chosen], scratch.pending[half + chosen] = (
            scratch.pending[pending],
            scratch.pending[half + pending],
        )
        j = links.other[k]
        if scratch.mark[j] == stamp:
            continue
        joined = 0
        for back in range(links.begin[j], links.begin[j + 1]):
            if scratch.mark[links.other[back]] == stamp:
                joined += 1
                if joined > 1:
                    break
        if joined != 1:
            continue
        scratch.mark[j] = stamp
        scratch.node[count], scratch.parent[count], scratch.arc[count] = j, parent, k
        for ahead in range(links.begin[j], links.begin[j + 1]):
            if pending < half and scratch.mark[links.other[ahead]] != stamp:
                scratch.pending[pending], scratch.pending[half + pending] = ahead, count
                pending += 1
        count += 1
    return count


@compiled_nogil
def _optimise_tree(
    state: AssignmentState,
    links: ArcArrays,
    rows: UsageRows,
    scratch: TreeScratch,
    count: int,
    priced: Floats,
    factor: float,
    noise: float,
) -> int:
    """Write the best values of a tree's nodes into ``scratch.new``."""
    values, touched = scratch.values, 0
    size = 0
    for place in range(count):
        i = scratch.node[place]
        low, choices = links.first[i], links.first[i + 1] - links.first[i]
        scratch.message[place] = size
        for value in range(choices):
            values[size + value] = state.gains[low + value]
            if noise > 0.0:
                values[size + value] += noise * np.random.random()
        if factor > 0.0:
            for r in range(rows.begin[i], rows.begin[i + 1]):
                price = factor * (priced[rows.stop[r]] - priced[rows.start[r]])
                if price != 0.0:
                    for value in range(choices):
                        values[size + value] += price * rows.used[rows.place[r] + value]
        size += choices
    for place in range(1, count):  # subtract the gains' share of edges within the tree
        i, up = scratch.node[place], scratch.parent[place]
        parent, table = scratch.node[up], links.place[scratch.arc[place]]
        choices, above = links.first[i + 1] - links.first[i], links.first[parent + 1] - links.first[parent]
        for value in range(choices):
            values[scratch.message[place] + value] -= links.tables[table + state.x[parent] * choices + value]
        for value in range(above):
            values[scratch.message[up] + value] -= links.tables[table + value * choices + state.x[i]]
    for place in range(count - 1, 0, -1):
        i, up = scratch.node[place], scratch.parent[place]
        parent, table = scratch.node[up], links.place[scratch.arc[place]]
        choices, above = links.first[i + 1] - links.first[i], links.first[parent + 1] - links.first[parent]
        own = scratch.message[place]
        touched += choices * above
        for over in range(above):
            least = np.inf
            for value in range(choices):
                cost = links.tables[table + over * choices + value] + values[own + value]
                if cost < least:
                    least = cost
            values[scratch.message[up] + over] += least
    for place in range(count):
        i, own = scratch.node[place], scratch.message[place]
        choices = links.first[i + 1] - links.first[i]
        least, chosen = np.inf, 0
        for value in range(choices):
            cost = values[own + value]
            if place > 0:
                over = scratch.new[scratch.parent[place]]
                cost += links.tables[links.place[scratch.arc[place]] + over * choices + value]
            if cost < least:
                least, chosen = cost, value
        scratch.new[place] = chosen
    return touched + size


@compiled_nogil
def _fits(state: AssignmentState, rows: UsageRows, limit: float, scratch: TreeScratch, count: int) -> bool:
    """Whether no instant of the tree's nodes exceeds the limit."""
    for place in range(count):
        i = scratch.node[place]
        for r in range(rows.begin[i], rows.begin[i + 1]):
            if max_filled(state.filled, rows.start[r], rows.stop[r]) > limit:
                return False
    return True


@compiled_nogil
def _revert_exceeding(
    state: AssignmentState, links: ArcArrays, rows: UsageRows, limit: float, scratch: TreeScratch, count: int
) -> int:
    """Revert nodes that fill an instant over the limit to their old values, in random order."""
    touched = 0
    for _ in range(count):
        place = np.random.randint(count)
        i, old = scratch.node[place], scratch.old[place]
        if state.x[i] == old:
            continue
        for r in range(rows.begin[i], rows.begin[i + 1]):
            if (
                extra_bytes(rows, r, old, state.x[i]) > 0.0
                and max_filled(state.filled, rows.start[r], rows.stop[r]) > limit
            ):
                update_memory(state, rows, i, old)
                touched += assign(state, links, i, old)
                break
    return touched
