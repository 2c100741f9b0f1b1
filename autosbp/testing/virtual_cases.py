"""Op cases for the numeric proof of sharding rules: for every op of ``RULES``, calls that exercise its attributes.

A new rule needs one line in ``CASES``. Sizes are divisible by 2 or 3 devices.
"""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.graph.ir import DType
from autosbp.testing.cases_elementwise import ELEMENTWISE_CASES
from autosbp.testing.cases_indexing import INDEXING_CASES
from autosbp.testing.op_cases import Case as Case
from autosbp.testing.op_cases import Tensor as Tensor
from autosbp.testing.op_cases import data as data
from autosbp.testing.op_cases import ints as ints
from autosbp.testing.op_cases import make_case as of
from autosbp.testing.op_cases import mask as mask
from autosbp.testing.op_cases import op_case as op_case
from autosbp.testing.op_cases import trained_tensor as x

_SAME = (of(x(4, 6)), of(x(6, 1, 4)))
_PAIRS = (
    of(x(4, 6), x(4, 6)),
    of(x(2, 4, 6), x(6)),
    of(x(4, 1, 6), x(1, 4, 1)),
    of(x(4, 6), x(1)),
    of(data(4, 6), x(4, 6)),
)
_NUMBER = (of(x(4, 6), 0.5),)
_SCALARS = (of(x(4, 6), x()), of(x(6), data()))
_COMPARED = (of(ints(3, 4, 6), ints(3, 6)), of(x(4, 6), data(4, 1)))
_BOOLS = (of(mask(4, 6), mask(4, 6)), of(mask(4, 1, 6), mask(6, 1)))

_EXTREMA = (
    of(x(4, 6), (1,)),
    of(x(6, 12, 2), (0, -1), True),
    of(x(4, 6)),
    of(data(6, 4), (0,)),
    of(ints(9, 6, 4), (0,)),
)
_UNARY = (
    "gelu", "relu", "silu", "tanh", "sigmoid", "exp", "log", "rsqrt", "sqrt", "cos", "sin", "abs", "reciprocal", "erf",
    "neg", "hardtanh", "leaky_relu", "elu", "softplus",
)  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "gt", "le", "ge")

