"""Softmax and log-softmax with their gradients."""

import math

import torch

from ..elementary import exp, in_double, narrow, widen
from ..registry import Decline, kernel
from ..storage import TORCH_DTYPE, cast, constant, ms, read
from ..tracing import finite
from .pointwise import WIDER
from .reduction import dims_of, sum_along, with_index

P = ms.ops

_SUB, _MUL, _EXP, _LOG = P.Sub(), P.Mul(), P.Exp(), P.Log()
_EQ, _ALL, _MASKED_FILL = P.Equal(), P.ReduceAll(True), P.MaskedFill()
_SOFTMAX = {}  # dim: primitive
_FEW = 4096  # float32 terms that are summed as exactly as PyTorch sums them


def softmax_of(v, dim):
    """In float64, where Softmax is right: in float32 it is off by 7e-6, and infinity or NaN spoil the rows behind."""
    if dim not in _SOFTMAX:
        _SOFTMAX[dim] = in_double(P.Softmax(dim))
    return _SOFTMAX[dim](v)


def _safe_softmax_of(v, dim):
    """As `softmax_of`, with zeros for a row of -inf."""
    y = softmax_of(v, dim)
    if finite(y, lambda y: sum_along(y, dim)):
        return y
    dtype = TORCH_DTYPE[v.dtype]
    return _MASKED_FILL(y, _ALL(_EQ(v, constant(-math.inf, dtype)), (dim,)), constant(0, dtype))


def _log_softmax_of(v, dim):
    """Composed: the primitive is off by 5e-6, with a bias, and gives -inf beside NaN. Only the exponentials need float64,
    and sums of so many that float32 would add to the error of `shifted`. A graph finds the exponentials for the gradient."""
    _, largest = with_index(v, dim, True, True)  # a NaN that it passes over comes back by the sum; faster than ReduceMax
    shifted = _SUB(v, largest)
    terms = _EXP(widen(shifted))
    total = sum_along(narrow(terms, v.dtype) if v.shape[dim] <= _FEW else terms, dim)
    return _SUB(shifted, narrow(_LOG(widen(total)), v.dtype))


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


_forward("_softmax", softmax_of)
_forward("_log_softmax", _log_softmax_of)


def _softmax_gradient(g, y, dim):
    return _MUL(y, _SUB(g, sum_along(_MUL(g, y), dim)))


def _log_softmax_gradient(g, y, dim):
    return _SUB(g, _MUL(exp(y), sum_along(g, dim)))


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
