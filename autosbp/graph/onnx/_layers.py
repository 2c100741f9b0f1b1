"""ONNX products, convolutions, norms, pools, reductions and losses, implemented in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from autosbp.graph.onnx._call import OnnxCall
from autosbp.graph.onnx._pointwise import Op

_CONVOLUTIONS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
_TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}
_MAX_POOLS = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}
_MEAN_POOLS: dict[int, Callable[..., torch.Tensor]] = {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}
_ADAPTIVE = {3: F.adaptive_avg_pool1d, 4: F.adaptive_avg_pool2d, 5: F.adaptive_avg_pool3d}


def _gemm(call: OnnxCall) -> Any:
    one, two, bias = call.tensor(0), call.tensor(1), call.optional_tensor(2)
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    one = one.t() if call.integer("transA", 0) else one
    two = two if call.integer("transB", 0) else two.t()
    fused = bias if bias is not None and bias.dim() == 1 and alpha == beta == 1.0 else None
    found = F.linear(one, two, fused)
    found = found if alpha == 1.0 else found * alpha
    if bias is None or fused is not None:
        return found
    return found + (bias if beta == 1.0 else bias * beta)


def _linear(call: OnnxCall) -> Any:
    """The product with a weight that ``_linears`` created."""
    return F.linear(call.tensor(0), call.tensor(1), call.optional_tensor(2))


def _einsum(call: OnnxCall) -> Any:
    equation = call.attributes.get("equation")
    if not isinstance(equation, str):
        raise call.refused("equation", equation, "expected an equation")
    return torch.einsum(equation, *(call.tensor(at) for at in range(len(call.operands))))


def _window(call: OnnxCall, ndim: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, and pads at the begin and the end of each spatial dim."""
    spatial = ndim - 2
    if call.text("auto_pad", "NOTSET", ("NOTSET", "VALID")) == "VALID":
        pads = [0] * (2 * spatial)
    else:
        pads = call.listed("pads") or [0] * (2 * spatial)
    strides, dilations = call.listed("strides") or [1] * spatial, call.listed("dilations") or [1] * spatial
    for name, found, count in (("pads", pads, 2), ("strides", strides, 1), ("dilations", dilations, 1)):
        if len(found) != count * spatial or min(found, default=0) < (0 if name == "pads" else 1):
            raise call.refused(name, found, f"expected {count * spatial} numbers of at least {int(name != 'pads')}")
    return strides, dilations, pads[:spatial], pads[spatial:]


def _spatial(call: OnnxCall, table: Mapping[int, Callable[..., torch.Tensor]]) -> Callable[..., torch.Tensor]:
    ndim = call.tensor(0).dim()
    if ndim not in table:
        raise call.refused("input[0]", f"{ndim} dims", "expected batch, channels and 1 to 3 spatial dims")
    return table[ndim]


def _pad_asymmetric(
    source: torch.Tensor, begins: list[int], ends: list[int], value: float
) -> tuple[torch.Tensor, list[int]]:
    """Pad the source if its begin and end pads differ; return it and the symmetric pads that the op still applies."""
    if begins == ends:
        return source, begins
    pads = [size for pair in zip(reversed(begins), reversed(ends), strict=True) for size in pair]
    return F.pad(source, pads, value=value), [0] * len(begins)


def _convolution(call: OnnxCall) -> Any:
    function, source = _spatial(call, _CONVOLUTIONS), call.tensor(0)
    strides, dilations, begins, ends = _window(call, source.dim())
    source, pads = _pad_asymmetric(source, begins, ends, 0.0)
    return function(source, call.tensor(1), call.optional_tensor(2), strides, pads, dilations, call.integer("group", 1))


def _transposed_convolution(call: OnnxCall) -> Any:
    function, source = _spatial(call, _TRANSPOSED), call.tensor(0)
    strides, dilations, begins, ends = _window(call, source.dim())
    if begins != ends or call.listed("output_shape") is not None:
        raise call.refused("pads", begins + ends, "expected symmetric pads and no output_shape")
    more = call.listed("output_padding") or [0] * len(begins)
    return function(
        source, call.tensor(1), call.optional_tensor(2), strides, begins, more, call.integer("group", 1), dilations
    )


def _kernel(call: OnnxCall) -> list[int]:
    found = call.listed("kernel_shape")
    if not found or min(found) < 1:
        raise call.refused("kernel_shape", found, "expected positive sizes")
    return found


def _max_pool(call: OnnxCall) -> Any:
    function, source = _spatial(call, _MAX_POOLS), call.tensor(0)
    strides, dilations, begins, ends = _window(call, source.dim())
    source, pads = _pad_asymmetric(source, begins, ends, -torch.inf)
    return function(source, _kernel(call), strides, pads, dilations, bool(call.integer("ceil_mode", 0)))


