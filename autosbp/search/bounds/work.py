"""What a step takes at the least, whatever the strategy: the model's work, dealt out evenly to all devices.

An op on one of D devices has no less than 1 / D of its arithmetic and of the bytes that it touches, however it is split, and a
pipeline's stages work no less in all than one of them would. So N devices take no less than 1 / N of what one would take for
all, launches aside; collectives, waits and recomputation come on top. So it is with what the optimizer touches.

Microbatches have no less to do in all than the whole batch where each op's work is proportional to the samples, or the same for
any. Where it grows in another way - what compares every sample with every other - the least over all microbatches counts.

On unlike devices, with n_i of kind i that would take w_i(op) each: for any weights l_i with sum n_i l_i = 1, no step is shorter
than the sum over ops of min_i l_i w_i(op), by duality. Weights are inverse to what a kind takes for all ops: where every op is
as many times quicker on one kind as another, nothing is lost.

It costs a look at each op, so that a plan has a bound whatever time it was given. Op times that were measured need not shrink
like work: there it says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import isclose

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.optimizer import moved_bytes
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.sbp.rules import sharding_of

ROUNDING = 1e-12
"""Relative, of counts beyond 2^53."""
Bound = Callable[[int], LogicalGraph]
Work = Counter[tuple[str, str, float, float]]
"""How many ops there are of a name, a precision, arithmetic, and bytes."""


def is_in_proportion(bound: Bound, sizes: Sequence[int]) -> bool:
    """Whether the work of each op is proportional to the samples of a microbatch, or the same for any: of the least and the
    most samples, by its arithmetic and each tensor that it touches."""
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
    """Seconds that no strategy's step is shorter than; ``-inf`` where ops were timed.

    Args:
        bound: the graph at a microbatch.
        sizes: microbatches that may be run, in samples; where work is in proportion to samples, the largest of them.
        offload: whether the optimizer may run elsewhere.
    """
    devices = [(group.device, group.num_devices) for group in cluster.groups] or [(cluster.device, cluster.num_devices)]
    models = [ComputeModel(device, calibration) for device, _ in devices]
    if any(model.measured for model in models):
        return float("-inf")
    work = _least_work([(bound(size), global_batch / size) for size in sizes])
    moved = 0.0 if offload else float(moved_bytes(bound(max(sizes)).trained, optimizer).sum())
    taken = np.array([[*_seconds(work, model), _optimizer_s(moved, model)] for model in models])
    counts = np.array([count for _, count in devices], dtype=np.float64)
    return _dealt_out(taken, counts)


def _dealt_out(taken: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """The least step, of seconds (kinds x ops) that a device of each kind takes, and how many devices of a kind there are."""
    whole = taken.sum(axis=1)
    if not whole.all():
        return 0.0
    weights = 1 / whole / (counts / whole).sum()
    return float((weights[:, None] * taken).min(axis=0).sum())


def _ops(graph: LogicalGraph) -> Iterator[tuple[Node, tuple[float, ...]]]:
    """Ops that take time, with their arithmetic and the bytes of each tensor that they touch."""
    for node in graph.nodes:
        if node.name in graph.computed and not (sharding := sharding_of(graph, node)).free:
            metas = (*map(graph.meta, node.refs()), *node.outputs)
            yield node, (sharding.flops, *(float(meta.num_bytes) for meta in metas))


def _least_work(graphs: Sequence[tuple[LogicalGraph, float]]) -> Work:
    """Of each op the least that any of these graphs, run so many times, has to do."""
    found: Work = Counter()
    for same in zip(*(_ops(graph) for graph, _ in graphs), strict=True):
        node = same[0][0]
        flops, num_bytes = (
            min(times * amount for amount, (_, times) in zip(amounts, graphs, strict=True))
            for amounts in zip(*((work[0], sum(work[1:])) for _, work in same), strict=True)
        )
        found[node.op, node.outputs[0].dtype, flops, num_bytes] += 1
    return found


def _seconds(work: Work, model: ComputeModel) -> Sequence[float]:
    """Of all ops of each kind, forward and backward, without their launches."""
    launch_s = model.scale * model.device.op_overhead_s
    found = []
    for (op, dtype, flops, num_bytes), count in work.items():
        forward, backward = model.roofline_s(op, dtype, np.array([flops]), np.array([num_bytes]))
        found.append(count * float(forward[0] + backward[0] - 2 * launch_s))
    return found


def _optimizer_s(num_bytes: float, model: ComputeModel) -> float:
    return float(model.optimizer_s(np.array([num_bytes]))[0]) - model.device.op_overhead_s
