"""Bytes that one mixed-precision Adam step moves for each parameter element (Megatron-LM, ``megatron/optimizer``).

Parameters that are stored shorter than float32 have a float32 copy, which the optimizer works on (Micikevicius et al.
2018): gradients are copied to float32, unscaled and checked, clipped by their norm, and after Adam the parameters are
copied back. Passes are kernels of their own over all parameters, bound by memory.
"""

from __future__ import annotations

_FULL = 4
_ADAM = 4 * _FULL + 3 * _FULL
"""Reads parameter, gradient and two moments; writes parameter and moments."""
_NORM = _FULL
_CLIP = 2 * _FULL
_UNSCALE = 2 * _FULL


def adam_step_bytes(width: int) -> int:
    """For one element of a parameter of ``width`` bytes; gradients are as wide, and are cleared for the next step."""
    copies = (width + _FULL) + (_FULL + width) + _UNSCALE if width < _FULL else 0
    return copies + _NORM + _CLIP + _ADAM + width
