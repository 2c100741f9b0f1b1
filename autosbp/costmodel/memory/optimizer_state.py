"""Bytes of a parameter with its gradient and optimizer state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod

from autosbp.graph.ir import DTYPE_BYTES, Parameter, TensorMeta
from autosbp.plan.plan import Strategy
from autosbp.sbp.boxing import split_factor


def optimizer_bytes_per_element(meta: TensorMeta, optimizer: str) -> int:
    """Optimizer state of one element.

    Adam keeps two moments, and an fp32 copy of half-precision parameters (Rajbhandari et al. 2020, section 3.1).
    """
    width = meta.optimizer_width
    return {"adamw": 2, "sgd": 0}[optimizer] * width + (width if DTYPE_BYTES[meta.dtype] < width else 0)


def state_bytes_per_element(meta: TensorMeta, optimizer: str, *, offload: bool = False) -> int:
    """Parameter, gradient and, unless offloaded, optimizer state of one element."""
    return (
        DTYPE_BYTES[meta.dtype] + meta.gradient_width + (0 if offload else optimizer_bytes_per_element(meta, optimizer))
    )


def optimizer_bytes(trained: Iterable[Parameter], strategy: Strategy) -> int:
    """Optimizer state of these parameters on one device: of its own, and of those that the fullest parameter server steps."""
    if strategy.offload:
        return 0
    syncs = {} if strategy.sync is None else strategy.sync.parameters
    own, served = 0, Counter[int]()
    for leaf in trained:
        local = prod(leaf.meta.sizes) // split_factor(strategy.parameters[leaf.name], strategy.mesh)
        size = local * optimizer_bytes_per_element(leaf.meta, strategy.optimizer)
        sync = syncs.get(leaf.name)
        if sync is None or not sync.is_served:
            own += size
            continue
        for destination in sync.destinations:
            served[destination] += size // sync.num_shards
    return own + max(served.values(), default=0)
