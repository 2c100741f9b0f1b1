"""What a step takes at the least, whatever the strategy: the model's work, dealt out evenly to all devices.

An op on one of D devices has no less than 1 / D of its arithmetic and of the bytes that it touches, however it is split, and a
pipeline's stages work no less in all than one of them would. So N devices take no less than 1 / N of what one would take for
all, launches aside; collectives, waits and recomputation come on top. So it is with what the optimizer touches. As in search,
smaller microbatches have no less to do than the whole batch at once.

On unlike devices, with n_i of kind i that would take w_i(op) each: for any weights l_i with sum n_i l_i = 1, no step is shorter
than the sum over ops of min_i l_i w_i(op), by duality. Weights are inverse to what a kind takes for all ops: where every op is
as many times quicker on one kind as another, nothing is lost.

It costs a look at each op, so that a plan has a bound whatever time it was given. Op times that were measured need not shrink
like work: there it says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster import Cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.costmodel.compute import ComputeModel
from autosbp.graph.ir import LogicalGraph, Node
from autosbp.sbp.rules import sharding_of

Work = Counter[tuple[str, str, float, float]]
"""How many ops there are of a name, a precision, arithmetic, and bytes."""


def work_bound_s(
    graph: LogicalGraph, cluster: Cluster, calibration: Calibration | None, *, offload: bool = False
) -> float:
    """Seconds that no strategy's step is shorter than; ``-inf`` where ops were timed.

    Args:
        graph: bound at the global batch.
        offload: whether the optimizer may run elsewhere.
    """
    devices = [(group.device, group.num_devices) for group in cluster.groups] or [(cluster.device, cluster.num_devices)]
    models = [ComputeModel(device, calibration) for device, _ in devices]
    if any(model.measured for model in models):
        return float("-inf")
    work = _work_of(graph)
    trained_bytes = 0 if offload else sum(leaf.meta.num_bytes for leaf in graph.trained)
    taken = np.array([[*_seconds(work, model), _optimizer_s(trained_bytes, model)] for model in models])
    counts = np.array([count for _, count in devices], dtype=np.float64)
    return _dealt_out(taken, counts)


def _dealt_out(taken: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """The least step, of seconds (kinds x ops) that a device of each kind takes, and how many devices of a kind there are."""
    whole = taken.sum(axis=1)
    if not whole.all():
        return 0.0
    weights = 1 / whole / (counts / whole).sum()
    return float((weights[:, None] * taken).min(axis=0).sum())


def _work_of(graph: LogicalGraph) -> Work:
    found: Work = Counter()
    for node in graph.nodes:
        if node.name in graph.computed and not (sharding := sharding_of(graph, node)).free:
            found[node.op, node.outputs[0].dtype, sharding.flops, _touched(graph, node)] += 1
    return found


def _touched(graph: LogicalGraph, node: Node) -> float:
    return float(sum(meta.num_bytes for meta in (*map(graph.meta, node.refs()), *node.outputs)))


def _seconds(work: Work, model: ComputeModel) -> Sequence[float]:
    """Of all ops of each kind, forward and backward, without their launches."""
    launch_s = model.scale * model.device.op_overhead_s
    found = []
    for (op, dtype, flops, num_bytes), count in work.items():
        forward, backward = model.roofline_s(op, dtype, np.array([flops]), np.array([num_bytes]))
        found.append(count * float(forward[0] + backward[0] - 2 * launch_s))
    return found


def _optimizer_s(num_bytes: int, model: ComputeModel) -> float:
    return float(model.optimizer_s(np.array([num_bytes]))[0]) - model.device.op_overhead_s
