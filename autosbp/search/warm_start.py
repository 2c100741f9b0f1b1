"""An earlier plan as a start: its strategy with another batch, on changed layers or links, costed anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Strategy
from autosbp.sbp.mesh import Mesh
from autosbp.search._candidate import Candidate
from autosbp.search._strategy import add_paths


def restarted(
    earlier: Strategy,
    bound: Callable[[int], LogicalGraph],
    boxing: Callable[[Mesh], BoxingModel],
    compute: ComputeModel,
    *,
    global_batch: int,
    optimizer: str,
) -> Candidate | None:
    """The strategy of an earlier plan with its costs here; None where it does not fit what is planned now: other ops, or a
    batch that it does not split evenly. Its microbatch stays, or else their number does.

    Args:
        bound: the graph at a microbatch.
        boxing: the boxing model of a mesh, of the cluster that is planned for.
    """
    sizes = [earlier.micro_batch]
    if global_batch % earlier.num_micro == 0:
        sizes.append(global_batch // earlier.num_micro)
    for size in sizes:
        if global_batch % size:
            continue
        try:
            strategy = _at(earlier, bound(size), boxing(earlier.mesh), size, global_batch, optimizer)
            return Candidate(strategy, evaluate(bound(size), strategy, boxing(earlier.mesh), compute))
        except (InputError, KeyError):  # layouts or cuts of ops that are gone, or that split unevenly
            continue
    return None


def _at(
    earlier: Strategy, graph: LogicalGraph, boxing: BoxingModel, micro_batch: int, global_batch: int, optimizer: str
) -> Strategy:
    """The strategy at another batch, with the cheapest boxing of every activation."""
    if earlier.pipeline is not None:
        earlier.pipeline.check(global_batch // micro_batch)
    leaves = {leaf.name: leaf.meta for leaf in graph.parameters}
    # What was cheapest for parameters need not be so on other links, but stays a path; activations find theirs anew.
    shapes = {(meta.sizes, meta.num_bytes) for meta in leaves.values()}
    paths = {key: path for key, path in earlier.paths.items() if key[:2] in shapes}
    add_paths(paths, graph, boxing, dict(earlier.signatures), dict(earlier.parameters))
    return replace(earlier, paths=paths, global_batch=global_batch, micro_batch=micro_batch, optimizer=optimizer)
