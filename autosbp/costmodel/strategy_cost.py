"""The cost of one strategy: time, traffic and memory.

Everything is derived from the program's items, the same list that the executor lowers. The step is that of one rank,
simulated (``costmodel.step_simulator``): communication of gradients and parameters overlaps ops that do not wait for
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.chunk_cache import ChunkCostCache
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.memory import memory_bytes
from autosbp.costmodel.network import NetworkModel, beta_factor
from autosbp.costmodel.pipeline_cost import evaluate_pipelined
from autosbp.costmodel.step_event import Event
from autosbp.costmodel.step_events import Timeline
from autosbp.costmodel.step_simulator import StepSeconds, simulate_activity
from autosbp.graph.ir import LogicalGraph
from autosbp.plan.plan import Costs, Strategy
from autosbp.program.parameter_flow import ParameterFlow, parameter_flow
from autosbp.utils.parallel import run_serial


def evaluate(
    graph: LogicalGraph,
    strategy: Strategy,
    boxing: BoxingModel,
    compute: ComputeModel,
    known: ChunkCostCache | None = None,
) -> Costs:
    """Predicted costs of one training step on one device.

    Args:
        graph: bound at the microbatch size.
        boxing: on the strategy's mesh; for a pipeline, the mesh of one stage.
        known: cache shared by strategies of the same graph on the same devices and links.
    """
    if strategy.pipeline is not None:
        return evaluate_pipelined(graph, strategy, boxing, compute, known)
    flow = parameter_flow(graph, strategy)
    run = run_serial if known is None else known.run
    (spent, traffic), memory = run(
        [
            lambda: _time(graph, strategy, boxing, compute, flow),
            lambda: memory_bytes(graph, strategy, flow, device=boxing.device.kind),
        ]
    )
    return Costs(
        step_time_s=spent.seconds,
        compute_s=spent.compute_s,
        exposed=spent.exposed,
        hidden_comm_s=spent.hidden_s,
        bubble_s=0.0,
        optimizer_s=spent.optimizer_s,
        comm_bytes_per_device=round(traffic),
        memory_bytes_per_device=sum(memory.values()),
        memory=memory,
    )


def _time(
    graph: LogicalGraph, strategy: Strategy, boxing: BoxingModel, compute: ComputeModel, flow: ParameterFlow
) -> tuple[StepSeconds, float]:
    """Activity of a rank in a step, and the bytes that it sends."""
    phases = Timeline(graph, strategy, boxing, compute, flow).phases()
    traffic = 0.0
    for events, times in phases:
        for event in events:
            if event.category == "comm":
                size = strategy.mesh.group_size(event.details["axes"])
                traffic += times * beta_factor(event.details["kind"], size) * event.details["num_bytes"]
    return simulate_phases(phases, compute), traffic


def simulate_phases(phases: Sequence[tuple[Sequence[Event], int]], compute: ComputeModel) -> StepSeconds:
    """Activity of a rank in a step; each phase runs to its end, and repeated phases are simulated once."""
    spent = StepSeconds()
    for events, times in phases:
        spent = spent.plus(simulate_activity(events, compute.overlap), times)
    return spent


def predict_costs(
    graph: LogicalGraph, strategy: Strategy, cluster: Cluster, calibration: Calibration | None = None
) -> Costs:
    """Predict time, traffic and memory of one training step of a strategy on the cluster of its mesh.

    Raises:
        InputError: if the strategy does not fit the graph.
    """
    compute = ComputeModel(cluster.device, calibration)
    boxing = BoxingModel(NetworkModel(cluster, calibration), strategy.mesh, compute.copy_bytes_per_s)
    return evaluate(graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch)), strategy, boxing, compute)
