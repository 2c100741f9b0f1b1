"""What the reduction of gradients takes: buckets of B parameters, once a step."""

from __future__ import annotations

import numpy as np

from autosbp.costmodel.network import NetworkModel
from autosbp.graph.ir import LogicalGraph
from autosbp.plan import BUCKET_BYTES, Strategy
from autosbp.sbp.buckets import Bucket, local_bytes


def synchronisation_s(
    graph: LogicalGraph, strategy: Strategy, bucket: Bucket, network: NetworkModel, message: int
) -> float:
    """The all-reduce of a bucket of gradients: the sum of the shares of ``message`` bytes that its parameters pay."""
    sizes = np.array([local_bytes(graph, strategy, name) for name in bucket.names], dtype=np.float64)
    shape = strategy.mesh.group_shape(bucket.axes)
    return float(network.shared_times_s("all_reduce", sizes, message, shape).sum())


def shared_message_bytes(graph: LogicalGraph, bucket_bytes: int = BUCKET_BYTES) -> int:
    """The message that a gradient travels in: a full bucket, or one of all parameters."""
    return min(bucket_bytes, sum(leaf.meta.num_bytes for leaf in graph.parameters))
