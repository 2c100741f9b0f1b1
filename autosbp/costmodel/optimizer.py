"""Bytes that one optimizer step moves per parameter element, for ``executor.master_weights`` and for Megatron-LM.

Parameters stored in fewer bits than float32 have a float32 master copy that the optimizer updates (Micikevicius et al.
2018): gradients in half precision are copied to float32 and, after the step, parameters are copied back. Megatron-LM
(``megatron/optimizer``) also unscales and checks gradients, and clips them by their norm. Each pass is a memory-bound
kernel over all parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
from numpy.typing import NDArray

from autosbp.graph.ir import DTYPE_BYTES, Parameter, TensorMeta

TENSOR_ACCESSES = {"adamw": 7, "sgd": 3}
"""Tensor reads and writes of a step, on the parameter, its gradient and the optimizer's states."""
_FULL = 4
_ADAM = 4 * _FULL + 3 * _FULL
"""Reads parameter, gradient and two moments; writes parameter and moments."""
_NORM = _FULL
_CLIP = 2 * _FULL
_UNSCALE = 2 * _FULL


def step_bytes(meta: TensorMeta, optimizer: str) -> int:
    """Bytes moved per element of a parameter."""
    width, gradient, full = DTYPE_BYTES[meta.dtype], meta.gradient_width, meta.optimizer_width
    copies = (gradient + full if gradient < full else 0) + (full + width if width < full else 0)
    return copies + TENSOR_ACCESSES[optimizer] * full


def moved_bytes(leaves: Iterable[Parameter], optimizer: str) -> NDArray[np.float64]:
    """Bytes moved by the step of each whole parameter."""
    metas = [leaf.meta for leaf in leaves]
    return np.array([prod(meta.sizes) * step_bytes(meta, optimizer) for meta in metas], dtype=np.float64)


def adam_step_bytes(width: int) -> int:
    """Bytes per element of Megatron-LM's Adam step; gradients are as wide as the parameter and zeroed afterwards."""
    copies = (width + _FULL) + (_FULL + width) + _UNSCALE if width < _FULL else 0
    return copies + _NORM + _CLIP + _ADAM + width
