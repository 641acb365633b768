"""Interpolation (`F.interpolate`).

Interpolation is linear and acts on each dimension by itself, so that it is a matrix per dimension, which torch's own
host kernel tells when it interpolates the unit vectors. The gradient multiplies by the transposed matrices.
"""

import functools

import numpy as np
import torch
from mindspore.ops.operations import _grad_ops
from torch._decomp import decomposition_table

from ..registry import Decline, aten, kernel
from ..storage import cast, constant, ms, read
from .pad import along, computed, indicator, take

P = ms.ops
_RESHAPE = P.Reshape()
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@functools.lru_cache(512)
def _primitive(make, *options):
    return make(*options)


def _check(x, rank, size, dtypes=_FLOATS):
    if x.dim() != rank + 2 or len(size) != rank or min(size) < 1 or 0 in x.shape[1:] or x.dtype not in dtypes:
        raise Decline("not an image of a supported dtype")


# ------------------------------------------------------------------------------------------- what a dimension goes by


@functools.lru_cache(512)
def _index(exact, n, size, scale):
    """Where nearest-neighbour interpolation reads each of `size` places."""
    op = aten._upsample_nearest_exact1d if exact else aten.upsample_nearest1d
    return (
        op(torch.arange(n, dtype=torch.float64, device="cpu").reshape(1, 1, n), [size], scale)
        .long()
        .numpy()
        .reshape(-1)
    )


@functools.lru_cache(512)
def _matrix(mode, n, size, align_corners, scale, dtype):
    """The (n, size) matrix of an interpolation: the images of the unit vectors. The caller must not change it."""
    eye = torch.eye(n, dtype=dtype, device="cpu")
    if mode == "linear":
        return aten.upsample_linear1d(eye[None], [size], align_corners, scale)[0].contiguous()
    return _OF_ROWS[mode](eye[None, :, None], [1, size], align_corners, None, scale)[0, :, 0].contiguous()


_OF_ROWS = {  # (over columns of width 1 the antialiasing kernels err)
    "bicubic": aten.upsample_bicubic2d,
    "bilinear_aa": aten._upsample_bilinear2d_aa,
    "bicubic_aa": aten._upsample_bicubic2d_aa,
}
if hasattr(aten, "_upsample_lanczos2d_aa"):
    _OF_ROWS["lanczos_aa"] = aten._upsample_lanczos2d_aa


# ------------------------------------------------------------------------------------------------------------- nearest


