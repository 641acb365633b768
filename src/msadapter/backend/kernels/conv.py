"""Convolutions of one to three spatial dimensions, plain and transposed, and their gradients.

`convolution` itself is registered, ahead of torch's choice of a backend. A transposed convolution is the gradient of
a plain one with respect to its input; the three primitives of a rank therefore serve both directions.
"""

import functools
import math

import torch
from mindspore.ops.operations import _grad_ops, nn_ops

from ..registry import Decline, aten, kernel, shortcut
from ..storage import cast, constant, ms, read, read_fresh
from . import windows

HALF = {torch.float16, torch.bfloat16}  # computed in float32
BY_WINDOWS = {torch.float64, torch.int64}  # what the primitives lack
_RESHAPE, _BIAS, _BIAS_GRAD = ms.ops.Reshape(), ms.ops.BiasAdd(), _grad_ops.BiasAddGrad()
_primitives: dict = {}  # (kind, geometry) -> primitive


class Geometry:
    """The hyper-parameters of one call: torch's lists spelled out, one-dimensional ones with a height of 1."""

    def __init__(self, x, weight, stride, padding, dilation, transposed, output_padding, groups):
        n = x.dim() - 2
        if n not in (1, 2, 3) or weight.dim() != x.dim() or x.dtype is not weight.dtype or groups < 1:
            raise Decline("mismatched operands")
        if x.dtype not in (torch.float32, *BY_WINDOWS) and x.dtype not in HALF:
            raise Decline(f"no convolution in {x.dtype}")
        self.stride, self.padding, self.dilation, self.extra = (
            tuple(v) * n if len(v) == 1 else tuple(v) for v in (stride, padding, dilation, output_padding)
        )
        self.kernel, self.groups, self.transposed = tuple(weight.shape[2:]), groups, transposed
        channels = weight.shape[0] if transposed else weight.shape[1] * groups
        if x.shape[1] != channels or weight.shape[0] % groups or not weight.numel() or min(self.padding) < 0:
            raise Decline("mismatched shapes")
        if min(self.stride) < 1 or min(self.dilation) < 1:
            raise Decline("non-positive stride or dilation")
        spatial = [self._size(d, x.shape[2 + d]) for d in range(n)]
        if min(spatial) < (0 if transposed else 1):
            raise Decline("the kernel is larger than the input")
        self.out = (x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0], *spatial)

    def _size(self, d, n):
        s, p, reach = self.stride[d], self.padding[d], self.dilation[d] * (self.kernel[d] - 1)
        if not self.transposed:
            return (n + 2 * p - reach - 1) // s + 1
        if not 0 <= self.extra[d] < max(s, self.dilation[d]):
            raise Decline("output_padding not smaller than stride or dilation")
        return (n - 1) * s - 2 * p + reach + 1 + self.extra[d]

    @property
    def parts(self):
        """What `windows` calls a convolution by."""
        return self.stride, self.padding, self.dilation, self.groups

    @property
    def wide(self):
        """Whether the extra rows of a transposed convolution are more than its primitive can give."""
        return self.transposed and any(e >= s for e, s in zip(self.extra, self.stride))

    def primitive(self, kind, weight):
        """`kind` in forward, input, filter: of the plain convolution that this one is, or is the gradient of."""
        key = (kind, weight.shape[0], self.kernel, self.stride, self.padding, self.dilation, self.groups)
        found = _primitives.get(key)
        if found is None:
            rank3 = len(self.kernel) == 3
            one = () if len(self.kernel) > 1 else (1,)
            zero = () if one == () else (0,)
            pad = tuple(p for p in zero + self.padding for _ in (0, 1))
            options = {"pad_mode": "pad", "pad": pad, "stride": one + self.stride, "dilation": one + self.dilation}
            if kind == "filter" and not rank3:
                options["pad_list"] = pad
            make = _MAKE[kind][rank3]
            found = _primitives[key] = make(weight.shape[0], one + self.kernel, group=self.groups, **options)
        return found


