"""Bytes of a parameter with its gradient and optimizer state."""

from __future__ import annotations

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
    """Optimizer state of these parameters on one device."""
    if strategy.offload:
        return 0
    return sum(
        prod(leaf.meta.sizes) // split_factor(strategy.parameters[leaf.name], strategy.mesh)
        * optimizer_bytes_per_element(leaf.meta, strategy.optimizer)
        for leaf in trained
    )  # fmt: skip
