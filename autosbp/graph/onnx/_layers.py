"""Products, convolutions, norms, pools, reductions and losses of ONNX as torch has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from autosbp.graph.onnx._call import Call
from autosbp.graph.onnx._pointwise import Op

_CONVOLUTIONS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
_TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}
_MAX_POOLS = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}
_MEAN_POOLS: dict[int, Callable[..., torch.Tensor]] = {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}
_ADAPTIVE = {3: F.adaptive_avg_pool1d, 4: F.adaptive_avg_pool2d, 5: F.adaptive_avg_pool3d}


def _gemm(call: Call) -> Any:
    one, two, bias = call.tensor(0), call.tensor(1), call.maybe(2)
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    one = one.t() if call.integer("transA", 0) else one
    two = two if call.integer("transB", 0) else two.t()
    fused = bias if bias is not None and bias.dim() == 1 and alpha == beta == 1.0 else None
    found = F.linear(one, two, fused)
    found = found if alpha == 1.0 else found * alpha
    if bias is None or fused is not None:
        return found
    return found + (bias if beta == 1.0 else bias * beta)


def _linear(call: Call) -> Any:
    """What ``_linears`` makes of a product with a weight."""
    return F.linear(call.tensor(0), call.tensor(1), call.maybe(2))


def _einsum(call: Call) -> Any:
    equation = call.attributes.get("equation")
    if not isinstance(equation, str):
        raise call.refused("equation", equation, "an equation is expected")
    return torch.einsum(equation, *(call.tensor(at) for at in range(len(call.operands))))


def _window(call: Call, ndim: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, and pads at the begin and the end of each spatial dim."""
    spatial = ndim - 2
    if call.text("auto_pad", "NOTSET", ("NOTSET", "VALID")) == "VALID":
        pads = [0] * (2 * spatial)
    else:
        pads = call.listed("pads") or [0] * (2 * spatial)
    strides, dilations = call.listed("strides") or [1] * spatial, call.listed("dilations") or [1] * spatial
    for name, found, count in (("pads", pads, 2), ("strides", strides, 1), ("dilations", dilations, 1)):
        if len(found) != count * spatial or min(found, default=0) < (0 if name == "pads" else 1):
            raise call.refused(name, found, f"{count * spatial} numbers of at least {int(name != 'pads')} are expected")
    return strides, dilations, pads[:spatial], pads[spatial:]


def _spatial(call: Call, table: Mapping[int, Callable[..., torch.Tensor]]) -> Callable[..., torch.Tensor]:
    ndim = call.tensor(0).dim()
    if ndim not in table:
        raise call.refused("input[0]", f"{ndim} dims", "batch, channels and 1 to 3 spatial dims are expected")
    return table[ndim]


def _padded(source: torch.Tensor, begins: list[int], ends: list[int], value: float) -> tuple[torch.Tensor, list[int]]:
    """The source with what cannot be said as equal pads at both sides, and the pads that can."""
    if begins == ends:
        return source, begins
    pads = [size for pair in zip(reversed(begins), reversed(ends), strict=True) for size in pair]
    return F.pad(source, pads, value=value), [0] * len(begins)


def _convolution(call: Call) -> Any:
    function, source = _spatial(call, _CONVOLUTIONS), call.tensor(0)
    strides, dilations, begins, ends = _window(call, source.dim())
    source, pads = _padded(source, begins, ends, 0.0)
    return function(source, call.tensor(1), call.maybe(2), strides, pads, dilations, call.integer("group", 1))


def _transposed_convolution(call: Call) -> Any:
    function, source = _spatial(call, _TRANSPOSED), call.tensor(0)
    strides, dilations, begins, ends = _window(call, source.dim())
    if begins != ends or call.listed("output_shape") is not None:
        raise call.refused("pads", begins + ends, "equal pads at both sides are expected, and no output_shape")
    more = call.listed("output_padding") or [0] * len(begins)
    return function(source, call.tensor(1), call.maybe(2), strides, begins, more, call.integer("group", 1), dilations)


def _kernel(call: Call) -> list[int]:
    found = call.listed("kernel_shape")
    if not found or min(found) < 1:
        raise call.refused("kernel_shape", found, "positive sizes are expected")
    return found


def _max_pool(call: Call) -> Any:
    function, source = _spatial(call, _MAX_POOLS), call.tensor(0)
    strides, dilations, begins, ends = _window(call, source.dim())
    source, pads = _padded(source, begins, ends, -torch.inf)
    return function(source, _kernel(call), strides, pads, dilations, bool(call.integer("ceil_mode", 0)))


def _mean_pool(call: Call) -> Any:
    function, source = _spatial(call, _MEAN_POOLS), call.tensor(0)
    strides, dilations, begins, ends = _window(call, source.dim())
    counted = bool(call.integer("count_include_pad", 0))
    if any(size != 1 for size in dilations) or (begins != ends and not counted):
        raise call.refused("pads", begins + ends, "equal pads at both sides are expected, and no dilation")
    source, pads = _padded(source, begins, ends, 0.0)
    return function(source, _kernel(call), strides, pads, bool(call.integer("ceil_mode", 0)), counted)


