"""Normalizations: batch, layer and group.

All are made of BatchNorm, by far the fastest primitive that scales by row: layer and group normalization are batch
normalization of one sample whose channels are the rows to normalize.
"""

import functools
import math

import numpy as np
import torch
from mindspore.ops.operations import _grad_ops
from torch._decomp import decomposition_table

from ..registry import Decline, aten, kernel
from ..storage import cast, constant, ms, read, read_fresh, write
from ..tracing import lasting, recording

P = ms.ops
HALF = {torch.float16, torch.bfloat16}  # computed in float32
TINY = 1e-37  # an epsilon that is none, for variances that contain theirs
_RESHAPE, _ADD, _MUL, _SUM, _TILE = P.Reshape(), P.Add(), P.Mul(), P.ReduceSum(), P.Tile()
_RSQRT, _SQUARE, _RECIPROCAL = P.Rsqrt(), P.Square(), P.Reciprocal()
_LAYER_NORM_GRAD = _grad_ops.LayerNormGrad(1, 1)
_LAYER_NORM_GRAD.add_prim_attr("epsilon", TINY)  # without this attribute it adds 1e-7 to a variance


@functools.lru_cache(256)
def _norm(training, eps, momentum=0.1):
    return P.BatchNorm(is_training=training, epsilon=eps, momentum=momentum)


@functools.lru_cache(256)
def _norm_grad(training, eps):
    return _grad_ops.BatchNormGrad(is_training=training, epsilon=eps)


@functools.lru_cache(256)
def _layer_norm(eps):
    return P.LayerNorm(1, 1, eps)


@functools.lru_cache(1024)
def _full(value, n):
    return lasting(constant(value, torch.float32, (n,)))


_UNREAD = 0.7182818  # a graph keeps equal constants once: none may be equal to these, which change


def _scratch(n):
    """Running statistics that nobody reads, for a training BatchNorm to change in place."""
    return ms.Tensor.from_numpy(np.full(n, _UNREAD, np.float32))


def _value(x, shape=None):
    v = cast(read(x), torch.float32)
    return v if shape is None or v.shape == shape else _RESHAPE(v, shape)


def _result(v, like):
    v = cast(v, like.dtype)
    return v if v.shape == tuple(like.shape) else _RESHAPE(v, tuple(like.shape))


def _vector(x, default, n):
    return _full(default, n) if x is None else _value(x, (n,))


def _rstd(variance, eps):
    return _RSQRT(_ADD(variance, constant(eps, torch.float32)))


def _variance(rstd, n):
    """Variance plus epsilon, from its reciprocal square root."""
    return _RECIPROCAL(_SQUARE(_value(rstd, (n,))))


def _decomposed(op, *args):
    """What torch makes of the op, for what BatchNorm lacks: float64, unusual epsilons and momentums."""
    return tuple(None if y is None else read(y) for y in decomposition_table[op](*args))


def _statistics_dtype(x, *parameters):
    """Half-precision inputs may come with float32 parameters; then the statistics are float32 too."""
    dtypes = {p.dtype for p in parameters if p is not None} or {x.dtype}
    if len(dtypes) > 1 or dtypes - {x.dtype} - ({torch.float32} if x.dtype in HALF else set()):
        raise Decline("mixed dtypes")
    return dtypes.pop()


# --------------------------------------------------------------------------------------------------------------- batch


def _image(shape):
    """`shape` in at most four dimensions, which BatchNorm has."""
    return tuple(shape) if len(shape) < 5 else (*shape[:3], math.prod(shape[3:]))


@kernel("native_batch_norm", "_native_batch_norm_legit", layout="image")
def batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
    dtype = _statistics_dtype(x, weight, bias, running_mean, running_var)
    if x.dtype is torch.float64 or not 0 < eps <= 1 or (training and not 0 < momentum <= 1):
        y, *statistics = _decomposed(
            aten.native_batch_norm.default, x, weight, bias, running_mean, running_var, training, momentum, eps
        )
        return y, *(cast(s, dtype) if training else constant(0, dtype, (0,)) for s in statistics)
    if x.dim() < 2 or not x.numel() or (training and x.numel() == x.shape[1]):
        raise Decline("too few values")
    n, shape = x.shape[1], _image(x.shape)
    for v in (weight, bias, running_mean, running_var):
        if v is not None and tuple(v.shape) != (n,):
            raise Decline("mismatched parameters")
    v, scale, shift = _value(x, shape), _vector(weight, 1, n), _vector(bias, 0, n)
    if not training:
        y = _norm(False, eps)(v, scale, shift, _value(running_mean), _value(running_var))[0]
        return _result(y, x), constant(0, dtype, (0,)), constant(0, dtype, (0,))
    if recording():
        return _batch_norm_in_graph(x, v, scale, shift, running_mean, running_var, momentum, eps, dtype)
    # The primitive updates the running statistics as torch does, but in place: it gets copies, buffers never change.
    mean, var = (_scratch(n) if r is None else _copy(_value(r)) for r in (running_mean, running_var))
    y, _, _, batch_mean, batch_var = _norm(True, eps, momentum)(v, scale, shift, mean, var)
    for running, value in ((running_mean, mean), (running_var, var)):
        if running is not None:
            write(running, value)
    return _result(y, x), cast(batch_mean, dtype), cast(_rstd(batch_var, eps), dtype)


