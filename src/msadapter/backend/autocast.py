"""torch.autocast("mindspore"): torch's own op lists, as its CPU backend has them, and its promotion rule."""

import torch
from torch.utils._pytree import tree_map

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_LIB = torch.library.Library("aten", "IMPL")
_FALL = torch.library.Library("_", "IMPL")

# torch/csrc: aten/src/ATen/autocast_mode.cpp (CPU lists), documented in "Automatic Mixed Precision: CPU Op-Specific Behavior"
LOWER = """conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding bmm mm linalg_vecdot baddbmm addmm
    _addmm_activation addbmm linear _convolution.deprecated matmul conv_tbc mkldnn_rnn_layer conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input prelu scaled_dot_product_attention
    _native_multi_head_attention""".split()
FLOAT32 = """avg_pool3d binary_cross_entropy grid_sampler polar prod prod.dim_int quantile quantile.scalar nanquantile
    nanquantile.scalar stft stft.center cdist trace view_as_complex cholesky cholesky_inverse cholesky_solve inverse lu_solve
    orgqr ormqr pinverse max_pool3d max_unpool2d max_unpool3d adaptive_avg_pool3d reflection_pad1d reflection_pad2d
    replication_pad1d replication_pad2d replication_pad3d mse_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss poisson_nll_loss smooth_l1_loss cross_entropy_loss l1_loss huber_loss margin_ranking_loss
    soft_margin_loss triplet_margin_loss multi_margin_loss ctc_loss.IntList ctc_loss.Tensor kl_div multilabel_margin_loss
    binary_cross_entropy_with_logits fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2
    fft_irfft2 fft_rfftn fft_irfftn fft_hfft fft_ihfft linalg_cond linalg_cond.p_str linalg_matrix_rank
    linalg_matrix_rank.tol_tensor linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank.atol_rtol_float linalg_solve
    linalg_cholesky linalg_svdvals linalg_eigvals linalg_eigvalsh linalg_inv linalg_householder_product linalg_tensorinv
    linalg_tensorsolve fake_quantize_per_tensor_affine geqrf _lu_with_info linalg_qr linalg_svd linalg_eig linalg_eigh
    linalg_lstsq linalg_inv_ex""".split()
WIDEST = "stack cat index_copy".split()


def register():
    _FALL.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, rule in ((LOWER, _lower), (FLOAT32, _float32), (WIDEST, _widest)):
        for name in names:
            op = _find(name)
            if op is not None:
                _LIB.impl(name, rule(op), "AutocastPrivateUse1")


def _find(name):
    packet, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, packet, None)
    return getattr(packet, overload or "default", None)


def _cast(value, dtype):
    def one(x):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype is not torch.float64 and x.dtype is not dtype:
            return x.to(dtype)
        return x

    return tree_map(one, value)


def _lower(op):
    def run(*args, **kwargs):
        dtype = torch.get_autocast_dtype("mindspore")
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return op(*_cast(args, dtype), **_cast(kwargs, dtype))

    return run


def _float32(op):
    def run(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return op(*_cast(args, torch.float32), **_cast(kwargs, torch.float32))

    return run


def _widest(op):
    def run(*args, **kwargs):
        tensors = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        dtype = torch.get_autocast_dtype("mindspore")
        if any(x.dtype is torch.float32 for x in tensors):
            dtype = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return op(*_cast(args, dtype), **_cast(kwargs, dtype))

    return run