_MAKE = {  # for up to two dimensions, for three
    "forward": (ms.ops.Conv2D, ms.ops.Conv3D),
    "input": (ms.ops.Conv2DBackpropInput, nn_ops.Conv3DBackpropInput),
    "filter": (_grad_ops.Conv2DBackpropFilter, _grad_ops.Conv3DBackpropFilter),
}


def _value(x):
    """x in float32, one-dimensional images with a height of 1."""
    v = cast(read(x), torch.float32)
    return _RESHAPE(v, _shape(x.shape)) if x.dim() == 3 else v


def _shape(shape):
    return (*shape[:2], 1, shape[2]) if len(shape) == 3 else tuple(shape)


def _result(v, shape, dtype):
    v = cast(v, dtype)
    return v if v.shape == tuple(shape) else _RESHAPE(v, tuple(shape))


def _forward(g, weight, x, w):
    return g.primitive("forward", weight)(x, w)


def _input(g, weight, grad, w, shape):
    first, second = (w, grad) if len(g.kernel) == 3 else (grad, w)
    return g.primitive("input", weight)(first, second, _shape(shape))


def _filter(g, weight, grad, x):
    first, second = (x, grad) if len(g.kernel) == 3 else (grad, x)
    return g.primitive("filter", weight)(first, second, _shape(weight.shape))


def _flat(v, shape):
    """v as an image: BiasAdd and its gradient, 10 times faster than broadcasting, know two spatial dimensions."""
    return _RESHAPE(v, (*shape[:3], math.prod(shape[3:]))) if len(shape) == 5 else v


