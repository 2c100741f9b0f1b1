"""Pipelined strategies of a comparison: best layouts inside a stage, a schedule, and balanced cuts.

All follow from the calibration alone, before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd

from autosbp.api import Calibration, Cluster, LogicalGraph, PlanOptions, op_keys
from autosbp.costmodel.boxing import BoxingModel
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.network import NetworkModel
from autosbp.costmodel.step_events import Timeline
from autosbp.plan.pipeline import Pipeline
from autosbp.plan.plan import Strategy
from autosbp.plan.schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from autosbp.search import SEARCHERS, SearchOptions
from autosbp.search.problem.baselines import Roles
from autosbp.search.problem.builder import ProblemBuilder
from autosbp.search.problem.builder_base import Allowed
from autosbp.search.problem.strategy import strategy_of

MICROBATCHES = 4
WIDEST = 2
"""Number of devices of the widest stage."""
TABLE = (
    # (stages, layouts inside a stage, schedule, chunks per stage)
    (2, "data parallel", GPIPE, 1),
    (2, "tensor parallel", ONE_F_ONE_B, 1),
    (2, "data parallel", INTERLEAVED, 2),
    (2, "tensor parallel", ZERO_BUBBLE, 1),
    (4, "whole", ONE_F_ONE_B, 1),
    (4, "whole", ZERO_BUBBLE, 1),
    (2, "data parallel", ONE_F_ONE_B, 1),
    (2, "tensor parallel", GPIPE, 1),
)
"""Rows in order of preference; the first that fit are used."""
LEARNING_TRIAL = (2, "tensor parallel", INTERLEAVED, 2)
"""The pipelined trial that the calibration learns from."""


def pipelined(
    graph: LogicalGraph, cluster: Cluster, calibration: Calibration | None, batch: int, count: int
) -> Iterator[tuple[str, Strategy]]:
    """The first ``count`` rows of ``TABLE`` that fit, with labels.

    Every chunk has an op with parameters; stages of one device are on different nodes.
    """
    yield from _rows(graph, cluster, calibration, batch, count, TABLE)


def learning_trial(
    graph: LogicalGraph, cluster: Cluster, calibration: Calibration | None, batch: int
) -> Iterator[tuple[str, Strategy]]:
    """The strategy of ``LEARNING_TRIAL``, if it fits."""
    yield from _rows(graph, cluster, calibration, batch, 1, (LEARNING_TRIAL,))


def _rows(
    graph: LogicalGraph,
    cluster: Cluster,
    calibration: Calibration | None,
    batch: int,
    count: int,
    rows: Sequence[tuple[int, str, str, int]],
) -> Iterator[tuple[str, Strategy]]:
    for stages, layout, schedule, virtual in rows:
        parts = stage_cluster(cluster, cluster.num_devices // stages)
        if count == 0 or (parts.num_devices == 1 and cluster.devices_per_node > 1):
            continue
        inside = _inside(graph, cluster, parts, calibration, batch, layout)
        cuts = balanced_cuts(graph, inside, cluster, calibration, stages * virtual)
        if cuts is not None:
            count -= 1
            chunks = f" x {virtual}" if virtual > 1 else ""
            label = f"{schedule.name} {stages}{chunks}, {layout}"
            yield label, replace(inside, pipeline=Pipeline(stages, cuts, schedule))


def stage_op_keys(graph: LogicalGraph, cluster: Cluster, batch: int) -> list[str]:
    """Keys of the ops that stages of up to ``WIDEST`` devices run."""
    micro_batch = batch // MICROBATCHES
    return op_keys(graph, stage_cluster(cluster, WIDEST), PlanOptions(global_batch=batch, micro_batch=micro_batch))


def stage_cluster(cluster: Cluster, size: int) -> Cluster:
    """The first ``size`` devices, filling the innermost level first."""
    levels = []
    for level in reversed(cluster.levels):
        levels.append(replace(level, count=gcd(level.count, size)))
        size //= levels[-1].count
    return replace(cluster, levels=tuple(reversed(levels)))


def _inside(
    graph: LogicalGraph, cluster: Cluster, parts: Cluster, calibration: Calibration | None, batch: int, layout: str
) -> Strategy:
    """The best strategy on a stage's devices with the given kind of layouts."""
    roles, micro_batch = Roles(graph), batch // MICROBATCHES
    rules: dict[str, Allowed | None] = {
        "data parallel": lambda cluster, _, option: roles.data_axis(cluster, option),
        "tensor parallel": lambda cluster, _, option: roles.tensor_axis(cluster, option),
        "whole": None,
    }
    bound = graph.bind(**dict.fromkeys(graph.symbols, micro_batch))
    compute = ComputeModel(cluster.device, calibration)
    boxing = BoxingModel(NetworkModel(cluster, calibration), parts.mesh(), compute.copy_bytes_per_s)
    built = ProblemBuilder(bound, boxing, compute, num_micro=MICROBATCHES, optimizer="adamw").build(None, rules[layout])
    found = SEARCHERS["exact"](built.problem, SearchOptions())
    return strategy_of(
        built, found.assignment, bound, boxing, global_batch=batch, micro_batch=micro_batch, optimizer="adamw"
    )


