"""Cases of element-wise ops, losses, and ops that rearrange or reduce some dims."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from autosbp.testing.op_cases import Case, Tensor, data, ints, make_case, mask, trained_tensor

_SAME = (make_case(trained_tensor(4, 6)), make_case(trained_tensor(6, 1, 4)))
_SIGNS = (make_case(trained_tensor(4, 6)), make_case(data(6, 4)))
_PAIRS = (
    make_case(trained_tensor(4, 6), trained_tensor(4, 6)),
    make_case(trained_tensor(2, 4, 6), trained_tensor(6)),
    make_case(trained_tensor(4, 1, 6), data(1, 4, 1)),
)
_COUNTS = (make_case(ints(9, 4, 6), ints(9, 6)),)
_LOSS = tuple(make_case(trained_tensor(4, 6), data(4, 6), reduction) for reduction in (0, 1, 2))

_SMOOTH = (
    "acos acosh asin asinh atan atanh celu cosh erfc erfinv exp2 expm1 hardsigmoid hardswish lgamma log10 log1p log2 "
    "log_sigmoid logit mish selu sinc sinh square tan hardshrink softshrink relu6 frac nan_to_num"
)
_STEPS = "ceil floor round sign trunc isfinite isinf isnan"
_TWO = "atan2 fmax fmin hypot logaddexp"

ELEMENTWISE_CASES: Mapping[str, tuple[Case, ...]] = {
    **{f"aten.{name}.default": _SAME for name in _SMOOTH.split(" ")},
    **{f"aten.{name}.default": _SIGNS for name in _STEPS.split(" ")},
    **{f"aten.{name}.default": _PAIRS for name in _TWO.split(" ")},
    "aten.threshold.default": (make_case(trained_tensor(4, 6), 0.1, 2.0),),
    "aten.clamp_max.default": (make_case(trained_tensor(4, 6), 0.2),),
    "aten.clamp.Tensor": (
        make_case(trained_tensor(4, 6), data(6), None),
        make_case(trained_tensor(4, 6), data(4, 1), trained_tensor(4, 6)),
    ),
    "aten.bitwise_xor.Tensor": _COUNTS,
    "aten.bitwise_and.Scalar": (make_case(ints(9, 4, 6), 3),),
    "aten.__lshift__.Scalar": (make_case(ints(9, 4, 6), 1),),
    "aten.__rshift__.Scalar": (make_case(ints(9, 4, 6), 1),),
    "aten.logical_xor.default": (make_case(mask(4, 6), mask(6)),),
    "aten.copysign.Tensor": _PAIRS,
    "aten.fmod.Tensor": (make_case(trained_tensor(4, 6), data(4, 6)),),
    "aten.remainder.Tensor": (make_case(trained_tensor(4, 6), data(4, 6)),),
    "aten.fmod.Scalar": (make_case(trained_tensor(4, 6), 0.7),),
    "aten.remainder.Scalar": (make_case(trained_tensor(4, 6), 0.7),),
    "aten.xlogy.Tensor": (
        make_case(trained_tensor(4, 6), trained_tensor(4, 6)),
        make_case(data(4, 6), trained_tensor(6)),
    ),
    "aten.pow.Scalar": (make_case(2.0, trained_tensor(4, 6)),),
    "aten.rsub.Tensor": _PAIRS,
    "aten.div.Tensor_mode": (make_case(trained_tensor(4, 6), trained_tensor(4, 6), rounding_mode="floor"),),
    "aten.masked_fill.Tensor": (
        make_case(trained_tensor(4, 6), mask(4, 6), data()),
        make_case(trained_tensor(4, 6), mask(6), trained_tensor()),
    ),
    "aten.where.Scalar": (make_case(mask(4, 6), 1.0, 0.0),),
    "aten.where.ScalarOther": (
        make_case(mask(4, 6), trained_tensor(4, 6), 0.0),
        make_case(mask(4, 1), trained_tensor(4, 6), 0.5),
    ),
    "aten.where.ScalarSelf": (
        make_case(mask(4, 6), 0.0, trained_tensor(4, 6)),
        make_case(mask(6), 0.5, trained_tensor(4, 6)),
    ),
    "aten.lerp.Scalar": (make_case(trained_tensor(4, 6), trained_tensor(4, 6), 0.3),),
    "aten.lerp.Tensor": (
        make_case(trained_tensor(4, 6), trained_tensor(4, 6), data(4, 6)),
        make_case(trained_tensor(4, 6), trained_tensor(4, 6), trained_tensor(6)),
    ),
    "aten.addcmul.default": (
        make_case(trained_tensor(4, 6), trained_tensor(4, 6), trained_tensor(4, 6)),
        make_case(trained_tensor(4, 6), trained_tensor(6), data(4, 1), value=0.5),
    ),
    "aten.addcdiv.default": (
        make_case(trained_tensor(4, 6), trained_tensor(4, 6), trained_tensor(4, 6)),
        make_case(trained_tensor(4, 6), trained_tensor(6), trained_tensor(4, 1), value=0.5),
    ),
    # losses
    "aten.mse_loss.default": (*_LOSS, make_case(trained_tensor(4, 6), trained_tensor(4, 6), 2)),
    "aten.l1_loss.default": _LOSS,
    "aten.smooth_l1_loss.default": _LOSS,
    "aten.huber_loss.default": _LOSS,
    "aten.soft_margin_loss.default": _LOSS,
    "aten.kl_div.default": tuple(
        make_case(trained_tensor(4, 6), Tensor((4, 6), trained=False), reduction) for reduction in (0, 1, 2)
    ),
    "aten.binary_cross_entropy.default": tuple(make_case(trained_tensor(4, 6), data(4, 6), None, at) for at in (0, 2)),
    "aten.binary_cross_entropy_with_logits.default": (
        *(make_case(trained_tensor(4, 6), data(4, 6), None, None, reduction) for reduction in (0, 1, 2)),
        make_case(trained_tensor(4, 6), data(4, 6), data(6), None, 2),
        make_case(trained_tensor(4, 6), data(4, 6), None, data(6), 0),
    ),
    # dims that cannot be split
    "aten.flip.default": (make_case(trained_tensor(4, 6, 6), (1,)), make_case(trained_tensor(4, 6), (-1, 0))),
    "aten.roll.default": (make_case(trained_tensor(4, 6), (1,), (1,)), make_case(trained_tensor(4, 6), (2,))),
    "aten.tril.default": (make_case(trained_tensor(6, 4, 4)), make_case(trained_tensor(6, 4), 1)),
    "aten.triu.default": (make_case(trained_tensor(6, 4, 4), -1), make_case(trained_tensor(6, 4))),
    "aten.reflection_pad1d.default": (make_case(trained_tensor(4, 6, 5), (1, 2)),),
    "aten.reflection_pad2d.default": (make_case(trained_tensor(4, 6, 5, 5), (1, 1, 2, 0)),),
    "aten.reflection_pad3d.default": (make_case(trained_tensor(4, 6, 3, 3, 3), (1, 1, 1, 1, 1, 1)),),
    "aten.replication_pad1d.default": (make_case(trained_tensor(4, 6, 5), (1, 2)),),
    "aten.replication_pad2d.default": (make_case(trained_tensor(4, 6, 5, 5), (1, 1, 2, 0)),),
    "aten.replication_pad3d.default": (make_case(trained_tensor(4, 6, 3, 3, 3), (1, 1, 1, 1, 1, 1)),),
    "aten.glu.default": (make_case(trained_tensor(4, 6)), make_case(trained_tensor(4, 6, 6), 1)),
    "aten.pixel_shuffle.default": (make_case(trained_tensor(6, 4, 2, 2), 2),),
    "aten.pixel_unshuffle.default": (make_case(trained_tensor(6, 1, 4, 4), 2),),
    "aten.im2col.default": (make_case(trained_tensor(6, 2, 4, 4), (2, 2), (1, 1), (0, 0), (2, 2)),),
    # reductions of whole dims
    "aten.prod.dim_int": (make_case(trained_tensor(4, 6), 1), make_case(trained_tensor(4, 6, 2), 1, True)),
    "aten.any.dim": (make_case(mask(4, 6), 1), make_case(mask(4, 6), 0, True)),
    "aten.all.dim": (make_case(mask(4, 6), -1),),
    "aten.argmax.default": (
        make_case(trained_tensor(4, 6), 1),
        make_case(trained_tensor(4, 6), -1, True),
        make_case(trained_tensor(4, 6)),
    ),
    "aten.argmin.default": (make_case(trained_tensor(4, 6), 0),),
    "aten.var.dim": (make_case(trained_tensor(4, 6), (1,)), make_case(trained_tensor(4, 6, 2), (1,), False, True)),
    "aten.std.dim": (make_case(trained_tensor(4, 6), (1,)),),
    "aten.var.correction": (make_case(trained_tensor(4, 6), (1,), correction=0), make_case(trained_tensor(4, 6), None)),
    "aten.std.correction": (make_case(trained_tensor(4, 6), (-1,), correction=1),),
    "aten.linalg_vector_norm.default": (
        make_case(trained_tensor(4, 6), 2, (1,), True),
        make_case(trained_tensor(4, 6), 1, (0,)),
        make_case(trained_tensor(4, 6)),
        make_case(trained_tensor(4, 6), inf, (1,)),
        make_case(trained_tensor(4, 6), -inf),
    ),
    "aten.norm.ScalarOpt_dim": (make_case(trained_tensor(4, 6), 2, (1,), True),),
}
