"""Cases of products with equations, convolutions and pooling in other dims, and ops that pick, place and order."""

from __future__ import annotations

from collections.abc import Mapping

from autosbp.testing.op_cases import Case, data, ints, of, x

_POOL = {1: of(x(4, 6, 6), (2,), (2,)), 3: of(x(2, 6, 4, 4, 4), (2, 2, 2), (2, 2, 2))}

INDEXING_CASES: Mapping[str, tuple[Case, ...]] = {
    # products
    "aten.baddbmm.default": (
        of(x(6, 4, 2), x(6, 4, 6), x(6, 6, 2)),
        of(x(2), x(6, 4, 6), x(6, 6, 2), beta=0.5),
        of(x(1, 4, 6), x(6, 4, 6), x(6, 6, 6)),
    ),
    "aten.addbmm.default": (of(x(4, 6), x(6, 4, 2), x(6, 2, 6)),),
    "aten.addmv.default": (of(x(6), x(6, 4), x(4)), of(x(), x(6, 4), x(4))),
    "aten.mv.default": (of(x(6, 4), x(4)),),
    "aten.dot.default": (of(x(6), x(6)),),
    "aten.outer.default": (of(x(6), x(4)), of(x(6), data(4))),
    "aten.einsum.default": (
        of("bij,bjk->bik", (x(4, 6, 2), x(4, 2, 6))),
        of("td,edf->tef", (x(6, 4), x(2, 4, 6))),
        of("tec,td->ecd", (data(6, 2, 4), x(6, 6))),
        of("ij->ji", (x(4, 6),)),
        of("bi,bi->b", (x(4, 6), x(4, 6))),
        of("bhid,bhjd->bhij", (x(2, 4, 6, 2), x(2, 4, 6, 2))),
    ),
    "autosbp.experts.default": (
        of(x(6, 4), ints(4, 6, 2), x(6, 2), x(4, 6, 4), x(4, 6, 4), x(4, 4, 6), "silu"),
        of(x(4, 3), ints(6, 4, 1), data(4, 1), x(6, 2, 3), x(6, 2, 3), x(6, 3, 2), "gelu"),
    ),
    # convolution and pooling
    "aten.conv1d.default": (
        of(x(6, 4, 8), x(12, 4, 3), x(12), (1,), (1,), (1,), 1),
        of(x(6, 6, 8), x(6, 1, 3), None, (2,), (1,), (1,), 6),
        of(x(4, 8), x(6, 4, 3), x(6)),
    ),
    "aten.conv1d.padding": (of(x(6, 4, 8), x(6, 4, 3), x(6), (1,), "same"),),
    "aten.conv3d.default": (of(x(2, 4, 3, 3, 3), x(6, 4, 2, 2, 2), x(6)),),
    "aten.conv3d.padding": (of(x(2, 4, 3, 3, 3), x(6, 4, 3, 3, 3), None, (1, 1, 1), "same"),),
    "aten.conv_transpose1d.default": (of(x(6, 4, 5), x(4, 6, 3), x(6), (2,), (1,)),),
    "aten.conv_transpose2d.input": (
        of(x(6, 4, 3, 3), x(4, 6, 2, 2), x(6), (2, 2)),
        of(x(6, 4, 3, 3), x(4, 1, 2, 2), None, (1, 1), (0, 0), (0, 0), 4),
    ),
    "aten.conv_transpose3d.input": (of(x(2, 4, 2, 2, 2), x(4, 6, 2, 2, 2), x(6)),),
    "aten.max_pool1d.default": (_POOL[1],),
    "aten.max_pool3d.default": (_POOL[3],),
    "aten.avg_pool1d.default": (_POOL[1],),
    "aten.avg_pool3d.default": (_POOL[3],),
    "aten.adaptive_avg_pool1d.default": (of(x(4, 6, 6), (3,)),),
    "aten.adaptive_avg_pool3d.default": (of(x(2, 6, 4, 4, 4), (2, 2, 2)),),
    "aten.max_pool2d_with_indices.default": (of(x(6, 4, 6, 6), (2, 2), (2, 2)),),
    "aten.max_pool3d_with_indices.default": (_POOL[3],),
    "aten.upsample_nearest2d.default": (of(x(6, 4, 3, 3), (6, 6)),),
    "aten.upsample_nearest2d.vec": (of(x(6, 4, 3, 3), None, (2.0, 2.0)),),
    "aten.upsample_bilinear2d.default": (of(x(6, 4, 3, 3), (6, 6), False),),
    "aten.upsample_bilinear2d.vec": (of(x(6, 4, 3, 3), (5, 4), True, None),),
    "aten.upsample_bicubic2d.default": (of(x(6, 4, 3, 3), (6, 6), False),),
    "aten.upsample_bicubic2d.vec": (of(x(6, 4, 3, 3), (6, 6), False, None),),
    "aten.upsample_nearest1d.vec": (of(x(6, 4, 3), None, (2.0,)),),
    "aten.upsample_linear1d.vec": (of(x(6, 4, 3), (6,), False, None),),
    # picking and placing
    "aten.index.Tensor": (
        of(x(6, 4), (ints(6, 12),)),
        of(x(4, 6, 2), (None, ints(6, 4))),
        of(x(6, 4, 6), (ints(6, 4, 1), None, ints(6, 6))),
        of(x(6, 4, 6), (ints(6, 4), ints(4, 4))),
    ),
    "aten.index_put.default": (
        of(x(6, 4), (ints(6, 2),), x(2, 4)),
        of(x(4, 6, 2), (None, ints(6, 3)), x(4, 3, 2), True),
        of(x(6, 4), (ints(6, 2),), data()),
        of(x(6, 4), (ints(6, 2),), x(4)),
    ),
    "aten.index_select.default": (of(x(6, 4), 0, ints(6, 12)), of(x(4, 6, 2), -2, ints(6, 4))),
    "aten.index_add.default": (
        of(x(6, 4), 0, ints(6, 12), x(12, 4)),
        of(x(4, 6), 1, ints(6, 4), x(4, 4), alpha=0.5),
    ),
    "aten.scatter_add.default": (of(x(4, 6), 1, ints(6, 4, 2), x(4, 2)), of(x(6, 4), 0, ints(6, 6, 4), x(6, 4))),
    "aten.scatter.src": (of(x(4, 6), 1, ints(6, 4, 1), x(4, 1)),),
    "aten.scatter.value": (of(x(4, 6), 1, ints(6, 4, 2), 0), of(x(4, 6), -1, ints(6, 4, 1), 1.5)),
    "aten.scatter_reduce.two": (
        of(x(4, 6), 1, ints(6, 4, 2), x(4, 2), "amax"),
        of(x(4, 6), 1, ints(6, 4, 2), x(4, 2), "sum"),
    ),
    "aten.slice_scatter.default": (of(x(6, 4), x(6, 2), 1, 1, 3), of(x(4, 6), x(2, 6), 0, 0, 4, 2)),
    "aten.select_scatter.default": (of(x(6, 4), x(6), 1, 1), of(x(4, 6, 2), x(6, 2), 0, -1)),
    # ordering
    "aten.topk.default": (of(x(4, 6), 2), of(x(6, 4, 2), 3, 1)),
    "aten.sort.default": (of(x(4, 6)), of(x(6, 4), 0, True)),
    "aten.argsort.default": (of(x(4, 6)),),
    "aten.cumsum.default": (of(x(4, 6), 1), of(x(4, 6, 2), -2), of(ints(5, 4, 6), 0)),
    "aten.cumprod.default": (of(x(4, 6), 1),),
    "aten.logcumsumexp.default": (of(x(4, 6), 0),),
    "aten.one_hot.default": (of(ints(6, 4, 6), 6), of(ints(3, 12), 4)),
    "aten.histc.default": (of(data(12), 4, -2, 2), of(data(4, 6), 3, 0, 0)),
    "aten.bucketize.Tensor": (of(x(4, 6), data(5)),),
}
