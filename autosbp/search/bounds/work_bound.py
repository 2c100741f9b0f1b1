"""Lower bound on step time from the model's work alone, spread evenly over all devices.

However an op is split over D devices, one of them has at least 1 / D of its arithmetic and of its bytes. The stages of
a pipeline together do at least the work of one stage that runs the whole model. So a step on N devices takes at least 1
/ N of the time of one device, kernel launches aside; collectives, waits and recomputation come on top. The same holds
for the bytes that the optimizer touches.

All microbatches together do at least the work of the whole batch if each op's work is proportional to the samples, or
independent of them. If an op's work grows in another way, such as comparing every sample with every other, the least
total over all microbatch sizes counts.

On a cluster with n_i devices of kind i, where a device of kind i alone would take w_i(op) for an op, duality gives a
bound for any weights l_i with sum n_i l_i = 1: no step is shorter than the sum over ops of min_i l_i w_i(op). The
weights are the inverse of each kind's time for all ops. This loses nothing if one kind is faster than another by the
same factor for every op.

The bound costs one look at each op, so a plan has it under any time limit. Measured op times need not shrink with the
work: with them the bound is ``-inf``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import isclose

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster.spec import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.float8 import (
    KERNELS_PER_TENSOR,
    SCALED_BACKWARD,
    SCALED_FORWARD,
    RooflineWork,
    roofline_work,
)
from autosbp.costmodel.optimizer import moved_bytes
from autosbp.graph.ir import FLOAT8, LogicalGraph, Node
from autosbp.sbp.rules import sharding_of

ROUNDING = 1e-12
"""Relative tolerance, for counts beyond 2^53."""
Bound = Callable[[int], LogicalGraph]
Work = Counter[tuple[str, str, float, float, float, float]]
"""Number of ops by (op name, dtype, FLOPs, bytes, bytes of scaling forward, and backward)."""


def is_work_proportional(bound: Bound, sizes: Sequence[int]) -> bool:
    """Whether each op's work is proportional to a microbatch's samples, or independent of them.

    Compares each op's FLOPs and the bytes of each tensor it touches between the smallest and the largest size."""
    small, large = min(sizes), max(sizes)
    pairs = zip(_ops(bound(small)), _ops(bound(large)), strict=True)
    return small == large or all(
        few == many or isclose(few * large, many * small, rel_tol=ROUNDING)
        for (_, one), (_, other) in pairs
        for few, many in zip(one, other, strict=True)
    )


def work_bound_s(
    bound: Bound,
    sizes: Sequence[int],
    global_batch: int,
    cluster: Cluster,
    calibration: Calibration | None,
    *,
    optimizer: str = "adamw",
    offload: bool = False,
) -> float:
    """Seconds that no strategy's step is shorter than; ``-inf`` if op times were measured.

    Args:
        bound: the graph at a microbatch size.
        sizes: microbatch sizes that may be used, in samples; if work is proportional to the samples, the largest one
            suffices.
        global_batch: samples of a step.
        offload: whether the optimizer may run outside the device, where its work does not count.
    """
    devices = [(group.device, group.num_devices) for group in cluster.groups] or [(cluster.device, cluster.num_devices)]
    models = [ComputeModel(device, calibration) for device, _ in devices]
    if any(model.measured for model in models):
        return float("-inf")
    work = _min_work([(bound(size), global_batch / size) for size in sizes])
    moved = 0.0 if offload else float(moved_bytes(bound(max(sizes)).trained, optimizer).sum())
    taken = np.array([[*_seconds(work, model), _optimizer_s(moved, model)] for model in models])
    counts = np.array([count for _, count in devices], dtype=np.float64)
    return _balanced_step_s(taken, counts)


def _balanced_step_s(taken: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """Least step time in seconds.

    Args:
        taken: [kind, op] seconds of a device of each kind.
        counts: [kind] number of devices.
    """
    whole = taken.sum(axis=1)
    if not whole.all():
        return 0.0
    weights = 1 / whole / (counts / whole).sum()
    return float((weights[:, None] * taken).min(axis=0).sum())


def _ops(graph: LogicalGraph) -> Iterator[tuple[Node, tuple[float, ...]]]:
    """Ops that take time, each with its FLOPs and the bytes of each tensor it touches."""
    for node in graph.nodes:
        if node.name in graph.parameter_dependent and not (sharding := sharding_of(graph, node)).free:
            metas = (*map(graph.meta, node.refs()), *node.outputs)
            yield node, (sharding.flops, *(sharding.traffic * meta.num_bytes for meta in metas))


def _min_work(graphs: Sequence[tuple[LogicalGraph, float]]) -> Work:
    """For each op, the least work over these pairs of a graph and how often it runs in a step."""
    found: Work = Counter()
    for same in zip(*(_ops(graph) for graph, _ in graphs), strict=True):
        node = same[0][0]
        moved = [_moved(graph, own) for (own, _), (graph, _) in zip(same, graphs, strict=True)]
        rows = [
            (work[0], *map(float, (each.num_bytes, *(each.scaling_bytes or (0.0, 0.0)))))
            for (_, work), each in zip(same, moved, strict=True)
        ]
        flops, num_bytes, ahead, back = (
            min(times * amount for amount, (_, times) in zip(amounts, graphs, strict=True))
            for amounts in zip(*rows, strict=True)
        )
        found[node.op, moved[0].dtype, flops, num_bytes, ahead, back] += 1
    return found


def _moved(graph: LogicalGraph, node: Node) -> RooflineWork:
    """Bytes of the whole op."""
    ins, outs = (
        [np.array(meta.num_bytes, dtype=np.float64) for meta in metas]
        for metas in ([graph.meta(ref) for ref in node.refs()], node.outputs)
    )
    return roofline_work(graph, node, ins, outs)


def _seconds(work: Work, model: ComputeModel) -> Sequence[float]:
    """Seconds of each entry of ``work``, forward and backward, without kernel launches."""
    launch_s = model.scale * model.device.op_overhead_s
    found = []
    for (op, dtype, flops, num_bytes, *scaling), count in work.items():
        scales = dtype == FLOAT8
        forward, backward = model.roofline_s(
            op, dtype, np.array([flops]), np.array([num_bytes]),
            scaling_bytes=(np.array(scaling[:1]), np.array(scaling[1:])) if scales else None,
        )  # fmt: skip
        launches = 2 + KERNELS_PER_TENSOR * (SCALED_FORWARD + SCALED_BACKWARD) * scales
        found.append(count * float(forward[0] + backward[0] - launches * launch_s))
    return found


def _optimizer_s(num_bytes: float, model: ComputeModel) -> float:
    return float(model.optimizer_s(np.array([num_bytes]))[0]) - model.device.op_overhead_s
