"""Bytes that a parameter takes with its gradient and optimizer state."""

from __future__ import annotations

from autosbp.graph.ir import DTYPE_BYTES, TensorMeta


def optimizer_bytes_per_element(meta: TensorMeta, optimizer: str) -> int:
    """Adam keeps two fp32 moments, and an fp32 copy of parameters that are stored shorter (Rajbhandari et al. 2020,
    section 3.1)."""
    width = DTYPE_BYTES[meta.dtype]
    return {"adamw": 2, "sgd": 0}[optimizer] * max(4, width) + (4 if width < 4 else 0)


def state_bytes_per_element(meta: TensorMeta, optimizer: str) -> int:
    """Parameter, gradient and optimizer state of one element."""
    return 2 * DTYPE_BYTES[meta.dtype] + optimizer_bytes_per_element(meta, optimizer)
