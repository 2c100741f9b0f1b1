"""Warm start from an earlier plan: its strategy, costed for another batch, changed layers or links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.strategy_cost import evaluate
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.search.branch_and_bound.candidate import Candidate
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.strategy import add_paths
from autosbp.search.stages.layout_problems import LayoutProblems
from autosbp.search.stages.stage_meshes import stage_meshes


@dataclass(frozen=True)
class WarmStart:
    """Outcome of a warm start.

    The strategy with its costs here, or the ``reason`` why it is not used; neither without a start.
    """

    candidate: Candidate | None = None
    reason: str = ""


def cost_warm_start(earlier: Strategy, problems: LayoutProblems, cluster: Cluster, options: PlanOptions) -> WarmStart:
    """Cost the strategy of an earlier plan on ``cluster``.

    It must satisfy the options and fit the model: the same ops, and a batch that it splits evenly. It keeps its
    microbatch size, or else the number of microbatches, unless ``options`` give a size. It keeps its bucket size if the
    search may choose that one. Its memory is not checked.

    Raises:
        InputError: options that rule out a warm start.
    """
    options.check_warm_start()
    unasked = "; ".join(_mismatches(earlier, cluster, options))
    if unasked:
        return WarmStart(reason=unasked)
    earlier = replace(
        earlier,
        offload=earlier.offload and options.offload,
        bucket_bytes=earlier.bucket_bytes if earlier.bucket_bytes in problems.sizes else problems.bucket_bytes,
        optimizer=options.optimizer,
    )
    reason = ""
    for size in _sizes(earlier, problems.global_batch, options.micro_batch):
        try:
            graph, boxing = problems.bound(size), problems.boxing(earlier.mesh)
            strategy = _rebatched(earlier, graph, boxing, size, problems.global_batch)
            return WarmStart(Candidate(strategy, evaluate(graph, strategy, boxing, problems.compute)))
        except InputError as error:  # uneven splits, or cuts at ops that no longer exist
            reason = reason or f"it does not match {problems.graph.name} with a microbatch of {size}: {error}"
        except KeyError as error:
            name = getattr(error.args[0], "name", error.args[0])
            reason = reason or f"it does not match {problems.graph.name}: it has no layout of {name}"
    return WarmStart(reason=reason or f"its microbatches do not divide the global batch {problems.global_batch}")


def _mismatches(earlier: Strategy, cluster: Cluster, options: PlanOptions) -> Iterator[str]:
    """Reasons why the strategy does not satisfy the options or the cluster."""
    stages, pipeline = earlier.num_stages, earlier.pipeline
    if options.stages not in (None, stages):
        yield f"it has {stages} stages instead of the requested {options.stages}"
    levels = {count: mesh.level_counts for count, mesh in stage_meshes(cluster)}
    if earlier.mesh.level_counts != levels.get(stages):
        counts = " x ".join(map(str, earlier.mesh.level_counts))
        yield f"its {stages} stages of {counts} devices do not match {cluster.name}"
    if pipeline is not None and pipeline.schedule.name not in options.schedules:
        yield f"its schedule {pipeline.schedule.name} is not among the requested ones"
    if earlier.recompute and options.recompute == 0:
        yield "it recomputes blocks, which the options forbid"


def _sizes(earlier: Strategy, global_batch: int, asked: int | None) -> Iterator[int]:
    if asked is not None:
        yield asked
        return
    if global_batch % earlier.micro_batch == 0:
        yield earlier.micro_batch
    if global_batch % earlier.num_micro == 0 and global_batch // earlier.num_micro != earlier.micro_batch:
        yield global_batch // earlier.num_micro


def _rebatched(
    earlier: Strategy, graph: LogicalGraph, boxing: BoxingModel, micro_batch: int, global_batch: int
) -> Strategy:
    """The strategy at another batch, with the cheapest boxing of every activation."""
    if earlier.pipeline is not None:
        earlier.pipeline.check(global_batch // micro_batch)
    leaves = {leaf.name: leaf.meta for leaf in graph.parameters}
    # Parameters keep their boxing paths: still valid, if not always cheapest on other links. Activations get new ones.
    shapes = {(meta.sizes, meta.num_bytes) for meta in leaves.values()}
    paths = {key: path for key, path in earlier.paths.items() if key[:2] in shapes}
    add_paths(paths, graph, boxing, dict(earlier.signatures), dict(earlier.parameters))
    return replace(earlier, paths=paths, global_batch=global_batch, micro_batch=micro_batch)