def _batch_norm_in_graph(x, v, scale, shift, running_mean, running_var, momentum, eps, dtype):
    """In a graph nothing is changed in place: the running statistics are computed from the batch's."""
    n = scale.shape[0]
    y, _, _, mean, var = _norm(True, eps)(v, scale, shift, _scratch(n), _scratch(n))
    count = v.size // n
    for running, new in ((running_mean, mean), (running_var, _MUL(var, constant(count / (count - 1), torch.float32)))):
        if running is not None:
            old = _MUL(_value(running), constant(1 - momentum, torch.float32))
            write(running, _ADD(old, _MUL(new, constant(momentum, torch.float32))))
    return _result(y, x), cast(mean, dtype), cast(_rstd(var, eps), dtype)


def _copy(v):
    return ms.Tensor.from_numpy(np.array(v.asnumpy()))


@kernel("_native_batch_norm_legit.no_stats", layout="image")
def batch_norm_no_stats(x, weight, bias, training, momentum, eps):
    return batch_norm(x, weight, bias, None, None, training, momentum, eps)


@kernel("_batch_norm_with_update", layout="image")
def batch_norm_with_update(x, weight, bias, running_mean, running_var, momentum, eps):
    values = batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return *values, constant(0, torch.uint8, (0,))


@kernel("native_batch_norm_backward")
def batch_norm_backward(grad, x, weight, running_mean, running_var, save_mean, save_invstd, training, eps, mask):
    if x.dtype is torch.float64 or not 0 < eps <= 1:
        return _decomposed(
            aten.native_batch_norm_backward.default,
            grad, x, weight, running_mean, running_var, save_mean, save_invstd, training, eps, mask,
        )  # fmt: skip
    if not x.numel() or grad.dtype is not x.dtype or grad.shape != x.shape:
        raise Decline("mismatched gradient")
    n, shape = x.shape[1], _image(x.shape)
    if training:
        mean, variance, eps = _value(save_mean, (n,)), _variance(save_invstd, n), TINY
    else:
        mean, variance = _value(running_mean, (n,)), _value(running_var, (n,))
    run = _norm_grad(training, eps)
    grads = run(_value(grad, shape), _value(x, shape), _vector(weight, 1, n), mean, variance, variance)
    like = (x, weight, weight)  # the bias has the weight's dtype
    return tuple(_result(g, t if t is not None else save_mean) if m else None for g, t, m in zip(grads, like, mask))


# ------------------------------------------------------------------------------------------------------------- by rows


def _normalized(v, m, mean, variance):
    """The m rows of v, normalized with known statistics; `variance` contains epsilon."""
    rows = _RESHAPE(v, (1, m, -1))
    return _norm(False, TINY)(rows, _full(1, m), _full(0, m), mean, variance)[0]


def _rows_grad(grad, v, m, mean, variance):
    """The gradient of normalizing the m rows of v."""
    rows = (_RESHAPE(grad, (1, m, -1)), _RESHAPE(v, (1, m, -1)))
    return _norm_grad(True, TINY)(*rows, _full(1, m), mean, variance, variance)[0]


# --------------------------------------------------------------------------------------------------------------- layer

_LARGE = 1 << 16  # elements from which a composition beats LayerNormGrad, which is slow by element but one call


@kernel("native_layer_norm")
def layer_norm(x, normalized_shape, weight, bias, eps):
    dtype = _statistics_dtype(x, weight, bias)
    if x.dtype is torch.float64 or not 0 < eps <= 1:
        y, *statistics = _decomposed(aten.native_layer_norm.default, x, normalized_shape, weight, bias, eps)
        return y, *(cast(s, dtype) for s in statistics)
    m, n = _matrix(x, normalized_shape, weight, bias)
    statistics = (*x.shape[: x.dim() - len(normalized_shape)], *(1,) * len(normalized_shape))
    if not x.numel():
        if m:
            raise Decline("empty rows")
        return constant(0, x.dtype, tuple(x.shape)), *(constant(0, dtype, statistics) for _ in (0, 1))
    y, mean, variance = _layer_norm(eps)(_value(x, (m, n)), _vector(weight, 1, n), _vector(bias, 0, n))
    return _result(y, x), *(_RESHAPE(cast(s, dtype), statistics) for s in (mean, _rstd(variance, eps)))


def _matrix(x, normalized_shape, *parameters):
    """(rows, columns) of x for layer normalization."""
    inner = tuple(normalized_shape)
    if not inner or tuple(x.shape[x.dim() - len(inner) :]) != inner:
        raise Decline("mismatched shapes")
    if any(p is not None and tuple(p.shape) != inner for p in parameters):
        raise Decline("mismatched parameters")
    return math.prod(x.shape[: x.dim() - len(inner)]), math.prod(inner)


