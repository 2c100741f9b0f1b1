"""Splits of spatial dims: windows that do not overlap, and interpolation that repeats whole elements.

A device's part of the input then determines its part of the output. Overlapping windows would need a halo, which no
layout expresses. Windows of one element are left out: neighbouring ops have wider ones, and each layout costs search
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

from autosbp.graph.int_attributes import Path
from autosbp.graph.ir import Node, TensorMeta
from autosbp.sbp.factor_notation import AxisOption
from autosbp.sbp.layout import B, S


def window_options(
    node: Node, metas: Sequence[TensorMeta], spatial: int, kernel: Sequence[int], positions: tuple[int, int, int]
) -> tuple[AxisOption, ...]:
    """Splits of the last ``spatial`` dims of a convolution or pooling whose windows do not overlap.

    That means: no padding, and windows no wider than the stride. ``positions`` are the arguments that hold stride (by
    default the kernel), padding and dilation.
    """
    stride, padding, dilation = (_sizes(node, position, spatial) for position in positions)
    options = []
    for at in range(spatial):
        step = stride[at] if stride else kernel[at]
        pad, gap = (padding[at] if padding else 0), (dilation[at] if dilation else 1)
        fine, coarse = metas[0].sizes[at - spatial], node.outputs[0].sizes[at - spatial]
        if "transpose" in node.op:
            fine, coarse = coarse, fine
        if pad == 0 and 0 < (kernel[at] - 1) * gap < step and fine == step * coarse and coarse > 1:
            options.append(_option(node, metas, at, spatial))
    return tuple(options)


def _sizes(node: Node, position: int, spatial: int) -> tuple[int, ...]:
    """One size per spatial dim; empty if the argument is absent. Padding given as "same" counts as padding."""
    given = node.args[position] if 0 <= position < len(node.args) else None
    if given is None or isinstance(given, str):
        return () if given in (None, "valid") else (1,) * spatial
    several = given if isinstance(given, tuple) else (given,)
    return (several * spatial if len(several) == 1 else several)[:spatial]


def _option(
    node: Node, metas: Sequence[TensorMeta], at: int, spatial: int, divided: tuple[Path, ...] = ()
) -> AxisOption:
    dim = len(metas[0].shape) - spatial + at
    extent = gcd(metas[0].sizes[dim], node.outputs[0].sizes[dim])
    return AxisOption(f"s{at}", (S(dim), *(B for _ in metas[1:])), (S(dim),), True, extent, divided=divided)


def pooling_options(node: Node, metas: Sequence[TensorMeta], spatial: int) -> tuple[AxisOption, ...]:
    """Splits of the spatial dims of a pooling or nearest interpolation; none if the op also returns indices."""
    if len(node.outputs) > 1:
        return ()
    if "adaptive" in node.op or "nearest" in node.op:
        return tuple(_divisible_size_options(node, metas, spatial))
    if "pool" not in node.op:
        return ()
    kernel = _sizes(node, 1, spatial)
    return window_options(node, metas, spatial, kernel, (2, 3, 4 if "max" in node.op else -1))


def _divisible_size_options(node: Node, metas: Sequence[TensorMeta], spatial: int) -> Iterator[AxisOption]:
    """Splits of adaptive pooling and nearest interpolation, where input size divides output size or vice versa."""
    sizes, scales = node.args[1], node.args[2:]
    for at in range(spatial):
        before, after = metas[0].sizes[at - spatial], node.outputs[0].sizes[at - spatial]
        if (before % after if "adaptive" in node.op else after % before) or after == 1:
            continue
        if isinstance(sizes, tuple) and len(sizes) == spatial and not any(scale is not None for scale in scales):
            yield _option(node, metas, at, spatial, ((1, at),))
        elif sizes is None:
            yield _option(node, metas, at, spatial)
