"""Cases of contractions, convolutions and pooling in other dims, and ops that select, scatter and sort."""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.testing.op_cases import Case, data, ints, make_case, trained_tensor

_POOL = {
    1: make_case(trained_tensor(4, 6, 6), (2,), (2,)),
    3: make_case(trained_tensor(2, 6, 4, 4, 4), (2, 2, 2), (2, 2, 2)),
}

INDEXING_CASES: Mapping[str, tuple[Case, ...]] = {
    # products
    "aten.baddbmm.default": (
        make_case(trained_tensor(6, 4, 2), trained_tensor(6, 4, 6), trained_tensor(6, 6, 2)),
        make_case(trained_tensor(2), trained_tensor(6, 4, 6), trained_tensor(6, 6, 2), beta=0.5),
        make_case(trained_tensor(1, 4, 6), trained_tensor(6, 4, 6), trained_tensor(6, 6, 6)),
    ),
    "aten.addbmm.default": (make_case(trained_tensor(4, 6), trained_tensor(6, 4, 2), trained_tensor(6, 2, 6)),),
    "aten.addmv.default": (
        make_case(trained_tensor(6), trained_tensor(6, 4), trained_tensor(4)),
        make_case(trained_tensor(), trained_tensor(6, 4), trained_tensor(4)),
    ),
    "aten.mv.default": (make_case(trained_tensor(6, 4), trained_tensor(4)),),
    "aten.dot.default": (make_case(trained_tensor(6), trained_tensor(6)),),
    "aten.outer.default": (make_case(trained_tensor(6), trained_tensor(4)), make_case(trained_tensor(6), data(4))),
    "aten.einsum.default": (
        make_case("bij,bjk->bik", (trained_tensor(4, 6, 2), trained_tensor(4, 2, 6))),
        make_case("td,edf->tef", (trained_tensor(6, 4), trained_tensor(2, 4, 6))),
        make_case("tec,td->ecd", (data(6, 2, 4), trained_tensor(6, 6))),
        make_case("ij->ji", (trained_tensor(4, 6),)),
        make_case("bi,bi->b", (trained_tensor(4, 6), trained_tensor(4, 6))),
        make_case("bhid,bhjd->bhij", (trained_tensor(2, 4, 6, 2), trained_tensor(2, 4, 6, 2))),
    ),
    "autosbp.experts.default": (
        make_case(
            trained_tensor(6, 4),
            ints(4, 6, 2),
            trained_tensor(6, 2),
            trained_tensor(4, 6, 4),
            trained_tensor(4, 6, 4),
            trained_tensor(4, 4, 6),
            "silu",
        ),
        make_case(
            trained_tensor(4, 3),
            ints(6, 4, 1),
            data(4, 1),
            trained_tensor(6, 2, 3),
            trained_tensor(6, 2, 3),
            trained_tensor(6, 3, 2),
            "gelu",
        ),
    ),
    # convolution and pooling
    "aten.conv1d.default": (
        make_case(trained_tensor(6, 4, 8), trained_tensor(12, 4, 3), trained_tensor(12), (1,), (1,), (1,), 1),
        make_case(trained_tensor(6, 6, 8), trained_tensor(6, 1, 3), None, (2,), (1,), (1,), 6),
        make_case(trained_tensor(4, 8), trained_tensor(6, 4, 3), trained_tensor(6)),
    ),
    "aten.conv1d.padding": (
        make_case(trained_tensor(6, 4, 8), trained_tensor(6, 4, 3), trained_tensor(6), (1,), "same"),
    ),
    "aten.conv3d.default": (
        make_case(trained_tensor(2, 4, 3, 3, 3), trained_tensor(6, 4, 2, 2, 2), trained_tensor(6)),
    ),
    "aten.conv3d.padding": (
        make_case(trained_tensor(2, 4, 3, 3, 3), trained_tensor(6, 4, 3, 3, 3), None, (1, 1, 1), "same"),
    ),
    "aten.conv_transpose1d.default": (
        make_case(trained_tensor(6, 4, 5), trained_tensor(4, 6, 3), trained_tensor(6), (2,), (1,)),
    ),
    "aten.conv_transpose2d.input": (
        make_case(trained_tensor(6, 4, 3, 3), trained_tensor(4, 6, 2, 2), trained_tensor(6), (2, 2)),
        make_case(trained_tensor(6, 4, 3, 3), trained_tensor(4, 1, 2, 2), None, (1, 1), (0, 0), (0, 0), 4),
    ),
    "aten.conv_transpose3d.input": (
        make_case(trained_tensor(2, 4, 2, 2, 2), trained_tensor(4, 6, 2, 2, 2), trained_tensor(6)),
    ),
    "aten.max_pool1d.default": (_POOL[1],),
    "aten.max_pool3d.default": (_POOL[3],),
    "aten.avg_pool1d.default": (_POOL[1],),
    "aten.avg_pool3d.default": (_POOL[3],),
    "aten.adaptive_avg_pool1d.default": (make_case(trained_tensor(4, 6, 6), (3,)),),
    "aten.adaptive_avg_pool3d.default": (make_case(trained_tensor(2, 6, 4, 4, 4), (2, 2, 2)),),
    "aten.max_pool2d_with_indices.default": (make_case(trained_tensor(6, 4, 6, 6), (2, 2), (2, 2)),),
    "aten.max_pool3d_with_indices.default": (_POOL[3],),
    "aten.upsample_nearest2d.default": (make_case(trained_tensor(6, 4, 3, 3), (6, 6)),),
    "aten.upsample_nearest2d.vec": (make_case(trained_tensor(6, 4, 3, 3), None, (2.0, 2.0)),),
    "aten.upsample_bilinear2d.default": (make_case(trained_tensor(6, 4, 3, 3), (6, 6), False),),
    "aten.upsample_bilinear2d.vec": (make_case(trained_tensor(6, 4, 3, 3), (5, 4), True, None),),
    "aten.upsample_bicubic2d.default": (make_case(trained_tensor(6, 4, 3, 3), (6, 6), False),),
    "aten.upsample_bicubic2d.vec": (make_case(trained_tensor(6, 4, 3, 3), (6, 6), False, None),),
    "aten.upsample_nearest1d.vec": (make_case(trained_tensor(6, 4, 3), None, (2.0,)),),
    "aten.upsample_linear1d.vec": (make_case(trained_tensor(6, 4, 3), (6,), False, None),),
    # selecting and scattering
    "aten.index.Tensor": (
        make_case(trained_tensor(6, 4), (ints(6, 12),)),
        make_case(trained_tensor(4, 6, 2), (None, ints(6, 4))),
        make_case(trained_tensor(6, 4, 6), (ints(6, 4, 1), None, ints(6, 6))),
        make_case(trained_tensor(6, 4, 6), (ints(6, 4), ints(4, 4))),
    ),
    "aten.index_put.default": (
        make_case(trained_tensor(6, 4), (ints(6, 2),), trained_tensor(2, 4)),
        make_case(trained_tensor(4, 6, 2), (None, ints(6, 3)), trained_tensor(4, 3, 2), True),
        make_case(trained_tensor(6, 4), (ints(6, 2),), data()),
        make_case(trained_tensor(6, 4), (ints(6, 2),), trained_tensor(4)),
    ),
    "aten.index_select.default": (
        make_case(trained_tensor(6, 4), 0, ints(6, 12)),
        make_case(trained_tensor(4, 6, 2), -2, ints(6, 4)),
    ),
    "aten.index_add.default": (
        make_case(trained_tensor(6, 4), 0, ints(6, 12), trained_tensor(12, 4)),
        make_case(trained_tensor(4, 6), 1, ints(6, 4), trained_tensor(4, 4), alpha=0.5),
    ),
    "aten.scatter_add.default": (
        make_case(trained_tensor(4, 6), 1, ints(6, 4, 2), trained_tensor(4, 2)),
        make_case(trained_tensor(6, 4), 0, ints(6, 6, 4), trained_tensor(6, 4)),
    ),
    "aten.scatter.src": (make_case(trained_tensor(4, 6), 1, ints(6, 4, 1), trained_tensor(4, 1)),),
    "aten.scatter.value": (
        make_case(trained_tensor(4, 6), 1, ints(6, 4, 2), 0),
        make_case(trained_tensor(4, 6), -1, ints(6, 4, 1), 1.5),
    ),
    "aten.scatter_reduce.two": (
        make_case(trained_tensor(4, 6), 1, ints(6, 4, 2), trained_tensor(4, 2), "amax"),
        make_case(trained_tensor(4, 6), 1, ints(6, 4, 2), trained_tensor(4, 2), "sum"),
    ),
    "aten.slice_scatter.default": (
        make_case(trained_tensor(6, 4), trained_tensor(6, 2), 1, 1, 3),
        make_case(trained_tensor(4, 6), trained_tensor(2, 6), 0, 0, 4, 2),
    ),
    "aten.select_scatter.default": (
        make_case(trained_tensor(6, 4), trained_tensor(6), 1, 1),
        make_case(trained_tensor(4, 6, 2), trained_tensor(6, 2), 0, -1),
    ),
    # ordering
    "aten.topk.default": (make_case(trained_tensor(4, 6), 2), make_case(trained_tensor(6, 4, 2), 3, 1)),
    "aten.sort.default": (make_case(trained_tensor(4, 6)), make_case(trained_tensor(6, 4), 0, True)),
    "aten.argsort.default": (make_case(trained_tensor(4, 6)),),
    "aten.cumsum.default": (
        make_case(trained_tensor(4, 6), 1),
        make_case(trained_tensor(4, 6, 2), -2),
        make_case(ints(5, 4, 6), 0),
    ),
    "aten.cumprod.default": (make_case(trained_tensor(4, 6), 1),),
    "aten.logcumsumexp.default": (make_case(trained_tensor(4, 6), 0),),
    "aten.one_hot.default": (make_case(ints(6, 4, 6), 6), make_case(ints(3, 12), 4)),
    "aten.histc.default": (make_case(data(12), 4, -2, 2), make_case(data(4, 6), 3, 0, 0)),
    "aten.bucketize.Tensor": (make_case(trained_tensor(4, 6), data(5)),),
}
