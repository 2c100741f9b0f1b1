"""The cost of one strategy: its time, traffic and memory (DESIGN section 7).

Everything is derived from the program's items, the same list that the executor lowers. The step is that of one rank, simulated
(``costmodel.simulate``): gradients and parameters travel beside the ops that do not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from autosbp.beside import in_turn
from autosbp.costmodel.alike import KnownChunks
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.memory import memory_bytes
from autosbp.costmodel.network import beta_factor
from autosbp.costmodel.pipelined import evaluate_pipelined
from autosbp.costmodel.simulate import Elapsed, elapsed
from autosbp.costmodel.timeline import Timeline
from autosbp.costmodel.timeline_event import Event
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import Costs, Strategy
from autosbp.sbp.parameters import ParameterFlow, parameter_flow


def evaluate(
    graph: LogicalGraph,
    strategy: Strategy,
    boxing: BoxingModel,
    compute: ComputeModel,
    known: KnownChunks | None = None,
) -> Costs:
    """Predicted costs of one training step on one device. ``graph`` is bound at the microbatch, ``boxing`` on the
    strategy's mesh; of a pipeline, the mesh of one stage. ``known`` is kept for other strategies of the same graph on
    the same devices and links."""
    if strategy.pipeline is not None:
        return evaluate_pipelined(graph, strategy, boxing, compute, known)
    flow = parameter_flow(graph, strategy)
    run = in_turn if known is None else known.run
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
) -> tuple[Elapsed, float]:
    """What a rank does in a step, and the bytes that it sends."""
    phases = Timeline(graph, strategy, boxing, compute, flow).phases()
    traffic = 0.0
    for events, times in phases:
        for event in events:
            if event.category == "comm":
                size = strategy.mesh.group_size(event.details["axes"])
                traffic += times * beta_factor(event.details["kind"], size) * event.details["num_bytes"]
    return step_of(phases, compute), traffic


def step_of(phases: Sequence[tuple[Sequence[Event], int]], compute: ComputeModel) -> Elapsed:
    """What a rank does in a step of these phases, each to its end; what repeats is simulated once."""
    spent = Elapsed()
    for events, times in phases:
        spent = spent.plus(elapsed(events, compute.overlap), times)
    return spent