CASES: Mapping[str, tuple[Case, ...]] = {
    # matrix products
    "aten.linear.default": (
        of(x(4, 6, 12), x(6, 12), x(6)),
        of(x(12, 6), x(4, 6)),
        of(x(1, 6, 6), x(12, 6), x(12)),
        of(data(4, 6), x(6, 6), x(6)),
        of(x(6), x(4, 6), x(4)),
        of(x(6, 1), x(6, 1), x(6)),
    ),
    "aten.mm.default": (of(x(4, 6), x(6, 12)), of(data(6, 6), x(6, 1)), of(x(4, 1), x(1, 6))),
    "aten.bmm.default": (of(x(6, 4, 6), x(6, 6, 2)), of(x(1, 4, 6), x(1, 6, 6))),
    "aten.addmm.default": (
        of(x(12), x(4, 6), x(6, 12)),
        of(x(6), data(6, 4), x(4, 6), beta=0.5, alpha=2.0),
    ),
    "aten.matmul.default": (
        of(x(2, 6, 4, 6), x(2, 6, 6, 4)),
        of(x(2, 6, 4, 6), x(6, 4)),
        of(x(4, 6), x(6, 6, 4)),
        of(x(6, 1, 4, 6), x(1, 4, 6, 2)),
        of(x(2, 1, 4, 6), x(4, 6, 6)),
    ),
    # convolution and pooling
    "aten.conv2d.default": (
        of(x(6, 4, 5, 5), x(12, 4, 3, 3), x(12), (1, 1), (1, 1), (1, 1), 1),
        of(x(4, 6, 6, 7), x(6, 6, 3, 2), None, (2, 1), (0, 1)),
        of(x(6, 6, 4, 4), x(12, 2, 3, 3), x(12), (1, 1), (1, 1), (2, 2), 3),
        of(x(6, 6, 4, 4), x(6, 1, 3, 3), None, (1, 1), (1, 1), (1, 1), 6),
        of(data(6, 1, 4, 4), x(6, 1, 1, 1), x(6)),
    ),
    "aten.conv2d.padding": (
        of(x(6, 4, 5, 5), x(12, 4, 3, 3), x(12), (1, 1), "same"),
        of(x(4, 6, 4, 4), x(6, 2, 3, 3), None, (1, 1), "valid", (1, 1), 3),
    ),
    "aten.max_pool2d.default": (
        of(x(6, 4, 6, 6), (2, 2), (2, 2)),
        of(x(4, 6, 5, 5), (3, 3), (1, 1), (1, 1)),
        of(x(6, 4, 4), (2, 2)),
    ),
    "aten.avg_pool2d.default": (of(x(6, 4, 6, 6), (2, 2)), of(x(4, 6, 5, 5), (3, 3), (2, 2), (1, 1), False, True)),
    "aten.adaptive_avg_pool2d.default": (of(x(6, 4, 6, 5), (2, 3)), of(x(4, 6, 3, 3), (1, 1))),
    # attention, normalisation, softmax, embedding, losses
    "aten.scaled_dot_product_attention.default": (
        of(x(2, 6, 4, 2), x(2, 6, 6, 2), x(2, 6, 6, 4)),
        of(x(6, 4, 6, 2), x(6, 4, 6, 2), x(6, 4, 6, 2), None, 0.0, True),
        of(x(6, 4, 6, 2), x(6, 4, 6, 2), x(6, 4, 6, 2), data(6, 1, 6, 6), 0.0, False),
        of(x(2, 6, 4, 2), x(2, 6, 6, 2), x(2, 6, 6, 2), x(4, 6), 0.0, False, scale=0.3),
        of(x(2, 6, 4, 2), x(2, 6, 6, 2), x(2, 6, 6, 2), data(2, 1, 1, 6)),
        of(x(6, 6, 4), x(6, 6, 4), x(6, 6, 4), None, 0.0, True),
        of(x(1, 6, 6, 4), x(1, 6, 6, 4), x(1, 6, 6, 4), x(1, 6, 6, 6)),
        of(x(2, 12, 6, 4), x(2, 6, 6, 4), x(2, 6, 6, 4), None, 0.0, True, enable_gqa=True),
        of(x(2, 12, 4, 4), x(2, 4, 6, 4), x(2, 4, 6, 4), mask(2, 12, 4, 6), enable_gqa=True),
        of(x(2, 6, 6, 4), x(2, 1, 6, 4), x(2, 1, 6, 2), None, 0.0, True, enable_gqa=True),
        of(x(2, 2, 6, 4), x(2, 2, 12, 4), x(2, 2, 12, 4), None, 0.0, True),
        of(x(2, 2, 12, 4), x(2, 2, 6, 4), x(2, 2, 6, 4), None, 0.0, True),
        of(data(2, 2, 6, 4), data(2, 2, 6, 4), x(2, 2, 6, 4)),
    ),
    "aten.layer_norm.default": (
        of(x(4, 6, 6), (6,), x(6), x(6)),
        of(x(6, 2, 6), (2, 6), x(2, 6), x(2, 6)),
        of(x(4, 6), (6,)),
        of(x(1, 6, 4), (4,), x(4), None),
    ),
    "aten.rms_norm.default": (
        of(x(4, 6, 6), (6,), x(6), 1e-6),
        of(x(6, 2, 6), (2, 6), x(2, 6)),
        of(x(4, 6), (6,)),
        of(data(4, 6), (6,), x(6), 1e-5),
    ),
    "aten.group_norm.default": (
        of(x(4, 12, 6), 6, x(12), x(12), 1e-5, False),
        of(x(6, 12, 2, 6), 2, x(12), x(12)),
        of(x(6, 12), 3),
        of(x(2, 6, 6), 1, x(6), x(6)),
        of(data(2, 12, 6), 4, x(12), None),
    ),
    "aten.batch_norm.default": (
        of(x(6, 4, 3, 6), x(4), x(4), None, None, True, 0.1, 1e-5, False),
        of(x(12, 6), x(6), x(6), None, None, True, 0.1, 1e-5, False),
        of(x(6, 6, 4), None, None, None, None, True, 0.1, 1e-5, False),
        of(data(6, 2, 2), x(2), x(2), None, None, True, 0.1, 1e-5, False),
        of(x(6, 4, 2, 3), x(4), x(4), data(4), data(4), False, 0.1, 1e-5, False),
    ),
    "aten.softmax.int": (
        of(x(4, 6), -1),
        of(x(4, 6, 6), 1),
        of(x(6, 4), 0),
        of(x(4, 6, dtype="float32"), 1, DType("float64")),
    ),
    "aten.log_softmax.int": (
        of(x(4, 6), -1),
        of(x(6, 4, 12), 1),
        of(x(6, 4), 0),
        of(x(4, 6, dtype="float32"), 1, DType("float64")),
    ),
    "aten.embedding.default": (
        of(x(6, 4), ints(6, 4, 6)),
        of(x(12, 6), ints(12, 6), -1),
        of(x(6, 4), ints(6, 4, 6), 3),
        of(x(6, 4), ints(3, 12), -1, True),
    ),
    "aten.gather.default": (
        of(x(4, 6), -1, ints(6, 4, 2)),
        of(x(6, 4, 6), 0, ints(6, 6, 4, 6)),
        of(x(6, 12), 1, ints(12, 4, 6)),
        of(x(6, 4), 0, ints(6, 1, 4)),
    ),
    # shapes
    "aten.reshape.default": (
        of(x(4, 6, 12), (4, 6, 6, 2)),
        of(x(4, 6, 6, 2), (4, 6, 12)),
        of(x(4, 6, 3), (24, 3)),
        of(x(24, 3), (4, 6, 3)),
        of(x(4, 6), (6, 4)),
        of(x(6, 1, 4), (1, 6, 2, 2)),
        of(x(6, 4, 1), (6, -1)),
        of(x(12, 6), (3, 4, 6)),
        of(x(1, 1), (1,)),
        of(x(2, 3, 4), (4, 6)),
    ),
    "aten.permute.default": (of(x(4, 6, 12), (2, 0, 1)), of(x(6, 4), (-1, -2)), of(x(6, 1, 4), (1, 2, 0))),
    "aten.expand.default": (of(x(6, 1, 4), (6, 4, 4)), of(x(4, 6), (2, -1, 6)), of(x(1), (6,)), of(x(1, 6), (4, 6))),
    "aten.slice.Tensor": (
        of(x(4, 6), 1, 1, 5),
        of(x(6, 12), -2, 0, 6, 2),
        of(x(6, 4, 6), 2, -3),
        of(x(4, 6), 0, 2, 9223372036854775807),
    ),
    "aten.cat.default": (
        of((x(4, 6), x(2, 6), x(6, 6))),
        of((x(4, 6), x(4, 6)), -1),
        of((x(6, 4, 2), data(6, 4, 4), x(6, 4, 6)), 2),
    ),
    "aten.constant_pad_nd.default": (
        of(x(4, 6), (1, 1)),
        of(x(6, 4), (0, 0, 2, 4), 0.0),
        of(x(4, 6), (1, 1), 0.5),
        of(x(4, 6), (0, -2), 0),
        of(x(6, 4, 6), (1, 1, 0, 0, 0, 0)),
    ),
    # reductions
    "aten.sum.dim_IntList": (
        of(x(4, 6), (1,)),
        of(x(4, 6, 12), (-2,), True),
        of(x(6, 4, 6), (0, -1)),
        of(x(4, 6), None),
        of(x(4, 6), ()),
        of(x(6, 1, 4), (1,), True),
        of(x(4, 6), (0,), False, dtype=DType("float32")),
    ),
    "aten.sum.default": (of(x(4, 6)), of(x(6)), of(ints(5, 4, 6))),
    **{f"aten.{name}.default": _EXTREMA for name in ("amax", "amin")},
    **{f"aten.{name}.default": (of(x(4, 6)), of(data(6)), of(ints(9, 6, 4))) for name in ("max", "min")},
    **{f"aten.{name}.dim": (of(x(4, 6), -1), of(x(6, 4, 2), 0, True), of(data(12, 6), 1)) for name in ("max", "min")},
    "aten.logsumexp.default": (of(x(4, 6), (1,)), of(x(6, 12, 2), (0, -1), True), of(x(2, 6, 6), (1, 2))),
    # element-wise, linear in something
    "aten.add.Tensor": (*_PAIRS, *_NUMBER, *_SCALARS, of(x(4, 6), x(4, 6), alpha=0.5)),
    "aten.sub.Tensor": (*_PAIRS, *_NUMBER, of(x(4, 6), x(6), alpha=2.0)),
    "aten.mul.Tensor": (*_PAIRS, *_NUMBER, *_SCALARS, of(x(4, 6), mask(4, 6)), of(0.5, x(4, 6))),
    "aten.div.Tensor": (*_PAIRS, *_NUMBER, *_SCALARS, of(2.0, x(4, 6))),
    "aten.mul.Scalar": _NUMBER,
    "aten.div.Scalar": _NUMBER,
    "aten.to.dtype": (
        of(x(4, 6), DType("float32")),
        of(x(6, 4, dtype="float32"), DType("float64")),
        of(ints(5, 4, 6), DType("float64")),
        of(mask(4, 6), DType("float32")),
    ),
    "aten.where.self": (
        of(mask(4, 6), x(4, 6), x(4, 6)),
        of(mask(6), x(4, 6), data(4, 1)),
        of(mask(4, 1, 6), x(1, 6, 6), x()),
        of(mask(4, 6), data(), x(4, 6)),
    ),
    "aten.masked_fill.Scalar": (of(x(4, 6), mask(4, 6), 0), of(x(4, 6), mask(6), -1.5), of(x(6, 4), mask(6, 1), 0.0)),
    "aten.detach.default": _SAME,
    "aten.dropout.default": (of(x(4, 6), 0.0, True), of(x(6, 4), 0.5, False)),
    # element-wise
    **{f"aten.{name}.default": _SAME for name in _UNARY},
    **{f"aten.{name}.Scalar": (of(x(4, 6), 0.5), of(ints(3, 6, 4), 1)) for name in _COMPARISONS},
    **{f"aten.{name}.Tensor": _COMPARED for name in _COMPARISONS},
    "aten.pow.Tensor_Scalar": (of(x(4, 6), 2), of(x(6, 1, 4), 0.5)),
    "aten.pow.Tensor_Tensor": (of(x(4, 6), x(6)), of(x(4, 6), data(4, 1))),
    "aten.logical_not.default": (of(mask(4, 6)),),
    "aten.logical_and.default": _BOOLS,
    "aten.logical_or.default": _BOOLS,
    "aten.bitwise_and.Tensor": _BOOLS,
    "aten.bitwise_or.Tensor": (*_BOOLS, of(ints(8, 4, 6), ints(8, 6))),
    "aten.bitwise_not.default": (of(mask(4, 6)),),
    "aten.__and__.Tensor": _BOOLS,
    "aten.__or__.Tensor": _BOOLS,
    "aten.clamp.default": (of(x(4, 6), -0.5, 0.5), of(x(6, 4), None, 0.5)),
    "aten.clamp_min.default": (of(x(4, 6), -0.2),),
    "aten.minimum.default": _PAIRS,
    "aten.maximum.default": _PAIRS,
    "aten.add.Scalar": _NUMBER,
    "aten.sub.Scalar": _NUMBER,
    "aten.rsub.Scalar": _NUMBER,
    **ELEMENTWISE_CASES,
    **INDEXING_CASES,
}