def _mean_pool(call: OnnxCall) -> Any:
    function, source = _spatial(call, _MEAN_POOLS), call.tensor(0)
    strides, dilations, begins, ends = _window(call, source.dim())
    counted = bool(call.integer("count_include_pad", 0))
    if any(size != 1 for size in dilations) or (begins != ends and not counted):
        raise call.refused("pads", begins + ends, "expected symmetric pads and no dilation")
    source, pads = _pad_asymmetric(source, begins, ends, 0.0)
    return function(source, _kernel(call), strides, pads, bool(call.integer("ceil_mode", 0)), counted)


def _global_mean(call: OnnxCall) -> Any:
    return _spatial(call, _ADAPTIVE)(call.tensor(0), (1,) * (call.tensor(0).dim() - 2))


def _global_max(call: OnnxCall) -> Any:
    return call.tensor(0).amax(tuple(range(2, call.tensor(0).dim())), keepdim=True)


def _batch_norm(call: OnnxCall) -> Any:
    """Use the statistics of the batch, whatever mode the file was exported in, because plans are for training."""
    momentum = 1.0 - call.number("momentum", 0.9)
    return F.batch_norm(
        call.tensor(0), None, None, call.tensor(1), call.tensor(2), True, momentum, call.number("epsilon", 1e-5)
    )


def _layer_norm(call: OnnxCall) -> Any:
    source = call.tensor(0)
    shape = list(source.shape[call.axis(source.dim(), -1) :])
    if call.num_outputs > 1:
        raise call.refused("output[1]", call.num_outputs, "mean and deviation outputs are not supported")
    return F.layer_norm(source, shape, call.tensor(1), call.optional_tensor(2), call.number("epsilon", 1e-5))


def _rms_norm(call: OnnxCall) -> Any:
    source = call.tensor(0)
    shape = list(source.shape[call.axis(source.dim(), -1) :])
    return F.rms_norm(source, shape, call.tensor(1), call.number("epsilon", 1e-5))


def _instance_norm(call: OnnxCall) -> Any:
    epsilon = call.number("epsilon", 1e-5)
    return F.instance_norm(call.tensor(0), None, None, call.tensor(1), call.tensor(2), True, 0.1, epsilon)


def _group_norm(call: OnnxCall) -> Any:
    weight = call.tensor(1)
    if weight.shape[0] != call.tensor(0).shape[1]:
        raise call.refused("input[1]", weight.shape[0], "expected one number per channel (opset 21)")
    groups = call.integer("num_groups", 1)
    return F.group_norm(call.tensor(0), groups, weight, call.tensor(2), call.number("epsilon", 1e-5))


def _softmax_op(function: Callable[..., torch.Tensor]) -> Op:
    return lambda call: function(call.tensor(0), dim=call.axis(call.tensor(0).dim(), -1))


def _reduction(function: Callable[[torch.Tensor, tuple[int, ...], bool], torch.Tensor]) -> Op:
    def run(call: OnnxCall) -> Any:
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


def _arg_reduction(function: Callable[..., torch.Tensor]) -> Op:
    def run(call: OnnxCall) -> Any:
        axis = call.axis(call.tensor(0).dim(), 0)
        return function(call.tensor(0), axis, bool(call.integer("keepdims", 1)))

    return run


def _cross_entropy(call: OnnxCall) -> Any:
    scores, labels, reduction = call.tensor(0), call.tensor(1), _reduction_mode(call)
    loss = F.cross_entropy(
        scores, labels, call.optional_tensor(2), ignore_index=call.integer("ignore_index", -100), reduction=reduction
    )
    return (loss, F.log_softmax(scores, 1)) if call.num_outputs > 1 else loss


def _negative_log_likelihood(call: OnnxCall) -> Any:
    ignored = call.integer("ignore_index", -100)
    return F.nll_loss(
        call.tensor(0), call.tensor(1), call.optional_tensor(2), ignore_index=ignored, reduction=_reduction_mode(call)
    )


def _reduction_mode(call: OnnxCall) -> str:
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
    "Softmax": _softmax_op(F.softmax),
    "LogSoftmax": _softmax_op(F.log_softmax),
    "ReduceMean": _reduction(lambda source, dims, keep: source.mean(dims, keep)),
    "ReduceSum": _reduction(lambda source, dims, keep: source.sum(dims, keep)),
    "ReduceMax": _reduction(lambda source, dims, keep: source.amax(dims, keep)),
    "ReduceMin": _reduction(lambda source, dims, keep: source.amin(dims, keep)),
    "ReduceProd": _reduction(_product),
    "ReduceL1": _reduction(lambda source, dims, keep: source.abs().sum(dims, keep)),
    "ReduceL2": _reduction(lambda source, dims, keep: source.square().sum(dims, keep).sqrt()),
    "ReduceSumSquare": _reduction(lambda source, dims, keep: source.square().sum(dims, keep)),
    "ReduceLogSumExp": _reduction(lambda source, dims, keep: source.logsumexp(dims, keep)),
    "ArgMax": _arg_reduction(torch.argmax),
    "ArgMin": _arg_reduction(torch.argmin),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
}
