"""ATen ops that graphs may name: functional ones that check their arguments.

Anybody may write a document, and ranks run its ops: an op that does not check an index or a size reads or writes memory
out of bounds. ``benchmarks.op_safety`` calls every listed op with arguments at and beyond their limits, on tensors
between protected guard pages. The list excludes ops that crashed there, and ops that return uninitialised memory,
access files, devices or storages, change their arguments, have data-dependent shapes, or are for complex, sparse,
nested and quantized tensors.
"""

from __future__ import annotations

from autosbp.errors import GraphError

_NAMES = """
__and__.Tensor __lshift__.Scalar __or__.Tensor __rshift__.Scalar _to_copy abs absolute acos acosh
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
adaptive_max_pool3d add.Scalar,Tensor addbmm addcdiv addcmul addmm addmv addr adjoint all.default,dim,dims
alpha_dropout amax amin aminmax angle any.default,dim,dims arange.default,start,start_step arccos arccosh arcsin
arcsinh arctan arctan2 arctanh argmax argmin argsort.default,stable asin asinh atan atan2 atanh
atleast_1d.Sequence,default atleast_2d.Sequence,default atleast_3d.Sequence,default avg_pool1d avg_pool2d avg_pool3d
baddbmm bartlett_window batch_norm bernoulli.Tensor,default,p bilinear binary_cross_entropy
binary_cross_entropy_with_logits bitwise_and.Scalar,Scalar_Tensor,Tensor
bitwise_left_shift.Scalar_Tensor,Tensor,Tensor_Scalar bitwise_not bitwise_or.Scalar,Scalar_Tensor,Tensor
bitwise_right_shift.Scalar_Tensor,Tensor,Tensor_Scalar bitwise_xor.Scalar,Scalar_Tensor,Tensor blackman_window
block_diag bmm broadcast_tensors broadcast_to bucketize.Scalar,Tensor cartesian_prod cat cdist ceil celu
chain_matmul channel_shuffle cholesky cholesky_inverse cholesky_solve chunk clamp.Tensor,default
clamp_max.Tensor,default clamp_min.Tensor,default clip.Tensor,default clone col2im column_stack concat concatenate
conj conj_physical constant_pad_nd contiguous conv1d.default,padding conv2d.default,padding conv3d.default,padding
conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input copysign.Scalar,Tensor corrcoef cos cosh
cosine_embedding_loss cosine_similarity count_nonzero.default,dim_IntList cov cross cross_entropy_loss cummax cummin
cumprod cumsum cumulative_trapezoid.dx,x deg2rad det detach diag diag_embed diagflat diagonal diagonal_scatter diff
digamma dist div.Scalar,Scalar_mode,Tensor,Tensor_mode divide.Scalar,Scalar_mode,Tensor,Tensor_mode dot dropout
dsplit.array,int dstack einsum elu embedding eq.Scalar,Tensor erf erfc erfinv exp exp2 expand expand_as expm1
eye.default,m feature_alpha_dropout feature_dropout fft_fftfreq fft_fftshift fft_hfft fft_hfft2 fft_hfftn
fft_ifftshift fft_irfft fft_irfft2 fft_irfftn fft_rfftfreq fill.Scalar,Tensor fix flatten.using_ints flip fliplr
flipud float_power.Scalar,Tensor_Scalar,Tensor_Tensor floor floor_divide.Scalar,default fmax fmin fmod.Scalar,Tensor
frac frexp.Tensor frobenius_norm.dim full full_like gather gcd ge.Scalar,Tensor gelu ger glu
gradient.array,scalararray,scalarint,scalarrayarray,scalarrayint greater.Scalar,Tensor greater_equal.Scalar,Tensor
grid_sampler grid_sampler_2d grid_sampler_3d group_norm gru.input gru_cell gt.Scalar,Tensor
hamming_window.default,periodic hann_window.default,periodic hardshrink hardsigmoid hardswish hardtanh heaviside
hinge_embedding_loss histc hsplit.array,int hstack huber_loss hypot i0 igamma igammac im2col index.Tensor index_add
index_fill.int_Scalar,int_Tensor index_put index_reduce index_select inner instance_norm inverse isclose isfinite
isin.Scalar_Tensor,Tensor_Scalar,Tensor_Tensor isinf isnan isneginf isposinf isreal kaiser_window kl_div kron
kthvalue l1_loss layer_norm ldexp.Tensor le.Scalar,Tensor leaky_relu lerp.Scalar,Tensor less.Scalar,Tensor
less_equal.Scalar,Tensor lgamma linalg__powsum linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross
linalg_det linalg_diagonal linalg_eigh linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_lu
linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve linalg_matmul linalg_matrix_exp
linalg_matrix_norm.default,str_ord linalg_matrix_rank.atol_rtol_float,atol_rtol_tensor,default,tol_tensor
linalg_multi_dot linalg_norm.default,ord_str linalg_pinv.atol_rtol_float,atol_rtol_tensor,default,rcond_tensor
linalg_qr linalg_slogdet linalg_solve linalg_solve_ex linalg_solve_triangular linalg_svd linalg_svdvals
linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot linalg_vector_norm linear
linspace.Scalar_Tensor,Tensor_Scalar,Tensor_Tensor,default log log10 log1p log2 log_sigmoid log_sigmoid_forward
log_softmax.int logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor logit
logspace.Scalar_Tensor,Tensor_Scalar,Tensor_Tensor,default logsumexp lstm.input lstm_cell lt.Scalar,Tensor lu_solve
mH mT margin_ranking_loss masked_fill.Scalar,Tensor masked_scatter matmul matrix_H matrix_exp max.default,dim,other
max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices
max_unpool2d max_unpool3d maximum mean.default,dim median.default,dim meshgrid.indexing min.default,dim,other
minimum mish mm mode moveaxis.int,intlist movedim.int,intlist mse_loss msort mul.Scalar,Tensor multi_margin_loss
multilabel_margin_loss multilabel_margin_loss_forward multinomial multiply.Scalar,Tensor mv mvlgamma nan_to_num
nanmean nanmedian.default,dim nanquantile.default,scalar nansum narrow native_channel_shuffle native_dropout
native_group_norm native_layer_norm ne.Scalar,Tensor neg negative new_full new_ones new_zeros nextafter nll_loss
nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd
norm.Scalar,ScalarOpt_dim,ScalarOpt_dim_dtype,ScalarOpt_dtype norm_except_dim not_equal.Scalar,Tensor
nuclear_norm.default,dim one_hot ones ones_like outer pad pad_sequence pairwise_distance permute pinverse
pixel_shuffle pixel_unshuffle polygamma positive pow.Scalar,Tensor_Scalar,Tensor_Tensor prelu prod.default,dim_int
put qr quantile.default,scalar rad2deg rand rand_like randint.default,low randint_like.default,low_dtype randn
randn_like randperm range.default,step ravel real reciprocal reflection_pad1d reflection_pad2d reflection_pad3d relu
relu6 remainder.Scalar,Scalar_Tensor,Tensor renorm repeat repeat_interleave.self_int replication_pad1d
replication_pad2d replication_pad3d reshape reshape_as resolve_conj resolve_neg rms_norm rnn_relu.input
rnn_relu_cell rnn_tanh.input rnn_tanh_cell roll rot90 round.decimals,default row_stack rrelu rsqrt
rsub.Scalar,Tensor scalar_tensor scaled_dot_product_attention scatter.reduce,src,value,value_reduce scatter_add
scatter_reduce.two searchsorted.Tensor select.int select_scatter selu sgn sigmoid sign signbit silu sin sinc sinh
slice.Tensor slice_scatter slogdet smooth_l1_loss soft_margin_loss softmax.int softplus softshrink
sort.default,stable special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
special_digamma special_entr special_erf special_erfc special_erfcx special_erfinv special_exp2 special_expit
special_expm1 special_gammainc special_gammaincc special_gammaln special_i0 special_i0e special_i1 special_i1e
special_log1p special_log_ndtr special_log_softmax special_logit special_logsumexp special_modified_bessel_i0
special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_multigammaln special_ndtr
special_ndtri special_polygamma special_psi special_round special_scaled_modified_bessel_k0
special_scaled_modified_bessel_k1 special_sinc special_softmax special_spherical_bessel_j0
special_xlog1py.default,other_scalar,self_scalar special_xlogy.default,other_scalar,self_scalar
special_zeta.default,other_scalar,self_scalar split.Tensor,sizes split_with_sizes sqrt square
squeeze.default,dim,dims stack std.correction,default,dim std_mean.correction,default,dim stft.center,default
sub.Scalar,Tensor subtract.Scalar,Tensor sum.default,dim_IntList sum_to_size svd swapaxes swapdims t take
take_along_dim tan tanh tensor_split.indices,sections tensordot threshold tile to.dtype,dtype_layout topk trace
transpose.int trapezoid.dx,x trapz.dx,x triangular_solve tril tril_indices triplet_margin_loss triu triu_indices
true_divide.Scalar,Tensor trunc type_as unbind.int unflatten.int unfold unsqueeze upsample_bicubic2d.default,vec
upsample_bilinear2d.default,vec upsample_linear1d.default,vec upsample_nearest1d.default,vec
upsample_nearest2d.default,vec upsample_nearest3d.default,vec upsample_trilinear3d.default,vec vander
var.correction,default,dim var_mean.correction,default,dim vdot view.default,dtype view_as vsplit.array,int vstack
where.Scalar,ScalarOther,ScalarSelf,self xlogy.Scalar_Other,Scalar_Self,Tensor zeros zeros_like
"""
"""``NAME`` is ``aten.NAME.default``, ``NAME.A,B`` are ``aten.NAME.A`` and ``aten.NAME.B``."""