def balanced_cuts(
    graph: LogicalGraph, strategy: Strategy, cluster: Cluster, calibration: Calibration | None, num_chunks: int
) -> tuple[str, ...] | None:
    """Cuts into chunks that minimize the predicted time of the longest chunk.

    Times are predicted seconds of ops and collectives of a microbatch. Ties are broken by the traffic across the cuts.
    None if there are fewer ops with trained parameters than chunks.
    """
    bound = graph.bind(**dict.fromkeys(graph.symbols, strategy.micro_batch))
    compute = ComputeModel(cluster.device, calibration)
    network = NetworkModel(cluster, calibration)
    timeline = Timeline(
        bound, strategy, BoxingModel(network, strategy.mesh, compute.copy_bytes_per_s), compute
    )  # fmt: skip
    seconds: dict[str, float] = {}
    for event in (*timeline.forward_pass(False), *timeline.backward_pass(False)):
        seconds[event.name] = seconds.get(event.name, 0.0) + event.duration_s
    names = [node.name for node in bound.nodes if node.name in bound.parameter_dependent]
    weighty = [bool(bound.parameter_names & {ref.name for ref in node.refs()}) for node in bound.nodes
               if node.name in bound.parameter_dependent]  # fmt: skip
    crossing = _crossing_bytes(bound, names)
    sent_s = [network.cluster.levels[0].latency_s + size / network.cluster.levels[0].bandwidth_bytes_per_s
              for size in crossing]  # fmt: skip
    return _partition(names, [seconds.get(name, 0.0) for name in names], weighty, sent_s, num_chunks)


def _crossing_bytes(graph: LogicalGraph, names: Sequence[str]) -> list[int]:
    """Bytes that cross each cut: values computed before an op and read by it or later."""
    place = {name: at for at, name in enumerate(names)}
    last: dict[tuple[str, int], int] = {}
    for node in graph.nodes:
        for ref in node.refs():
            if node.name in place and ref.name in place:
                last[ref.name, ref.index] = max(last.get((ref.name, ref.index), 0), place[node.name])
    found = [0] * len(names)
    for (name, index), end in last.items():
        for at in range(place[name] + 1, end + 1):
            found[at] += graph.metas[name][index].num_bytes
    return found


def _partition(
    names: Sequence[str], seconds: Sequence[float], weighty: Sequence[bool], sent_s: Sequence[float], count: int
) -> tuple[str, ...] | None:
    """Cuts of the best partition into ``count`` runs of ops, each with an op of ``weighty``.

    Minimizes the maximum over runs of their compute and receive seconds, then the total send seconds.
    """
    Best = tuple[float, float, tuple[int, ...]]
    best: dict[int, Best] = {0: (0.0, 0.0, ())}
    for chunk in range(1, count + 1):
        ends = range(1, len(names) + 1) if chunk < count else (len(names),)
        found: dict[int, Best] = {}
        for end in ends:
            options: list[Best] = []
            for begin, (longest, sent, cuts) in best.items():
                if begin < end and any(weighty[begin:end]):
                    here = sent_s[begin] if begin else 0.0
                    own = sum(seconds[begin:end]) + here
                    options.append((max(longest, own), sent + here, (*cuts, begin)))
            if options:
                found[end] = min(options)
        best = found
    return tuple(names[at] for at in best[len(names)][2][1:]) if best else None
