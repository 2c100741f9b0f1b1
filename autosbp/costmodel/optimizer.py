"""Bytes that one step of an optimizer moves for each parameter element: of ``executor.full_precision``, and of Megatron-LM.

Parameters that are stored shorter than float32 have a float32 copy, which the optimizer works on (Micikevicius et al.
2018): gradients are copied to float32 and, after the step, parameters are copied back. Megatron-LM (``megatron/optimizer``)
also unscales and checks gradients, and clips them by their norm. Passes are kernels of their own over all parameters, bound
by memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from autosbp.graph.ir import DTYPE_BYTES, Parameter

TOUCHED = {"adamw": 7, "sgd": 3}
"""Tensors that a step reads and writes: the parameter, its gradient, and two states."""
_FULL = 4
_ADAM = 4 * _FULL + 3 * _FULL
"""Reads parameter, gradient and two moments; writes parameter and moments."""
_NORM = _FULL
_CLIP = 2 * _FULL
_UNSCALE = 2 * _FULL


def step_bytes(width: int, optimizer: str) -> int:
    """For one element of a parameter of ``width`` bytes."""
    copies = (width + _FULL) + (_FULL + width) if width < _FULL else 0
    return copies + TOUCHED[optimizer] * max(width, _FULL)


def moved_bytes(leaves: Iterable[Parameter], optimizer: str) -> NDArray[np.float64]:
    """What a step of each whole parameter moves."""
    widths = [(leaf.meta.num_bytes, DTYPE_BYTES[leaf.meta.dtype]) for leaf in leaves]
    return np.array([size / width * step_bytes(width, optimizer) for size, width in widths], dtype=np.float64)


def adam_step_bytes(width: int) -> int:
    """Of Megatron-LM's: gradients are as wide as the parameter, and are cleared for the next step."""
    copies = (width + _FULL) + (_FULL + width) + _UNSCALE if width < _FULL else 0
    return copies + _NORM + _CLIP + _ADAM + width
