"""Bytes that a parameter takes with its gradient and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from autosbp.graph.ir import DTYPE_BYTES, Parameter, TensorMeta
from autosbp.plan import Strategy
from autosbp.sbp.boxing import split_factor


def optimizer_bytes_per_element(meta: TensorMeta, optimizer: str) -> int:
    """Adam keeps two fp32 moments, and an fp32 copy of parameters that are stored shorter (Rajbhandari et al. 2020,
    section 3.1)."""
    width = DTYPE_BYTES[meta.dtype]
    return {"adamw": 2, "sgd": 0}[optimizer] * max(4, width) + (4 if width < 4 else 0)


def state_bytes_per_element(meta: TensorMeta, optimizer: str, *, offload: bool = False) -> int:
    """Parameter, gradient and, unless that is on the host, optimizer state of one element."""
    return 2 * DTYPE_BYTES[meta.dtype] + (0 if offload else optimizer_bytes_per_element(meta, optimizer))


def optimizer_bytes(trained: Iterable[Parameter], strategy: Strategy) -> int:
    """The optimizer's state of one device for these parameters."""
    if strategy.offload:
        return 0
    return sum(
        prod(leaf.meta.sizes) // split_factor(strategy.parameters[leaf.name], strategy.mesh)
        * optimizer_bytes_per_element(leaf.meta, strategy.optimizer)
        for leaf in trained
    )  # fmt: skip
