"""Fourier transforms. MindSpore's transforms of n dimensions are as accurate as torch's; FFTWithSize is not."""

import torch

from ..registry import Decline, kernel
from ..storage import _prim as prim
from ..storage import contiguous_stride, read, wrap, wrap_strided

_FORWARD, _INVERSE, _REAL, _INVERSE_REAL = prim.FFTN(), prim.IFFTN(), prim.RFFTN(), prim.IRFFTN()

# torch says by what the result is divided: 1, the root of the size, the size. MindSpore: which direction divides.
_NORM = {True: (None, "ortho", "forward"), False: ("forward", "ortho", None)}
_FLOATS, _COMPLEX = {torch.float32, torch.float64}, {torch.complex64, torch.complex128}


# ------------------------------------------------------------------------------------------------------------- strides
# torch's result is laid out as MKL leaves it: the other dimensions first, the transformed ones behind them, each group
# in the order of the input's strides. Without MKL it is contiguous.

_MKL = torch.backends.mkl.is_available()


def _sorted(dims, stride):
    return sorted(dims, key=lambda d: -stride[d])


def _others(dims, n):
    """The dimensions not in `dims` as std::partition leaves them: that order decides between equal strides."""
    order, left, right = list(range(n)), 0, n - 1
    while True:
        while left <= right and order[left] not in dims:
            left += 1
        while left < right and order[right] in dims:
            right -= 1
        if left >= right:
            return order[:left]
        order[left], order[right] = order[right], order[left]


def _stride(dims, stride, size):
    """The strides of the transform along `dims`, in that order, that has the shape `size`; the input's are `stride`."""
    if not _MKL:
        return contiguous_stride(size)
    order = [*_sorted(_others(dims, len(size)), stride), *dims]
    result = [0] * len(size)
    for d, s in zip(order, contiguous_stride([size[d] for d in order])):
        result[d] = s
    return tuple(result)


def _complex_stride(op, args, v):
    x, dims = args[0], args[1]
    return _stride(_sorted(dims, x.stride()), x.stride(), v.shape) if dims else torch.empty_like(x, device="meta").stride()


def _spectrum_stride(op, args, v):
    x, (*dims, last) = args[:2]
    return _stride([*_sorted(dims, x.stride()), last], x.stride(), v.shape)


def _signal_stride(op, args, v):
    x, (*dims, last) = args[:2]
    stride = _stride(_sorted(dims, x.stride()), x.stride(), x.shape) if dims else x.stride()
    return _stride([last], stride, v.shape)


def _laid_out(stride):
    """The layout of the functional op. What is written to out= is contiguous: each kernel is registered for that first."""

    def place(op, args, kwargs, v):
        s = stride(op, args, v)
        return wrap(v) if s == contiguous_stride(v.shape) else wrap_strided(v, s)

    return place


# ---------------------------------------------------------------------------------------------------------- transforms


def _dimensions(x, dims, dtypes):
    if x.dtype not in dtypes:
        raise Decline("a dtype that torch does not transform")
    if dims and not x.numel() or len(set(dims)) < len(dims):
        raise Decline("no elements, or a dimension given twice")
    return tuple(dims)


@kernel("_fft_c2c", layout=_laid_out(_complex_stride))
@kernel("_fft_c2c")
def complex_to_complex(x, dim, normalization, forward):
    dims = _dimensions(x, dim, _COMPLEX)
    if not dims:
        return read(x)
    return (_FORWARD if forward else _INVERSE)(read(x), None, dims, _NORM[forward][normalization])


@kernel("_fft_r2c", layout=_laid_out(_spectrum_stride))
@kernel("_fft_r2c")
def real_to_complex(x, dim, normalization, onesided):
    dims = _dimensions(x, dim, _FLOATS)
    return (_REAL if onesided else _FORWARD)(read(x), None, dims, _NORM[True][normalization])


@kernel("_fft_c2r", layout=_laid_out(_signal_stride))
@kernel("_fft_c2r")
def complex_to_real(x, dim, normalization, last_dim_size):
    dims = _dimensions(x, dim, _COMPLEX)
    if last_dim_size // 2 + 1 != x.shape[dims[-1]]:
        raise Decline("a spectrum of another length than the signal's")
    size = (*(x.shape[d] for d in dims[:-1]), last_dim_size)
    return _INVERSE_REAL(read(x), size, dims, _NORM[False][normalization])