def _expand_names() -> frozenset[str]:
    found = set()
    for word in _NAMES.split():
        name, _, overloads = word.partition(".")
        found |= {f"aten.{name}.{overload}" for overload in (overloads or "default").split(",")}
    return frozenset(found)


ALLOWED_OPS = _expand_names()
AUTOSBP_OPS = frozenset(("autosbp.experts.default",))
"""Ops of ``autosbp.graph.experts_op``, which this module does not import because it needs torch."""
TORCH_LIBRARIES = frozenset((
    "prim", "prims", "debugprims", "rngprims", "inductor_prims", "c10d", "c10d_functional", "_c10d_functional",
    "_c10d_functional_autograd", "_dtensor", "symm_mem", "inductor", "profiler", "higher_order", "quantized",
    "_quantized", "quantization", "mkldnn", "mkldnn_prepacked", "mkl", "onednn", "xnnpack", "prepacked",
    "streams", "sparse", "static_runtime", "export", "debug_mode_ops", "fsdp", "bucketing", "flex_gemm",
    "flex_lib", "torch_nn", "_native", "_test", "aoti_torch", "cuda_graph_ops", "vulkan_prepack", "metal_prepack",
    "torch_attn", "mps", "onnx", "onnx_symbolic", "pippy", "_inductor_test", "quantized_decomposed",
))  # fmt: skip
"""Op libraries that torch itself registers, besides ATen."""


def check_op(name: str, field: str = "op") -> None:
    """Check the name of an op, ``NAMESPACE.NAME.OVERLOAD``.

    Args:
        name: one of ``ALLOWED_OPS``, of ``AUTOSBP_OPS``, or an op of a library of custom ops.
        field: path of the name in error messages.

    Raises:
        GraphError: for any other name.
    """
    parts = name.split(".")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts):
        raise GraphError(field, name, "expected NAMESPACE.NAME.OVERLOAD of aten or of a custom op library")
    library = parts[0]
    if library == "aten" and name not in ALLOWED_OPS:
        limit = "expected one of the functional, argument-checking ops of autosbp.graph.allowed_ops"
        raise GraphError(field, name, limit)
    if library == "autosbp" and name not in AUTOSBP_OPS:
        raise GraphError(field, name, f"expected one of {', '.join(sorted(AUTOSBP_OPS))}")
    if library in TORCH_LIBRARIES:
        raise GraphError(
            field, name, f"expected an op of aten or of a custom op library; {library} is internal to torch"
        )
