"""Names of ops that share one sharding rule, without ``aten.``."""

from __future__ import annotations

_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "celu", "clamp", "clamp_max",
    "clamp_min", "cos", "cosh", "elu", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "gelu",
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "isfinite", "isinf", "isnan", "leaky_relu", "lgamma", "log",
    "log10", "log1p", "log2", "log_sigmoid", "logical_not", "logit", "mish", "nan_to_num", "reciprocal", "relu",
    "relu6", "round", "rsqrt", "selu", "sigmoid", "sign", "silu", "sin", "sinc", "sinh", "softplus", "softshrink",
    "sqrt", "square", "tan", "tanh", "threshold", "trunc",
)  # fmt: skip
_BINARY = (
    "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "copysign", "fmax", "fmin", "fmod", "hypot",
    "logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "remainder",
)  # fmt: skip
_TENSOR_BINARY = ("bitwise_and", "bitwise_or", "bitwise_xor", "copysign", "fmod", "remainder")
_COMPARISONS = ("eq", "ne", "lt", "gt", "le", "ge")

POINTWISE = (
    *(f"{name}.default" for name in _UNARY),
    *(f"{name}.Tensor" if name in _TENSOR_BINARY else f"{name}.default" for name in _BINARY),
    *(f"{name}.{overload}" for name in _COMPARISONS for overload in ("Scalar", "Tensor")),
    *("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "add.Scalar", "sub.Scalar", "rsub.Scalar"),
    *("__and__.Tensor", "__or__.Tensor", "clamp.Tensor", "fmod.Scalar", "remainder.Scalar"),
    *("where.Scalar", "div.Tensor_mode", "bitwise_and.Scalar", "__rshift__.Scalar"),
)
"""Element-wise ops that are linear in no argument."""

POOLINGS = (
    *((f"{kind}_pool{n}d.default", n) for kind in ("max", "avg", "adaptive_avg") for n in (1, 2, 3)),
    *((f"max_pool{n}d_with_indices.default", n) for n in (2, 3)),
    *(
        (f"upsample_{kind}.{form}", 2)
        for kind in ("nearest2d", "bilinear2d", "bicubic2d")
        for form in ("default", "vec")
    ),
    *((f"upsample_{kind}1d.vec", 1) for kind in ("nearest", "linear")),
)
"""Ops over the last dims, each with the number of these."""

LOSSES = (
    *(
        (f"{name}.default", 2)
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "soft_margin_loss")
    ),
    ("binary_cross_entropy.default", 3),
    ("binary_cross_entropy_with_logits.default", 4),
)
"""Element-wise losses, each with the position of its reduction argument."""