@kernel("native_layer_norm_backward")
def layer_norm_backward(grad, x, normalized_shape, mean, rstd, weight, bias, mask):
    if x.dtype is torch.float64:
        return _decomposed(
            aten.native_layer_norm_backward.default, grad, x, normalized_shape, mean, rstd, weight, bias, mask
        )
    m, n = _matrix(x, normalized_shape, weight, bias)
    like = (x, weight, bias)
    if not x.numel():
        return tuple(constant(0, t.dtype, tuple(t.shape)) if need else None for t, need in zip(like, mask))
    dy, v, variance = _value(grad, (m, n)), _value(x, (m, n)), _variance(rstd, m)
    if m * n < _LARGE:
        statistics = _RESHAPE(variance, (m, 1)), _value(mean, (m, 1))
        grads = _LAYER_NORM_GRAD(v, dy, *statistics, _vector(weight, 1, n))
    else:
        mean, dx, dw, db = _value(mean, (m,)), None, None, None
        if mask[0]:
            scaled = dy if weight is None else _MUL(dy, _TILE(_value(weight, (1, n)), (m, 1)))
            dx = _rows_grad(scaled, v, m, mean, variance)
        if mask[1]:
            dw = _SUM(_MUL(dy, _RESHAPE(_normalized(v, m, mean, variance), (m, n))), 0)
        if mask[2]:
            db = _SUM(dy, 0)
        grads = dx, dw, db
    return tuple(_result(g, t) if need else None for g, t, need in zip(grads, like, mask))


# --------------------------------------------------------------------------------------------------------------- group


@kernel("native_group_norm", layout="image")
def group_norm(x, weight, bias, n, channels, pixels, groups, eps):
    dtype = _statistics_dtype(x, weight, bias)
    if x.dtype is torch.float64 or not 0 < eps <= 1:
        y, *statistics = _decomposed(aten.native_group_norm.default, x, weight, bias, n, channels, pixels, groups, eps)
        return y, *(cast(s, dtype) for s in statistics)
    m = n * groups
    if not x.numel():
        return constant(0, x.dtype, tuple(x.shape)), *(constant(0, dtype, (n, groups)) for _ in (0, 1))
    rows = _value(x, (1, m, channels // groups * pixels))
    y, _, _, mean, variance = _norm(True, eps)(rows, _full(1, m), _full(0, m), _scratch(m), _scratch(m))
    if weight is not None or bias is not None:
        parameters = _vector(weight, 1, channels), _vector(bias, 0, channels)
        y = _RESHAPE(y, (n, channels, pixels))
        y = _norm(False, TINY)(y, *parameters, _full(0, channels), _full(1, channels))[0]
    return _result(y, x), *(_RESHAPE(cast(s, dtype), (n, groups)) for s in (mean, _rstd(variance, eps)))


@kernel("native_group_norm_backward")
def group_norm_backward(grad, x, mean, rstd, weight, n, channels, pixels, groups, mask):
    if x.dtype is torch.float64:
        return _decomposed(
            aten.native_group_norm_backward.default, grad, x, mean, rstd, weight, n, channels, pixels, groups, mask
        )
    if grad.shape != x.shape:
        raise Decline("mismatched gradient")
    if not x.numel():
        return tuple(
            constant(0, x.dtype, s) if need else None for s, need in zip((x.shape, (channels,), (channels,)), mask)
        )
    m, image = n * groups, (n, channels, pixels)
    v, dy, mean, variance = _value(x, image), _value(grad, image), _value(mean, (m,)), _variance(rstd, m)
    dx, dw, db = dy, None, None
    if weight is not None or mask[1] or mask[2]:
        y = _RESHAPE(_normalized(v, m, mean, variance), image)
        zero, one = _full(0, channels), _full(1, channels)
        dx, dw, db = _norm_grad(False, TINY)(dy, y, _vector(weight, 1, channels), zero, one, one)[:3]
    dx = _rows_grad(dx, v, m, mean, variance) if mask[0] else None
    parameter = x if weight is None else weight
    grads = ((dx, tuple(x.shape), x.dtype), (dw, (channels,), parameter.dtype), (db, (channels,), parameter.dtype))
    return tuple(_RESHAPE(cast(g, d), s) if need else None for (g, s, d), need in zip(grads, mask))


# -------------------------------------------------------------------------------------------------------------- weight


@kernel("_weight_norm_interface_backward")
def weight_norm_backward(grad, v, g, norms, dim):
    """The gradients of w = v * g / |v|, the norm taken over all dimensions but `dim`."""
    others = [d for d in range(v.dim()) if d != dim]
    inner = (grad * v).sum(others, keepdim=True) / norms
    return read_fresh((grad - v * (inner / norms)) * (g / norms)), read_fresh(inner)