@kernel("convolution", "convolution_overrideable", layout="image")
def convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    g = Geometry(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    if bias is not None and (tuple(bias.shape) != g.out[1:2] or bias.dtype is not x.dtype):
        raise Decline("mismatched bias")
    if not x.numel() or 0 in g.out:
        if x.numel() or (0 not in g.out):
            raise Decline("an empty side")
        return constant(0, x.dtype, g.out)
    if x.dtype in BY_WINDOWS or g.wide:
        return _by_tensors(g, x, weight, bias)
    if transposed:
        y = _input(g, weight, _value(x), _value(weight), g.out)
    else:
        y = _forward(g, weight, _value(x), _value(weight))
    if bias is not None:
        y = _BIAS(_flat(y, g.out), cast(read(bias), torch.float32))
    return _result(y, g.out, x.dtype)


def _by_tensors(g, x, weight, bias):
    if x.dtype in BY_WINDOWS:
        y = (windows.convolve_input if g.transposed else windows.convolve)(x, weight, *g.parts, g.out[2:])
    else:  # without padding, then cut to size: the extra rows are those that the padding cuts off
        y = aten.convolution(x, weight, None, g.stride, [0], g.dilation, True, [0], g.groups)
        y = windows.padded(y, [-p for p in g.padding], [e - p for e, p in zip(g.extra, g.padding)])
    return read_fresh(y if bias is None else y + bias.reshape(-1, *[1] * len(g.kernel)))


def _gradients_by_tensors(g, grad, x, weight, mask):
    dims = [0, *range(2, grad.dim())]
    if x.dtype not in BY_WINDOWS:
        full = windows.padded(grad, g.padding, [p - e for e, p in zip(g.extra, g.padding)])
        geometry = g.stride, [0], g.dilation, True, [0], g.groups
        dx, dw, _ = aten.convolution_backward(full, x, weight, None, *geometry, [*mask[:2], False])
    else:
        small, large = (x, grad) if g.transposed else (grad, x)
        dx = dw = None
        if mask[0]:
            to_x = windows.convolve if g.transposed else windows.convolve_input
            dx = to_x(grad, weight, *g.parts, x.shape[2:])
        if mask[1]:
            dw = windows.convolve_weight(large, small, weight, *g.parts)
    return tuple(v if v is None else read_fresh(v) for v in (dx, dw, grad.sum(dims) if mask[2] else None))


@kernel("convolution_backward")
def convolution_backward(grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask):
    g = Geometry(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    if tuple(grad.shape) != g.out or grad.dtype is not x.dtype:
        raise Decline("mismatched gradient")
    need_x, need_weight, need_bias = mask
    if not grad.numel():
        needs = ((need_x, x.shape), (need_weight, weight.shape), (need_bias, g.out[1:2]))
        return tuple(constant(0, x.dtype, tuple(shape)) if need else None for need, shape in needs)
    if x.dtype in BY_WINDOWS or g.wide:
        return _gradients_by_tensors(g, grad, x, weight, mask)
    dy, dx, dw, db = _value(grad), None, None, None
    if need_x:
        w = _value(weight)
        dx = _forward(g, weight, dy, w) if transposed else _input(g, weight, dy, w, x.shape)
        dx = _result(dx, x.shape, x.dtype)
    if need_weight:
        v = _value(x)
        dw = _result(_filter(g, weight, v, dy) if transposed else _filter(g, weight, dy, v), weight.shape, x.dtype)
    if need_bias:
        db = cast(_BIAS_GRAD(_flat(dy, g.out)), x.dtype)
    return dx, dw, db


@kernel("convolution_backward_overrideable")
def backward_overrideable(grad, x, weight, stride, padding, dilation, transposed, output_padding, groups, mask):
    return convolution_backward(grad, x, weight, None, stride, padding, dilation, transposed, output_padding, groups, mask)


# ----------------------------------------------------------------------------------------------------- sliding windows

_IM2COL, _COL2IM = functools.cache(ms.ops.Im2Col), functools.cache(ms.ops.Col2Im)


def _windows(size, kernel_size, dilation, padding, stride):
    """How many windows an image of `size` has, per dimension."""
    if min(*kernel_size, *dilation, *stride) < 1 or min(padding) < 0:
        raise Decline("not a window")
    lists = zip(size, kernel_size, dilation, padding, stride)
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in lists]


@kernel("im2col")
def im2col(x, kernel_size, dilation, padding, stride):
    if x.dim() not in (3, 4) or 0 in x.shape[-3:]:
        raise Decline("not an image")
    kernel_size, dilation, padding, stride = map(tuple, (kernel_size, dilation, padding, stride))
    count = _windows(x.shape[-2:], kernel_size, dilation, padding, stride)
    if min(count) < 1:
        raise Decline("no window")
    shape = (*x.shape[:-3], x.shape[-3] * math.prod(kernel_size), math.prod(count))
    if not x.numel():
        return constant(0, x.dtype, shape)
    v = cast(read(x), torch.float32) if x.dtype in HALF else read(x)
    v = _IM2COL(kernel_size, stride, dilation, padding)(_RESHAPE(v, (-1, *x.shape[-3:])))
    return _result(v, shape, x.dtype)


@kernel("col2im")
def col2im(x, output_size, kernel_size, dilation, padding, stride):
    kernel_size, dilation, padding, stride = map(tuple, (kernel_size, dilation, padding, stride))
    count, area = _windows(output_size, kernel_size, dilation, padding, stride), math.prod(kernel_size)
    if x.dim() not in (2, 3) or x.shape[-1] != math.prod(count) or x.shape[-2] % area or min(count) < 1:
        raise Decline("mismatched windows")
    channels = x.shape[-2] // area
    shape = (*x.shape[:-2], channels, *output_size)
    if not x.numel():
        return constant(0, x.dtype, shape)
    v = cast(read(x), torch.float32) if x.dtype in HALF else read(x)
    v = _RESHAPE(v, (-1, channels, area, x.shape[-1]))
    v = _COL2IM(kernel_size, dilation, padding, stride)(v, ms.Tensor(list(output_size), ms.int32))
    return _result(v, shape, x.dtype)


@shortcut("convolution")
def _traced(run):
    def convolution(*args):
        if torch._C._get_tracing_state() is not None:  # torch.jit.trace notes `_convolution`, and only that
            return aten._convolution.default(*args, False, False, False, False)
        return run(*args)

    return convolution
