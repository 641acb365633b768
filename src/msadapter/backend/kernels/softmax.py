"""Softmax and log-softmax with their gradients."""

import math

import torch
from mindspore.ops.auto_generate import gen_ops_prim as prim

from ..elementary import exp, log
from ..registry import Decline, kernel
from ..storage import TORCH_DTYPE, cast, constant, ms, read
from .pointwise import WIDER
from .reduction import dims_of, with_index

P = ms.ops

_SUM, _SUB, _MUL, _DIV = prim.SumExt(), P.Sub(), P.Mul(), P.RealDiv()
_DIV_NO_NAN, _EQ, _ALL, _MASKED_FILL = P.DivNoNan(), P.Equal(), P.ReduceAll(True), P.MaskedFill()
_SOFTMAX = {}  # dim: primitive


def _primitive(dim):
    if dim not in _SOFTMAX:
        _SOFTMAX[dim] = P.Softmax(dim)
    return _SOFTMAX[dim]


def _softmax_of(v, dim):
    """Softmax leaves a row with NaN or infinity half done, and makes zeros of a row of -inf: dividing by the row's sum,
    1 otherwise, turns all of it into torch's NaN."""
    y = _primitive(dim)(v)
    return _DIV(y, _SUM(y, (dim,), True, None))


def _safe_softmax_of(v, dim):
    """As `_softmax_of`, with zeros for a row of -inf. In float32, 0 / 0 has to be 0; in float64 such a row is NaN."""
    if v.dtype != ms.float32:
        empty = _ALL(_EQ(v, constant(-math.inf, TORCH_DTYPE[v.dtype])), (dim,))
        return _MASKED_FILL(_softmax_of(v, dim), empty, constant(0, TORCH_DTYPE[v.dtype]))
    y = _primitive(dim)(v)
    return _DIV_NO_NAN(y, _SUM(y, (dim,), True, None))


def _log_softmax_of(v, dim):
    shifted = _SUB(v, with_index(v, dim, True, True)[1])
    return _SUB(shifted, log(_SUM(exp(shifted), (dim,), True, None)))


def _forward(name, fn):
    @kernel(name)
    def forward(x, dim, half_to_float):
        if not x.dtype.is_floating_point or (half_to_float and x.dtype is not torch.float16):
            raise Decline("softmax is for floats")
        dims = dims_of(x, dim)
        dtype = torch.float32 if half_to_float else x.dtype
        if x.numel() == 0:
            return constant(0, dtype, tuple(x.shape))
        v = cast(read(x), WIDER.get(x.dtype, x.dtype))
        if not dims:
            return cast(P.Reshape()(fn(P.Reshape()(v, (1,)), 0), ()), dtype)
        return cast(fn(v, dims[0]), dtype)


@kernel("_safe_softmax")
def safe_softmax(x, dim, dtype=None):
    if x.dtype is not (dtype or x.dtype) or not x.dtype.is_floating_point:
        raise Decline("another dtype")
    dims = dims_of(x, dim)
    if x.numel() == 0 or not dims:
        raise Decline("nothing to sum")
    return cast(_safe_softmax_of(cast(read(x), WIDER.get(x.dtype, x.dtype)), dims[0]), x.dtype)


_forward("_softmax", _softmax_of)
_forward("_log_softmax", _log_softmax_of)


def _softmax_gradient(g, y, dim):
    return _MUL(y, _SUB(g, _SUM(_MUL(g, y), (dim,), True, None)))


def _log_softmax_gradient(g, y, dim):
    return _SUB(g, _MUL(exp(y), _SUM(g, (dim,), True, None)))


def _backward(name, fn):
    @kernel(name)
    def backward(grad, output, dim, input_dtype):
        dims = dims_of(output, dim)
        if grad.dtype is not output.dtype:
            raise Decline("gradient and output differ in dtype")
        if output.numel() == 0:
            return constant(0, input_dtype, tuple(output.shape))
        wide = WIDER.get(output.dtype, output.dtype)
        g, y = cast(read(grad), wide), cast(read(output), wide)
        if not dims:
            return constant(0, input_dtype, ())
        return cast(fn(g, y, dims[0]), input_dtype)


_backward("_softmax_backward_data", _softmax_gradient)
_backward("_log_softmax_backward_data", _log_softmax_gradient)