def _nearest(name, rank, exact):
    def indices(x_size, size, scales):
        scales = scales or (None,) * rank
        return [_index(exact, n, m, s) if n != m or s else None for n, m, s in zip(x_size, size, scales)]

    @kernel(name, layout="image")
    def forward(x, output_size, *scales):
        _check(x, rank, output_size, (*_FLOATS, torch.uint8))
        if not x.shape[0]:
            return constant(0, x.dtype, (*x.shape[:2], *output_size))
        return cast(take(computed(x), indices(x.shape[2:], output_size, scales)), x.dtype)

    @kernel(f"{name}_backward")
    def backward(grad, output_size, input_size, *scales):
        _check(grad, rank, output_size)
        if list(grad.shape) != [*input_size[:2], *output_size]:
            raise Decline("mismatched gradient")
        if not grad.shape[0]:
            return constant(0, grad.dtype, tuple(input_size))
        found = indices(input_size[2:], output_size, scales)
        v = computed(grad)
        factors = [1 if i is None else len(i) // n for i, n in zip(found, input_size[2:])]
        if grad.dtype is not torch.float64 and all(  # float64 pools are computed in float32
            i is None or np.array_equal(i, np.arange(n * f) // f) for i, n, f in zip(found, input_size[2:], factors)
        ):
            return cast(_RESHAPE(_sums(v, factors), tuple(input_size)), grad.dtype)
        dtype = torch.float64 if grad.dtype is torch.float64 else torch.float32
        sums = [None if i is None else indicator(i, n, dtype) for i, n in zip(found, input_size[2:])]
        return cast(along(v, sums), grad.dtype)


def _sums(v, factors):
    """The sum of each block of v: average pooling with a divisor of 1."""
    one = (1,) * (3 - len(factors))
    block = (*one, *factors)
    pool = _primitive(P.AvgPool3D, block, block, "pad", (0,) * 6, False, True, 1)
    return pool(_RESHAPE(v, (*v.shape[:2], *one, *v.shape[2:])))


for _rank in (1, 2, 3):
    _nearest(f"upsample_nearest{_rank}d", _rank, False)
    _nearest(f"_upsample_nearest_exact{_rank}d", _rank, True)


# -------------------------------------------------------------------------------------------------------- interpolation


def _plain(n, size, scales):
    """Whether the scales that the caller named are those that the sizes have anyway."""
    return all(s is None or s * a == b for a, b, s in zip(n, size, scales))


def _linear(x, output_size, align_corners, scales):
    """By ResizeBilinearV2, as an image with a height of 1 if x has one dimension."""
    one = (1,) if x.dim() == 3 else ()
    v = _primitive(P.ResizeBilinearV2, align_corners, not align_corners)(
        _RESHAPE(computed(x), (*x.shape[:2], *one, *x.shape[2:])), (*one, *output_size)
    )
    return _RESHAPE(v, (*x.shape[:2], *output_size))


def _linear_backward(grad, input_size, align_corners):
    one = (1,) if grad.dim() == 3 else ()
    v = _RESHAPE(computed(grad), (*grad.shape[:2], *one, *grad.shape[2:]))
    like = constant(
        0, torch.float64 if grad.dtype is torch.float64 else torch.float32, (*input_size[:2], *one, *input_size[2:])
    )
    grads = _primitive(_grad_ops.ResizeBilinearGrad, align_corners, not align_corners)(v, like)
    return _RESHAPE(grads, tuple(input_size))


def _interpolation(name, rank, mode):
    op = getattr(aten, name).default

    @kernel(name, layout="image")
    def forward(x, output_size, align_corners, *scales):
        _check(x, rank, output_size)
        scales = scales or (None,) * rank
        if not x.shape[0]:
            return constant(0, x.dtype, (*x.shape[:2], *output_size))
        if mode == "linear" and rank < 3 and x.dtype is not torch.float64 and _plain(x.shape[2:], output_size, scales):
            return cast(_linear(x, output_size, align_corners, scales), x.dtype)
        if op in decomposition_table:  # gathers: unlike a matrix, they keep a NaN where it is
            return read(decomposition_table[op](x, output_size, align_corners, *scales))
        return cast(along(computed(x), matrices(x.dtype, x.shape[2:], output_size, align_corners, scales)), x.dtype)

    @kernel(f"{name}_backward")
    def backward(grad, output_size, input_size, align_corners, *scales):
        _check(grad, rank, output_size)
        if list(grad.shape) != [*input_size[:2], *output_size]:
            raise Decline("mismatched gradient")
        scales = scales or (None,) * rank
        if not grad.shape[0]:
            return constant(0, grad.dtype, tuple(input_size))
        if mode == "linear" and rank < 3 and grad.dtype is not torch.float64 and _plain(input_size[2:], output_size, scales):
            return cast(_linear_backward(grad, input_size, align_corners), grad.dtype)
        back = [m.t().contiguous() for m in matrices(grad.dtype, input_size[2:], output_size, align_corners, scales)]
        return cast(along(computed(grad), back), grad.dtype)

    def matrices(dtype, n, size, align_corners, scales):
        dtype = torch.float64 if dtype is torch.float64 else torch.float32
        return [_matrix(mode, a, b, align_corners, s, dtype) for a, b, s in zip(n, size, scales)]


for _name, _rank, _mode in (
    ("upsample_linear1d", 1, "linear"), ("upsample_bilinear2d", 2, "linear"), ("upsample_trilinear3d", 3, "linear"),
    ("upsample_bicubic2d", 2, "bicubic"), ("_upsample_bilinear2d_aa", 2, "bilinear_aa"),
    ("_upsample_bicubic2d_aa", 2, "bicubic_aa"), ("_upsample_lanczos2d_aa", 2, "lanczos_aa"),
):  # fmt: skip
    if _mode in ("linear", *_OF_ROWS):
        _interpolation(_name, _rank, _mode)
