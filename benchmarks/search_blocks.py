"""Time of the exact searcher on models of repeated blocks: ``python -m benchmarks.search_blocks [--json]``.

A block is a chain of variables with skip connections, which create cycles. Blocks are joined end to end and share their
cost tables. Costs are uniform random numbers, the hardest case for pruning. The memory-limited rows allow a fraction of
the memory that the unlimited optimum uses.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace

import numpy as np

from autosbp.search import Edge, SearchOptions, SearchProblem, search


@dataclass(frozen=True, slots=True)
class Case:
    """Problem size; ``memory_share`` is the limit relative to the unlimited optimum's memory, None for no limit."""

    num_blocks: int
    block_size: int
    domain: int
    memory_share: float | None = None


CASES = (
    Case(1, 12, 150),
    Case(12, 12, 150),
    Case(96, 12, 150),
    Case(96, 12, 300),
    Case(96, 12, 150, memory_share=0.9),
    Case(96, 12, 150, memory_share=0.7),
)


def block_problem(num_blocks: int, block_size: int, domain: int, seed: int = 0) -> SearchProblem:
    """Problem with ``num_blocks * block_size`` variables and two skip connections per block (``block_size`` >= 4)."""
    rng = np.random.default_rng(seed)
    unary = tuple(rng.random(domain) for _ in range(block_size))
    memory = tuple(rng.integers(1, 1000, domain) for _ in range(block_size))
    half, last = block_size // 2, block_size - 1
    inside = [(i, i + 1) for i in range(last)] + [(0, half), (half, last)]
    tables = [2.0 * rng.random((domain, domain)) for _ in inside]
    joint = 2.0 * rng.random((domain, domain))
    edges: list[Edge] = []
    for first in range(0, num_blocks * block_size, block_size):
        edges.extend(Edge(first + u, first + v, table) for (u, v), table in zip(inside, tables, strict=True))
        if first:
            edges.append(Edge(first - 1, first, joint))
    names = tuple(f"block{b}.op{i}" for b in range(num_blocks) for i in range(block_size))
    return SearchProblem(names, unary * num_blocks, memory * num_blocks, tuple(edges))


def measure(case: Case, time_limit_s: float) -> dict[str, float | int | str | None]:
    problem = block_problem(case.num_blocks, case.block_size, case.domain)
    if case.memory_share is not None:
        limit = int(case.memory_share * search(problem, "exact").memory_bytes)
        problem = replace(problem, memory_limit_bytes=limit)
    result = search(problem, "exact", SearchOptions(time_limit_s=time_limit_s))
    return {
        "blocks": case.num_blocks,
        "variables": problem.num_variables,
        "domain": case.domain,
        "memory_share": case.memory_share,
        "search_s": result.search_s,
        "distinct_products": int(result.info.get("distinct_products", 0)),
        "cost_s": result.cost_s,
        "gap": result.gap,
        "stopped": result.stopped,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="end in one JSON line")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S")
    arguments = parser.parse_args()
    print(
        f"{'blocks':>6} {'vars':>5} {'domain':>6} {'memory':>6} {'seconds':>8} {'products':>8} {'cost':>10} {'gap':>9}"
    )
    rows = []
    for case in CASES:
        row = measure(case, arguments.time_limit)
        rows.append(row)
        share = "-" if case.memory_share is None else f"{case.memory_share:.0%}"
        print(
            f"{row['blocks']:>6} {row['variables']:>5} {row['domain']:>6} {share:>6} {row['search_s']:>8.3f} "
            f"{row['distinct_products']:>8} {row['cost_s']:>10.4f} {row['gap']:>9.2e}",
            flush=True,
        )
    if arguments.json:
        print(json.dumps({"benchmark": "search_blocks", "rows": rows}))


if __name__ == "__main__":
    main()
