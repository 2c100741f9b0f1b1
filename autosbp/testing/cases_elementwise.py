"""Cases of element-wise ops, losses, and ops that rearrange or reduce some dims."""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.testing.op_cases import Case, Tensor, data, ints, mask, of, x

_SAME = (of(x(4, 6)), of(x(6, 1, 4)))
_SIGNS = (of(x(4, 6)), of(data(6, 4)))
_PAIRS = (of(x(4, 6), x(4, 6)), of(x(2, 4, 6), x(6)), of(x(4, 1, 6), data(1, 4, 1)))
_COUNTS = (of(ints(9, 4, 6), ints(9, 6)),)
_LOSS = tuple(of(x(4, 6), data(4, 6), reduction) for reduction in (0, 1, 2))

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
    "aten.threshold.default": (of(x(4, 6), 0.1, 2.0),),
    "aten.clamp_max.default": (of(x(4, 6), 0.2),),
    "aten.clamp.Tensor": (of(x(4, 6), data(6), None), of(x(4, 6), data(4, 1), x(4, 6))),
    "aten.bitwise_xor.Tensor": _COUNTS,
    "aten.bitwise_and.Scalar": (of(ints(9, 4, 6), 3),),
    "aten.__lshift__.Scalar": (of(ints(9, 4, 6), 1),),
    "aten.__rshift__.Scalar": (of(ints(9, 4, 6), 1),),
    "aten.logical_xor.default": (of(mask(4, 6), mask(6)),),
    "aten.copysign.Tensor": _PAIRS,
    "aten.fmod.Tensor": (of(x(4, 6), data(4, 6)),),
    "aten.remainder.Tensor": (of(x(4, 6), data(4, 6)),),
    "aten.fmod.Scalar": (of(x(4, 6), 0.7),),
    "aten.remainder.Scalar": (of(x(4, 6), 0.7),),
    "aten.xlogy.Tensor": (of(x(4, 6), x(4, 6)), of(data(4, 6), x(6))),
    "aten.pow.Scalar": (of(2.0, x(4, 6)),),
    "aten.rsub.Tensor": _PAIRS,
    "aten.div.Tensor_mode": (of(x(4, 6), x(4, 6), rounding_mode="floor"),),
    "aten.masked_fill.Tensor": (of(x(4, 6), mask(4, 6), data()), of(x(4, 6), mask(6), x())),
    "aten.where.Scalar": (of(mask(4, 6), 1.0, 0.0),),
    "aten.where.ScalarOther": (of(mask(4, 6), x(4, 6), 0.0), of(mask(4, 1), x(4, 6), 0.5)),
    "aten.where.ScalarSelf": (of(mask(4, 6), 0.0, x(4, 6)), of(mask(6), 0.5, x(4, 6))),
    "aten.lerp.Scalar": (of(x(4, 6), x(4, 6), 0.3),),
    "aten.lerp.Tensor": (of(x(4, 6), x(4, 6), data(4, 6)), of(x(4, 6), x(4, 6), x(6))),
    "aten.addcmul.default": (of(x(4, 6), x(4, 6), x(4, 6)), of(x(4, 6), x(6), data(4, 1), value=0.5)),
    "aten.addcdiv.default": (of(x(4, 6), x(4, 6), x(4, 6)), of(x(4, 6), x(6), x(4, 1), value=0.5)),
    # losses
    "aten.mse_loss.default": (*_LOSS, of(x(4, 6), x(4, 6), 2)),
    "aten.l1_loss.default": _LOSS,
    "aten.smooth_l1_loss.default": _LOSS,
    "aten.huber_loss.default": _LOSS,
    "aten.soft_margin_loss.default": _LOSS,
    "aten.kl_div.default": tuple(of(x(4, 6), Tensor((4, 6), trained=False), reduction) for reduction in (0, 1, 2)),
    "aten.binary_cross_entropy.default": tuple(of(x(4, 6), data(4, 6), None, at) for at in (0, 2)),
    "aten.binary_cross_entropy_with_logits.default": (
        *(of(x(4, 6), data(4, 6), None, None, reduction) for reduction in (0, 1, 2)),
        of(x(4, 6), data(4, 6), data(6), None, 2),
        of(x(4, 6), data(4, 6), None, data(6), 0),
    ),
    # dims that stay whole
    "aten.flip.default": (of(x(4, 6, 6), (1,)), of(x(4, 6), (-1, 0))),
    "aten.roll.default": (of(x(4, 6), (1,), (1,)), of(x(4, 6), (2,))),
    "aten.tril.default": (of(x(6, 4, 4)), of(x(6, 4), 1)),
    "aten.triu.default": (of(x(6, 4, 4), -1), of(x(6, 4))),
    "aten.reflection_pad1d.default": (of(x(4, 6, 5), (1, 2)),),
    "aten.reflection_pad2d.default": (of(x(4, 6, 5, 5), (1, 1, 2, 0)),),
    "aten.reflection_pad3d.default": (of(x(4, 6, 3, 3, 3), (1, 1, 1, 1, 1, 1)),),
    "aten.replication_pad1d.default": (of(x(4, 6, 5), (1, 2)),),
    "aten.replication_pad2d.default": (of(x(4, 6, 5, 5), (1, 1, 2, 0)),),
    "aten.replication_pad3d.default": (of(x(4, 6, 3, 3, 3), (1, 1, 1, 1, 1, 1)),),
    "aten.glu.default": (of(x(4, 6)), of(x(4, 6, 6), 1)),
    "aten.pixel_shuffle.default": (of(x(6, 4, 2, 2), 2),),
    "aten.pixel_unshuffle.default": (of(x(6, 1, 4, 4), 2),),
    "aten.im2col.default": (of(x(6, 2, 4, 4), (2, 2), (1, 1), (0, 0), (2, 2)),),
    # reductions of whole dims
    "aten.prod.dim_int": (of(x(4, 6), 1), of(x(4, 6, 2), 1, True)),
    "aten.any.dim": (of(mask(4, 6), 1), of(mask(4, 6), 0, True)),
    "aten.all.dim": (of(mask(4, 6), -1),),
    "aten.argmax.default": (of(x(4, 6), 1), of(x(4, 6), -1, True), of(x(4, 6))),
    "aten.argmin.default": (of(x(4, 6), 0),),
    "aten.var.dim": (of(x(4, 6), (1,)), of(x(4, 6, 2), (1,), False, True)),
    "aten.std.dim": (of(x(4, 6), (1,)),),
    "aten.var.correction": (of(x(4, 6), (1,), correction=0), of(x(4, 6), None)),
    "aten.std.correction": (of(x(4, 6), (-1,), correction=1),),
    "aten.linalg_vector_norm.default": (of(x(4, 6), 2, (1,), True), of(x(4, 6), 1, (0,))),
    "aten.norm.ScalarOpt_dim": (of(x(4, 6), 2, (1,), True),),
}
