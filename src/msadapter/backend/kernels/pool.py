"""Pooling over one to three spatial dimensions (torch sends one-dimensional pooling to the two-dimensional ops)."""

import functools

import numpy as np
import torch
from mindspore.ops.operations import _grad_ops

from ..registry import Decline, kernel
from ..storage import cast, constant, ms, read
from .scatter import sums

P = ms.ops
_RESHAPE, _SUM, _IS_NAN, _SELECT = P.Reshape(), P.ReduceSum(), P.IsNan(), P.Select()
_MINIMUM, _MAXIMUM = P.Minimum(), P.Maximum()
_GATHER = P.GatherD()
_ADAPTIVE_AVG_GRAD = {2: _grad_ops.AdaptiveAvgPool2DGrad(), 3: _grad_ops.AdaptiveAvgPool3DGrad()}
HALF = {torch.float16, torch.bfloat16}  # computed in float32


@functools.lru_cache(1024)
def _primitive(make, *options):
    return make(*options)


def _batched(x, rank):
    """x's value with a batch dimension, halves in float32."""
    if x.dim() not in (rank + 1, rank + 2):
        raise Decline("not an image")
    v = cast(read(x), torch.float32) if x.dtype in HALF else read(x)
    return v if x.dim() == rank + 2 else _RESHAPE(v, (1, *x.shape))


def _result(v, shape, dtype):
    """v in `dtype`; its shape must be torch's, but for the batch dimension."""
    if v.shape != shape:
        if v.size != int(np.prod(shape)):
            raise Decline("another output size than torch's")
        v = _RESHAPE(v, shape)
    return cast(v, dtype)


def _each(rank, *values):
    """torch's int lists, each spelled out for `rank` dimensions."""
    return tuple(tuple(v) * rank if len(v) == 1 else tuple(v) for v in values)


def _window(x, rank, kernel_size, stride, padding, dilation, ceil_mode):
    """(kernel, stride, padding, dilation, output shape) by torch's rules."""
    k, p, d = _each(rank, kernel_size, padding, dilation)
    (s,) = _each(rank, stride or kernel_size)
    if min(k) < 1 or min(s) < 1 or min(d) < 1 or min(p) < 0 or any(2 * b > a for a, b in zip(k, p)):
        raise Decline("not a pooling window")
    size = []
    for n, a, b, c, e in zip(x.shape[-rank:], k, s, p, d):
        out = (n + 2 * c - e * (a - 1) - 1 + (b - 1 if ceil_mode else 0)) // b + 1
        size.append(out - 1 if ceil_mode and (out - 1) * b >= n + c else out)
    if min(size) < 1 or 0 in x.shape[-rank - 1 :]:  # only the batch may be empty
        raise Decline("no output")
    return k, s, p, d, (*x.shape[:-rank], *size)


# ------------------------------------------------------------------------------------------------------------- maximum

_MAX = {2: P.MaxPoolWithArgmaxV2, 3: P.MaxPool3DWithArgmax}
_BOUNDS = {torch.float32: (3.4e38, -3.4e38), torch.float64: (1.7e308, -1.7e308)}


def _rows(v, rank):
    """v with its batch and channels, and its positions, in one dimension each."""
    return _RESHAPE(v, (-1, int(np.prod(v.shape[-rank:]))))


def _max_pool(x, rank, primitive, shape):
    if not x.shape[0]:
        return constant(0, x.dtype, shape), constant(0, torch.int64, shape)
    v = _batched(x, rank)
    finite = not x.is_floating_point() or np.isfinite(_SUM(_rows(v, rank), 1).asnumpy()).all()
    values, index = primitive(v if finite else _ordered(v))
    if not finite:
        values = _GATHER(_rows(v, rank), 1, _rows(index, rank))
    return _result(values, shape, x.dtype), _result(index, shape, torch.int64)


def _ordered(v):
    """v with NaN above everything, as torch has it (the primitive ignores NaN), and -inf above what it starts from."""
    dtype = torch.float64 if v.dtype == ms.float64 else torch.float32
    top, bottom = (constant(bound, dtype) for bound in _BOUNDS[dtype])
    return _SELECT(_IS_NAN(v), constant(float("inf"), dtype, v.shape), _MAXIMUM(_MINIMUM(v, top), bottom))


@kernel("max_pool2d_with_indices", layout="image")
def max_pool2d(x, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False, rank=2):
    k, s, p, d, shape = _window(x, rank, kernel_size, stride, padding, dilation, ceil_mode)
    if rank == 3 and not x.is_floating_point():
        raise Decline("MaxPool3DWithArgmax pads integers with 0")
    return _max_pool(x, rank, _primitive(_MAX[rank], k, s, p, d, ceil_mode), shape)


@kernel("max_pool3d_with_indices")
def max_pool3d(x, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    return max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode, 3)


