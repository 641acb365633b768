"""Pooling over one to three spatial dimensions (torch sends one-dimensional pooling to the two-dimensional ops)."""

import functools

import numpy as np
import torch
from mindspore.ops.operations import _grad_ops

from ..registry import Decline, kernel
from ..storage import cast, constant, host, ms, read, wrap
from ..tracing import finite
from . import windows
from .scatter import sums

P = ms.ops
_RESHAPE, _SUM, _IS_NAN, _SELECT = P.Reshape(), P.ReduceSum(), P.IsNan(), P.Select()
_MINIMUM, _MAXIMUM = P.Minimum(), P.Maximum()
_GATHER, _ARGMAX = P.GatherD(), P.Argmax(1, ms.int64)
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
    plain = not x.is_floating_point() or finite(v, lambda v: _SUM(_rows(v, rank), 1))
    values, index = primitive(v if plain else _ordered(v))
    if not plain:
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


@kernel("adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(grad, x, indices):
    return _max_pool_grad(grad, x, indices, 3)


# ------------------------------------------------------------------------------------ maximum over windows of any sizes


def _max_of_windows(x, rank, index, shape):
    """The maxima of the elements that `index` (planes, windows, elements of a window) numbers within a plane."""
    v = _rows(_batched(x, rank), rank)
    planes, count, size = index.shape
    index = ms.Tensor.from_numpy(np.ascontiguousarray(index, np.int64))
    found = _GATHER(v, 1, _RESHAPE(index, (planes, count * size)))
    found, index = _RESHAPE(found, (planes * count, size)), _RESHAPE(index, (planes * count, size))
    at = _RESHAPE(_ARGMAX(found if finite(v, lambda v: _SUM(v, 1)) else _ordered(found)), (planes * count, 1))
    return _result(_GATHER(found, 1, at), shape, x.dtype), _result(_GATHER(index, 1, at), shape, torch.int64)


def _flat_windows(axes, size):
    """Per-dimension positions (..., windows, elements) as numbers in an image of that size: (planes, windows, elements)."""
    flat = np.zeros((1, 1, 1), np.int64)
    for positions, n in zip(axes, size):
        if positions.min() < 0 or positions.max() >= n:
            raise Decline("a window outside of the image")
        planes = max(len(flat), len(positions))
        flat = flat[:, :, None, :, None] * n + positions[:, None, :, None, :]
        flat = flat.reshape(planes, flat.shape[1] * flat.shape[2], -1)
    return flat


@kernel("adaptive_max_pool3d")
def adaptive_max_pool3d(x, output_size):
    """A window ends in repetitions of its last element: the first of equal maxima counts."""
    if 0 in x.shape[1:] or min(output_size) < 1 or len(output_size) != 3 or not x.is_floating_point():
        raise Decline("empty")
    shape = (*x.shape[:-3], *output_size)
    if not x.shape[0]:
        return constant(0, x.dtype, shape), constant(0, torch.int64, shape)
    axes = []
    for n, m in zip(x.shape[-3:], output_size):
        start, stop = np.arange(m) * n // m, -(-(np.arange(m) + 1) * n // m)
        axes.append(np.minimum(start[:, None] + np.arange((stop - start).max()), stop[:, None] - 1)[None])
    flat = _flat_windows(axes, x.shape[-3:])
    return _max_of_windows(x, 3, np.broadcast_to(flat, (x.shape[:-3].numel(), *flat.shape[1:])), shape)


def _fractional(rank):
    name = f"fractional_max_pool{rank}d"

    @kernel(name)
    def forward(x, kernel_size, output_size, random_samples):
        k, out = _each(rank, kernel_size, output_size)
        if x.dim() not in (rank + 1, rank + 2) or 0 in x.shape[1:] or not x.is_floating_point():
            raise Decline("not an image")
        size, channels = x.shape[-rank:], x.shape[-rank - 1]
        batch = x.shape[0] if x.dim() == rank + 2 else 1
        if any(a + b + (rank == 3) > n + 1 or min(a, b) < 1 for n, a, b in zip(size, k, out)):  # so torch asks
            raise Decline("the windows do not fit")
        given = tuple(random_samples.shape)
        if random_samples.dtype is not x.dtype or given[1:] != (channels, rank) or given[0] < batch:
            raise Decline("one sample for each plane and dimension")
        samples = host(random_samples)[:batch].reshape(-1, rank)
        samples = samples.flip(1) if rank == 2 else samples
        shape = (*x.shape[:-rank], *out)
        if not x.shape[0]:
            return constant(0, x.dtype, shape), constant(0, torch.int64, shape)
        axes = [_intervals(samples[:, d], n, m, a)[:, :, None] + np.arange(a) for d, (n, m, a) in enumerate(zip(size, out, k))]
        return _max_of_windows(x, rank, _flat_windows(axes, size), shape)

    @kernel(f"{name}_backward")
    def backward(grad, x, kernel_size, output_size, indices):
        return _max_pool_grad(grad, x, indices, rank)


def _intervals(sample, n, count, size):
    """Where each plane's windows begin: (planes, count)."""
    last = sample.new_full((len(sample), 1), n - size, dtype=torch.int64)
    if count == 1:
        return last.numpy()
    sample, i = sample[:, None], torch.arange(count - 1, dtype=sample.dtype, device="cpu")
    alpha = torch.tensor(n - size, dtype=sample.dtype, device="cpu") / (count - 1)
    start = ((i + sample) * alpha).long() - (sample * alpha).long()  # rounded in the input's dtype, as torch does
    return torch.cat((start, last), 1).numpy()


_fractional(2)
_fractional(3)


# ------------------------------------------------------------------------------------------------------------- average
# AvgPool3D alone has padding, ceil_mode and a divisor; it is as fast over one image plane as AvgPool.


def _average(x, rank, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor, *, grad):
    k, s, p, _, shape = _window(x, rank, kernel_size, stride, padding, (1,), ceil_mode)
    if divisor == 0 or not x.is_floating_point():
        raise Decline("no average")
    if x.dtype is torch.float64 or divisor and divisor < 0:
        return _average_by_tensors(x, rank, k, s, p, shape, count_include_pad, divisor, grad), shape
    one, zero = (1,) * (3 - rank), (0,) * (3 - rank)
    pads = tuple(v for v in zero + p for _ in (0, 1))
    mode = () if grad else ("pad",)
    make = _grad_ops.AvgPool3DGrad if grad else P.AvgPool3D
    # AvgPool3DGrad forgets a divisor where the padding does not count.
    options = (one + k, one + s, *mode, pads, ceil_mode, count_include_pad or bool(divisor), divisor or 0)
    return _primitive(make, *options), shape


def _average_by_tensors(x, rank, k, s, p, shape, count_include_pad, divisor, grad):
    """What AvgPool3D, which computes float64 in float32, leaves out. It is called as that is."""
    n = tuple(x.shape[-rank:])

    def forward(v):
        v = wrap(v)
        v = v.reshape(*v.shape[:2], *n)
        return read(windows.average(v, k, s, p, shape[-rank:], count_include_pad, divisor))

    def backward(_, v):
        v = wrap(v)
        v = v.reshape(*v.shape[:2], *shape[-rank:])
        return read(windows.average_input(v, n, k, s, p, count_include_pad, divisor))

    return backward if grad else forward


def _volume(v, rank):
    return v if rank == 3 else _RESHAPE(v, (*v.shape[:2], 1, *v.shape[2:]))


@kernel("avg_pool2d", layout="image")
def avg_pool2d(x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None, rank=2):
    options = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    primitive, shape = _average(x, rank, *options, grad=False)
    if not x.shape[0]:
        return constant(0, x.dtype, shape)
    return _result(primitive(_volume(_batched(x, rank), rank)), shape, x.dtype)


@kernel("avg_pool3d")
def avg_pool3d(x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None):
    if any(n < k for n, k in zip(x.shape[-3:], (*kernel_size, *kernel_size[-1:] * 2))):  # before padding, in 3d only
        raise Decline("a window larger than the input")
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
