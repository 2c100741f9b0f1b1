"""Optimizer state offloaded to the host (ZeRO-Offload: Ren et al. 2021, section 3): step time and host memory.

Gradients go to the host, which keeps a copy of the parameters with the optimizer's state and steps there; parameters
come back. The three phases are sequential, as in ``executor.optimizer_offload``: nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
from numpy.typing import NDArray

from autosbp.cluster.spec import Cluster, Host
from autosbp.costmodel.compute import ComputeModel
from autosbp.costmodel.memory.optimizer_state import state_bytes_per_element
from autosbp.costmodel.optimizer import step_bytes
from autosbp.errors import InputError
from autosbp.graph.ir import DTYPE_BYTES, Parameter, TensorMeta
from autosbp.plan.plan import Strategy
from autosbp.sbp.boxing import split_factor


def host_of(cluster: Cluster) -> Host:
    """The host of a cluster; raises ``InputError`` if the cluster file has none."""
    if cluster.host is None:
        raise InputError("offload", True, f"the cluster file of {cluster.name} describes no host to offload to")
    return cluster.host


def optimizer_s(
    compute: ComputeModel,
    cluster: Cluster,
    optimizer: str,
    parameter_bytes: NDArray[np.float64],
    meta: TensorMeta,
    *,
    offload: bool,
) -> NDArray[np.float64]:
    """Seconds of the optimizer's step on the device or, with ``offload``, on the host.

    Args:
        parameter_bytes: bytes of each parameter.
        meta: dtypes of the parameters, whatever their shapes.

    Raises:
        InputError: ``offload`` without a host.
    """
    width = DTYPE_BYTES[meta.dtype]
    moved_bytes = step_bytes(meta, optimizer) / width * parameter_bytes
    if not offload:
        return compute.optimizer_s(moved_bytes)
    sent_bytes = (1 + meta.gradient_width / width) * parameter_bytes
    return offloaded_s(host_of(cluster), sent_bytes, moved_bytes)


def offloaded_s(host: Host, sent_bytes: NDArray[np.float64], moved_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of the offloaded step of one device's parameters: gradients down, step, parameters up."""
    return sent_bytes / host.link_bytes_per_s + moved_bytes / host.memory_bandwidth_bytes_per_s


def host_bytes(trained: Iterable[Parameter], strategy: Strategy) -> int:
    """Host bytes for one device: copies of its parameters and gradients, and the optimizer's state."""
    return sum(
        prod(leaf.meta.sizes) // split_factor(strategy.parameters[leaf.name], strategy.mesh)
        * state_bytes_per_element(leaf.meta, strategy.optimizer)
        for leaf in trained
    )  # fmt: skip