@kernel("adaptive_max_pool2d", layout="image")
def adaptive_max_pool2d(x, output_size):
    if 0 in x.shape or min(output_size) < 1:
        raise Decline("empty")
    return _max_pool(x, 2, _primitive(P.AdaptiveMaxPool2D, tuple(output_size)), (*x.shape[:-2], *output_size))


def _max_pool_grad(grad, x, index, rank):
    """The gradients, added up where their maxima were (MaxPoolGradWithArgmaxV2 takes 200 times as long)."""
    if grad.shape != index.shape or grad.dtype is not x.dtype:
        raise Decline("mismatched gradient")
    dtype = torch.float32 if x.dtype in HALF else x.dtype
    if not grad.numel():
        return constant(0, x.dtype, tuple(x.shape))
    rows = (int(np.prod(x.shape[:-rank])), int(np.prod(x.shape[-rank:])))
    v = sums(rows, 1, _rows(read(index), rank), _rows(cast(read(grad), dtype), rank))
    return _result(v, tuple(x.shape), x.dtype)


@kernel("max_pool2d_with_indices_backward")
def max_pool2d_backward(grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return _max_pool_grad(grad, x, indices, 2)


@kernel("max_pool3d_with_indices_backward")
def max_pool3d_backward(grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return _max_pool_grad(grad, x, indices, 3)


@kernel("adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(grad, x, indices):
    return _max_pool_grad(grad, x, indices, 2)


# ------------------------------------------------------------------------------------------------------------- average
# AvgPool3D alone has padding, ceil_mode and a divisor; it is as fast over one image plane as AvgPool.


def _average(x, rank, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor, *, grad):
    k, s, p, _, shape = _window(x, rank, kernel_size, stride, padding, (1,), ceil_mode)
    if divisor == 0 or not x.is_floating_point() or x.dtype is torch.float64:
        raise Decline("no average, or one computed in float32")
    one, zero = (1,) * (3 - rank), (0,) * (3 - rank)
    pads = tuple(v for v in zero + p for _ in (0, 1))
    mode = () if grad else ("pad",)
    make = _grad_ops.AvgPool3DGrad if grad else P.AvgPool3D
    # AvgPool3DGrad forgets a divisor where the padding does not count.
    options = (one + k, one + s, *mode, pads, ceil_mode, count_include_pad or bool(divisor), divisor or 0)
    return _primitive(make, *options), shape


def _volume(v, rank):
    return v if rank == 3 else _RESHAPE(v, (*v.shape[:2], 1, *v.shape[2:]))


@kernel("avg_pool2d", layout="image")
def avg_pool2d(
    x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None, rank=2
):
    options = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    primitive, shape = _average(x, rank, *options, grad=False)
    if not x.shape[0]:
        return constant(0, x.dtype, shape)
    return _result(primitive(_volume(_batched(x, rank), rank)), shape, x.dtype)


@kernel("avg_pool3d")
def avg_pool3d(x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None):
    return avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 3)


@kernel("avg_pool2d_backward")
def avg_pool2d_backward(grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, rank=2):
    options = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    primitive, shape = _average(x, rank, *options, grad=True)
    if tuple(grad.shape) != shape or grad.dtype is not x.dtype:
        raise Decline("mismatched gradient")
    if not x.shape[0]:
        return constant(0, x.dtype, tuple(x.shape))
    batched = x.shape if x.dim() == rank + 2 else (1, *x.shape)
    volume = (*batched[:2], *(1,) * (3 - rank), *batched[2:])
    return _result(primitive(volume, _volume(_batched(grad, rank), rank)), tuple(x.shape), x.dtype)


@kernel("avg_pool3d_backward")
def avg_pool3d_backward(grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return avg_pool2d_backward(grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 3)


def _adaptive_average(rank, make):
    name = f"_adaptive_avg_pool{rank}d"

    @kernel(name, layout="image")
    def forward(x, output_size):
        if 0 in x.shape[1:] or min(output_size) < 1 or not x.is_floating_point():
            raise Decline("empty")
        shape = (*x.shape[:-rank], *output_size)
        if not x.shape[0]:
            return constant(0, x.dtype, shape)
        return _result(_primitive(make, tuple(output_size))(_batched(x, rank)), shape, x.dtype)

    @kernel(f"{name}_backward")
    def backward(grad, x):
        if grad.dtype is not x.dtype or grad.dim() != x.dim() or 0 in grad.shape[1:]:
            raise Decline("mismatched gradient")
        if not x.shape[0]:
            return constant(0, x.dtype, tuple(x.shape))
        batched = tuple(x.shape) if x.dim() == rank + 2 else (1, *x.shape)
        size = batched if rank == 2 else ms.Tensor(batched, ms.int32)
        return _result(_ADAPTIVE_AVG_GRAD[rank](_batched(grad, rank), size), tuple(x.shape), x.dtype)


_adaptive_average(2, P.AdaptiveAvgPool2D)
_adaptive_average(3, P.AdaptiveAvgPool3D)