def _global_mean(call: Call) -> Any:
    return _spatial(call, _ADAPTIVE)(call.tensor(0), (1,) * (call.tensor(0).dim() - 2))


def _global_max(call: Call) -> Any:
    return call.tensor(0).amax(tuple(range(2, call.tensor(0).dim())), keepdim=True)


def _batch_norm(call: Call) -> Any:
    """By the statistics of the batch, whichever the file was exported with: what is planned is training."""
    momentum = 1.0 - call.number("momentum", 0.9)
    return F.batch_norm(
        call.tensor(0), None, None, call.tensor(1), call.tensor(2), True, momentum, call.number("epsilon", 1e-5)
    )


def _layer_norm(call: Call) -> Any:
    source = call.tensor(0)
    shape = list(source.shape[call.axis(source.dim(), -1) :])
    if call.num_outputs > 1:
        raise call.refused("output[1]", call.num_outputs, "mean and deviation are not read; give only the values")
    return F.layer_norm(source, shape, call.tensor(1), call.maybe(2), call.number("epsilon", 1e-5))


def _rms_norm(call: Call) -> Any:
    source = call.tensor(0)
    shape = list(source.shape[call.axis(source.dim(), -1) :])
    return F.rms_norm(source, shape, call.tensor(1), call.number("epsilon", 1e-5))


def _instance_norm(call: Call) -> Any:
    epsilon = call.number("epsilon", 1e-5)
    return F.instance_norm(call.tensor(0), None, None, call.tensor(1), call.tensor(2), True, 0.1, epsilon)


def _group_norm(call: Call) -> Any:
    weight = call.tensor(1)
    if weight.shape[0] != call.tensor(0).shape[1]:
        raise call.refused("input[1]", weight.shape[0], "one number of each channel is expected (opset 21)")
    groups = call.integer("num_groups", 1)
    return F.group_norm(call.tensor(0), groups, weight, call.tensor(2), call.number("epsilon", 1e-5))


def _along(function: Callable[..., torch.Tensor]) -> Op:
    return lambda call: function(call.tensor(0), dim=call.axis(call.tensor(0).dim(), -1))


def _reduction(function: Callable[[torch.Tensor, tuple[int, ...], bool], torch.Tensor]) -> Op:
    def run(call: Call) -> Any:
        source, axes = call.tensor(0), call.listed("axes", 1)
        if not axes and call.integer("noop_with_empty_axes", 0):
            return source
        dims = tuple(call.dim(axis, source.dim()) for axis in axes or range(source.dim()))
        return function(source, dims, bool(call.integer("keepdims", 1))) if dims else source

    return run


def _product(source: torch.Tensor, dims: tuple[int, ...], keep: bool) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        source = source.prod(dim, keep)
    return source


def _extreme(function: Callable[..., torch.Tensor]) -> Op:
    def run(call: Call) -> Any:
        axis = call.axis(call.tensor(0).dim(), 0)
        return function(call.tensor(0), axis, bool(call.integer("keepdims", 1)))

    return run


def _cross_entropy(call: Call) -> Any:
    scores, labels, reduction = call.tensor(0), call.tensor(1), _reduced(call)
    loss = F.cross_entropy(
        scores, labels, call.maybe(2), ignore_index=call.integer("ignore_index", -100), reduction=reduction
    )
    return (loss, F.log_softmax(scores, 1)) if call.num_outputs > 1 else loss


def _negative_log_likelihood(call: Call) -> Any:
    ignored = call.integer("ignore_index", -100)
    return F.nll_loss(call.tensor(0), call.tensor(1), call.maybe(2), ignore_index=ignored, reduction=_reduced(call))


def _reduced(call: Call) -> str:
    return call.text("reduction", "mean", ("none", "mean", "sum"))


LAYERS: Mapping[str, Op] = {
    "Gemm": _gemm,
    "Linear": _linear,
    "MatMul": lambda call: torch.matmul(call.tensor(0), call.tensor(1)),
    "Einsum": _einsum,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "MaxPool": _max_pool,
    "AveragePool": _mean_pool,
    "GlobalAveragePool": _global_mean,
    "GlobalMaxPool": _global_max,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "Softmax": _along(F.softmax),
    "LogSoftmax": _along(F.log_softmax),
    "ReduceMean": _reduction(lambda source, dims, keep: source.mean(dims, keep)),
    "ReduceSum": _reduction(lambda source, dims, keep: source.sum(dims, keep)),
    "ReduceMax": _reduction(lambda source, dims, keep: source.amax(dims, keep)),
    "ReduceMin": _reduction(lambda source, dims, keep: source.amin(dims, keep)),
    "ReduceProd": _reduction(_product),
    "ReduceL1": _reduction(lambda source, dims, keep: source.abs().sum(dims, keep)),
    "ReduceL2": _reduction(lambda source, dims, keep: source.square().sum(dims, keep).sqrt()),
    "ReduceSumSquare": _reduction(lambda source, dims, keep: source.square().sum(dims, keep)),
    "ReduceLogSumExp": _reduction(lambda source, dims, keep: source.logsumexp(dims, keep)),
    "ArgMax": _extreme(torch.argmax),
    "ArgMin": _extreme(torch.argmin),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
}
