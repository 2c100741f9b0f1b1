"""Communication of a step by link: seconds per network level, and the groups it is charged for."""

from __future__ import annotations

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.pipeline_program import PipelineProgram, StageCall
from autosbp.costmodel.step_collectives import Collective, collectives
from autosbp.costmodel.step_events import Timeline
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Strategy
from autosbp.sbp.mesh import Mesh


def level_seconds(
    graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, compute: ComputeModel
) -> dict[str, float]:
    """Seconds of one device's communication in a step by level, outermost first.

    A message counts for the slowest level that it crosses. Each message is charged in full, hidden or not. For a
    pipeline, this is the stage with the most communication, P2P messages included, without waits between messages.
    Arguments as in ``costmodel.strategy_cost.evaluate``.
    """
    cluster = boxing.network.cluster
    if strategy.pipeline is None:
        found = dict.fromkeys(range(len(cluster.levels)), 0.0)
        for events, times in Timeline(graph, strategy, boxing, compute).phases():
            for event in events:
                if event.category == "comm":
                    found[event.level] += times * event.duration_s
    else:
        stages = PipelineProgram(graph, strategy)
        every = [_of_stage(stages, stage, boxing.network) for stage in range(strategy.num_stages)]
        found = max(every, key=lambda each: sum(each.values()))
    return {cluster.levels[at].name: seconds for at, seconds in found.items()}


def communication_groups(graph: LogicalGraph, strategy: Strategy, cluster: Cluster) -> set[tuple[str, tuple[int, ...]]]:
    """(kind, group shape) of all collectives and messages of a step; ``graph`` is bound at the microbatch size."""
    if strategy.pipeline is None:
        calls: list[Collective | StageCall] = list(collectives(graph, strategy))
    else:
        stages = PipelineProgram(graph, strategy)
        calls = [call for stage in range(strategy.num_stages) for call in stages.calls(stage)]
    found = {(_kind(call), _shape(call, strategy.mesh, cluster)) for call in calls}
    return {(kind, shape) for kind, shape in found if max(shape) > 1}


def _of_stage(stages: PipelineProgram, stage: int, network: NetworkModel) -> dict[int, float]:
    mesh = stages.strategy.mesh
    found = dict.fromkeys(range(len(network.cluster.levels)), 0.0)
    for call in stages.calls(stage):
        shape = _shape(call, mesh, network.cluster)
        level = next((at for at, count in enumerate(shape) if count > 1), None)
        if level is not None:
            found[level] += network.time_s(_kind(call), call.num_bytes, shape)
    return found


def _kind(call: Collective | StageCall) -> str:
    return call.measured_kind if isinstance(call, Collective) else call.kind


def _shape(call: Collective | StageCall, mesh: Mesh, cluster: Cluster) -> tuple[int, ...]:
    """Units of each level in a group: within a stage's mesh, or ranks at the same position of several stages."""
    if isinstance(call, Collective):
        return mesh.group_shape(call.axes)
    if len(cluster.levels) == 1:
        return (len(call.stages),)
    nodes = {stage * mesh.size // cluster.devices_per_node for stage in call.stages}
    return len(nodes), max(1, len(call.stages) // len(nodes))
