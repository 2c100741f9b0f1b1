"""An earlier plan as a start: its strategy with another batch, on changed layers or links, costed anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autosbp.cluster import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.evaluate import evaluate
from autosbp.errors import InputError
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Strategy
from autosbp.search.plan_options import PlanOptions
from autosbp.search.problem.strategy import add_paths
from autosbp.search.space.candidate import Candidate
from autosbp.search.stages.layouts import LayoutProblems
from autosbp.search.stages.stage_meshes import stage_meshes


@dataclass(frozen=True)
class Restart:
    """What became of a start: its strategy with its costs here, or the ``reason`` why it is left aside. Neither where there
    was no start."""

    candidate: Candidate | None = None
    reason: str = ""


def restarted(earlier: Strategy, problems: LayoutProblems, cluster: Cluster, options: PlanOptions) -> Restart:
    """The strategy of an earlier plan on ``cluster``, where it is as asked and fits the model: the same ops, and a batch that
    it splits evenly. Its microbatch stays, or else their number does, unless ``options`` have one; so does the size of its
    messages where it is one that search may choose. Whether it fits in memory is not looked at.

    Raises:
        InputError: options under which no start is looked at.
    """
    options.require_start()
    unasked = "; ".join(_unasked(earlier, cluster, options))
    if unasked:
        return Restart(reason=unasked)
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
            strategy = _at(earlier, graph, boxing, size, problems.global_batch)
            return Restart(Candidate(strategy, evaluate(graph, strategy, boxing, problems.compute)))
        except InputError as error:  # layouts that split unevenly, cuts at ops that are gone
            reason = reason or f"it does not fit {problems.graph.name} at a microbatch of {size}: {error}"
        except KeyError as error:
            name = getattr(error.args[0], "name", error.args[0])
            reason = reason or f"it does not fit {problems.graph.name}: it has no layout of {name}"
    return Restart(reason=reason or f"its microbatches do not divide the global batch {problems.global_batch}")


def _unasked(earlier: Strategy, cluster: Cluster, options: PlanOptions) -> Iterator[str]:
    """What of it cannot be had, or is not asked for."""
    stages, pipeline = earlier.num_stages, earlier.pipeline
    if options.stages not in (None, stages):
        yield f"it has {stages} stages, {options.stages} are asked for"
    levels = {count: mesh.level_counts for count, mesh in stage_meshes(cluster)}
    if earlier.mesh.level_counts != levels.get(stages):
        counts = " x ".join(map(str, earlier.mesh.level_counts))
        yield f"its {stages} stages of {counts} devices are not {cluster.name}"
    if pipeline is not None and pipeline.schedule.name not in options.schedules:
        yield f"its schedule {pipeline.schedule.name} is not asked for"
    if earlier.recompute and options.recompute == 0:
        yield "it recomputes blocks, which is forbidden"


def _sizes(earlier: Strategy, global_batch: int, asked: int | None) -> Iterator[int]:
    if asked is not None:
        yield asked
        return
    if global_batch % earlier.micro_batch == 0:
        yield earlier.micro_batch
    if global_batch % earlier.num_micro == 0 and global_batch // earlier.num_micro != earlier.micro_batch:
        yield global_batch // earlier.num_micro


def _at(earlier: Strategy, graph: LogicalGraph, boxing: BoxingModel, micro_batch: int, global_batch: int) -> Strategy:
    """The strategy at another batch, with the cheapest boxing of every activation."""
    if earlier.pipeline is not None:
        earlier.pipeline.check(global_batch // micro_batch)
    leaves = {leaf.name: leaf.meta for leaf in graph.parameters}
    # What was cheapest for parameters need not be so on other links, but stays a path; activations find theirs anew.
    shapes = {(meta.sizes, meta.num_bytes) for meta in leaves.values()}
    paths = {key: path for key, path in earlier.paths.items() if key[:2] in shapes}
    add_paths(paths, graph, boxing, dict(earlier.signatures), dict(earlier.parameters))
    return replace(earlier, paths=paths, global_batch=global_batch, micro_batch=micro_batch)
