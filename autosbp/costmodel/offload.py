"""Optimizer state on the host (ZeRO-Offload: Ren et al. 2021, section 3): what a step takes, and what the host holds.

Gradients go to the host, which keeps a copy of the parameters with the optimizer's state and steps there; parameters come
back. One after another, as ``executor.offload`` does it: nothing runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster import Cluster, Host
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.memory.state import optimizer_bytes_per_element
from autosbp.costmodel.optimizer import step_bytes
from autosbp.errors import InputError
from autosbp.graph.ir import Parameter
from autosbp.plan import Strategy
from autosbp.sbp.boxing import split_factor


def host_of(cluster: Cluster) -> Host:
    """Of a cluster whose file tells of it; raises ``InputError``."""
    if cluster.host is None:
        raise InputError("offload", True, f"the cluster file of {cluster.name} has no host to offload to")
    return cluster.host


def optimizer_s(
    compute: ComputeModel,
    cluster: Cluster,
    optimizer: str,
    parameter_bytes: NDArray[np.float64],
    width: int,
    *,
    offload: bool,
) -> NDArray[np.float64]:
    """Seconds of the optimizer's step, where its state is, of parameters of so many bytes, ``width`` of them an element;
    raises ``InputError`` where there is no host."""
    moved_bytes = step_bytes(width, optimizer) / width * parameter_bytes
    if not offload:
        return compute.optimizer_s(moved_bytes)
    return offloaded_s(host_of(cluster), parameter_bytes, moved_bytes)


def offloaded_s(
    host: Host, parameter_bytes: NDArray[np.float64], moved_bytes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds of the step of parameters on one device: down, step, up."""
    return 2.0 * parameter_bytes / host.link_bytes_per_s + moved_bytes / host.memory_bandwidth_bytes_per_s


def host_bytes(trained: Iterable[Parameter], strategy: Strategy) -> int:
    """What the host holds for one device: copies of its parameters and gradients, and the optimizer's state."""
    return sum(
        prod(leaf.meta.sizes) // split_factor(strategy.parameters[leaf.name], strategy.mesh)
        * (2 * (leaf.meta.num_bytes // prod(leaf.meta.sizes)) + optimizer_bytes_per_element(leaf.meta, strategy.optimizer))
        for leaf in trained
    )  # fmt: skip
