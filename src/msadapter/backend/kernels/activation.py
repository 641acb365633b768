"""Activations and their gradients.

Select is an order of magnitude slower than arithmetic on large tensors, so branches are written with Maximum, Minimum
and ReluGrad (`_where_positive`). A number comes first in Maximum and Minimum: they answer the second operand when the
comparison fails, and so hand on NaN.
"""

import math

import numpy as np
import torch
from mindspore.ops.operations import _grad_ops as grad_ops

from .. import elementary as E
from ..registry import Decline, kernel
from ..storage import ms, read
from .binary import add_scaled
from .pointwise import WIDER, compute, has_nan, scalar

P = ms.ops

_ADD, _SUB, _MUL, _DIV, _NEG, _ABS, _SQUARE = P.Add(), P.Sub(), P.Mul(), P.RealDiv(), P.Neg(), P.Abs(), P.Square()
_MAXIMUM, _MINIMUM, _SELECT, _MASKED_FILL = P.Maximum(), P.Minimum(), P.Select(), P.MaskedFill()
_GREATER, _LESS, _LESS_EQUAL = P.Greater(), P.Less(), P.LessEqual()
_ERF = P.Erf()
_SIGMOID_GRAD, _TANH_GRAD = grad_ops.SigmoidGrad(), grad_ops.TanhGrad()
_where_positive = grad_ops.ReluGrad()  # (g, x): g where x > 0, else 0


def activation(*names):
    """Register fn(scalar, *values): the tensors of the call become values, `scalar(number)` a value of their dtype."""

    def register(fn):
        @kernel(*names, layout=True)
        def run(*args, **kwargs):
            tensors = [a for a in args if isinstance(a, torch.Tensor)]
            rest = [a for a in args if not isinstance(a, torch.Tensor)]
            dtype = tensors[0].dtype
            if not dtype.is_floating_point or any(t.dtype is not dtype for t in tensors):
                raise Decline("activations are for floats of one dtype")
            wide = WIDER.get(dtype, dtype)
            return compute(lambda *vs: fn(_Scalars(wide), *vs, *rest, **kwargs), dtype, *tensors, wide=WIDER)

        return run

    return register


class _Scalars:
    """Numbers as values of one dtype."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __call__(self, number):
        return scalar(number, self.dtype)


def _between(c, v, low, high):
    return _MINIMUM(c(high), _MAXIMUM(c(low), v))


# -------------------------------------------------------------------------------------------------------- ReLU's family


@activation("threshold_backward")
def threshold_backward(c, g, x, threshold):
    """g where x is above the threshold or NaN, which ReluGrad takes for below: Minimum makes a one of it."""
    if threshold == 0:
        return _where_positive(g, _MINIMUM(x, c(1)) if has_nan(x) else x)
    return _MASKED_FILL(g, _LESS_EQUAL(x, c(threshold)), c(0))


@activation("threshold")
def threshold(c, x, threshold, value):
    return _MASKED_FILL(x, _LESS_EQUAL(x, c(threshold)), c(value))


@activation("leaky_relu")
def leaky_relu(c, x, negative_slope=0.01):
    if 0 < negative_slope <= 1:
        return _MAXIMUM(_MUL(x, c(negative_slope)), x)
    return _SELECT(_GREATER(x, c(0)), x, _MUL(x, c(negative_slope)))


@activation("leaky_relu_backward")
def leaky_relu_backward(c, g, x, negative_slope, self_is_result):
    if negative_slope == 0:
        return _where_positive(g, x)
    return add_scaled(_MUL(g, c(negative_slope)), _where_positive(g, x), 1 - negative_slope, c.dtype)


@activation("hardtanh")
def hardtanh(c, x, min_val=-1, max_val=1):
    return _between(c, x, min_val, max_val)


@activation("hardtanh_backward")
def hardtanh_backward(c, g, x, min_val, max_val):
    if has_nan(x):
        return _MASKED_FILL(g, P.LogicalOr()(_LESS_EQUAL(x, c(min_val)), _LESS_EQUAL(c(max_val), x)), c(0))
    above = x if min_val == 0 else _SUB(x, c(min_val))
    return _where_positive(_where_positive(g, above), _SUB(c(max_val), x))


@activation("_prelu_kernel")
def prelu(c, x, weight):
    return _SELECT(_GREATER(x, c(0)), x, _MUL(weight, x))


@kernel("_prelu_kernel_backward")
def prelu_backward(grad, x, weight):
    dtype = x.dtype
    zero = scalar(0, WIDER.get(dtype, dtype))

    def for_input(g, x, w):
        return _SELECT(_GREATER(x, zero), g, _MUL(w, g))

    def for_weight(g, x):
        return _MASKED_FILL(_MUL(x, g), _GREATER(x, zero), zero)

    return compute(for_input, dtype, grad, x, weight, wide=WIDER), compute(for_weight, dtype, grad, x, wide=WIDER)


# ---------------------------------------------------------------------------------------------------------- exponential


@activation("elu")
def elu(c, x, alpha=1, scale=1, input_scale=1):
    low = _MINIMUM(c(0), x)
    low = E.expm1(low if input_scale == 1 else _MUL(low, c(input_scale)))
    if alpha * scale != 1:
        low = _MUL(low, c(alpha * scale))
    high = _MAXIMUM(c(0), x)
    return _ADD(high if scale == 1 else _MUL(high, c(scale)), low)


@activation("elu_backward")
def _elu_backward(c, g, x, alpha, scale, input_scale, is_result):
    if is_result:
        slope = _MUL(_ADD(x, c(alpha * scale)), c(input_scale))
    else:
        slope = _MUL(E.exp(_MUL(_MINIMUM(c(0), x), c(input_scale))), c(alpha * scale * input_scale))
    return _MUL(g, _SELECT(_LESS_EQUAL(x, c(0)), slope, c(scale)))  # at NaN, the slope of positive x


@activation("sigmoid_backward")
def sigmoid_backward(c, g, y):
    return _SIGMOID_GRAD(y, g)


@activation("logit")
def logit(c, x, eps=None):
    if eps is not None and eps > 0.5:
        raise Decline("bounds in the wrong order")
    x = x if eps is None or eps < 0 else _between(c, x, eps, 1 - eps)
    return E.logit(x)


@activation("tanh_backward")
def tanh_backward(c, g, y):
    return _TANH_GRAD(y, g)


@kernel("silu", layout=True)
def silu(x):
    if x.dtype.is_complex:
        return read(x * torch.sigmoid(x))
    return compute(E.silu, x.dtype, x)


@activation("silu_backward")
def silu_backward(c, g, x):
    s = E.sigmoid(x)
    return _MUL(g, _ADD(s, _SIGMOID_GRAD(s, x)))  # s + x s (1 - s)


@activation("softplus")
def softplus(c, x, beta=1, threshold=20):
    z = x if beta == 1 else _MUL(x, c(beta))
    y = E.softplus(z)
    y = y if beta == 1 else _DIV(y, c(beta))
    return y if threshold >= 20 else _SELECT(_GREATER(z, c(threshold)), x, y)  # from 20 on, y is x


@activation("softplus_backward")
def softplus_backward(c, g, x, beta, threshold):
    z = x if beta == 1 else _MUL(x, c(beta))
    y = _MUL(g, E.sigmoid(z))
    return y if threshold >= 20 else _SELECT(_GREATER(z, c(threshold)), g, y)


@kernel("log_sigmoid_forward")
def log_sigmoid_forward(x):
    """(value, buffer), with the buffer that torch's CPU kernel keeps."""
    if not x.dtype.is_floating_point:
        raise Decline("activations are for floats")
    return (
        compute(E.log_sigmoid, x.dtype, x),
        compute(E.exp_minus_abs, x.dtype, x),
    )


@activation("log_sigmoid_backward")
def log_sigmoid_backward(c, g, x, buffer):
    return _MUL(g, E.sigmoid(_NEG(x)))


@activation("mish")
def mish(c, x):
    return E.mish(x)


@activation("mish_backward")
def mish_backward(c, g, x):
    t = E.tanh_softplus(x)
    return _MUL(g, _ADD(t, _MUL(_MUL(x, E.sigmoid(x)), _SUB(c(1), _SQUARE(t)))))


# ----------------------------------------------------------------------------------------------------------------- GELU

_K, _A = math.sqrt(2 / math.pi), 0.044715


def _phi(c, x, square):
    """(1 + tanh(k (x + a x^3))) / 2, which stands for the normal distribution's function."""
    return E.tanh_plus_one_halved(_MUL(x, _ADD(_MUL(square, c(_K * _A / 2)), c(_K / 2))))


@activation("gelu")
def gelu(c, x, *, approximate="none"):
    """GeLU is slow, so: x (1 + erf(x / sqrt 2)) / 2, or by tanh."""
    if approximate == "tanh":
        return _MUL(x, _phi(c, x, _SQUARE(x)))
    if approximate != "none":
        raise Decline("approximate is none or tanh")
    return _MUL(_MUL(x, c(0.5)), _ADD(_ERF(_MUL(x, c(math.sqrt(0.5)))), c(1)))


@activation("gelu_backward")
def gelu_backward(c, g, x, *, approximate="none"):
    square = _SQUARE(x)
    if approximate == "tanh":
        s = _phi(c, x, square)
        inner = _ADD(_MUL(square, c(6 * _K * _A)), c(2 * _K))
        return _MUL(g, _ADD(s, _MUL(_SIGMOID_GRAD(s, x), inner)))
    if approximate != "none":
        raise Decline("approximate is none or tanh")
    cdf = _MUL(_ADD(_ERF(_MUL(x, c(math.sqrt(0.5)))), c(1)), c(0.5))
    pdf = _MUL(E.exp(_MUL(square, c(-0.5))), c(1 / math.sqrt(2 * math.pi)))
    return _MUL(g, _ADD(cdf, _MUL(x, pdf)))


# ----------------------------------------------------------------------------------------------------- piecewise linear


@activation("hardsigmoid")
def hardsigmoid(c, x):
    return _DIV(_between(c, _ADD(x, c(3)), 0, 6), c(6))


@activation("hardsigmoid_backward")
def hardsigmoid_backward(c, g, x):
    sixth = float(np.float32(1) / np.float32(6))  # torch's kernel has it in single precision for every type
    return _MUL(_where_positive(_where_positive(g, _ADD(x, c(3))), _SUB(c(3), x)), c(sixth))


@activation("hardswish")
def hardswish(c, x):
    return _DIV(_MUL(x, _between(c, _ADD(x, c(3)), 0, 6)), c(6))


@activation("hardswish_backward")
def hardswish_backward(c, g, x):
    middle = _MUL(g, _ADD(_DIV(x, c(3)), c(0.5)))
    return _MASKED_FILL(_SELECT(_LESS(x, c(3)), middle, g), _LESS_EQUAL(x, c(-3)), c(0))


@activation("hardshrink", "hardshrink_backward", "softshrink_backward")
def hardshrink(c, *args):
    """x where |x| > lambda, else 0; of a backward op, the gradient there."""
    lambd = args[-1] if isinstance(args[-1], (int, float)) else 0.5
    values = [v for v in args if not isinstance(v, (int, float))]
    return _MASKED_FILL(values[0], _LESS_EQUAL(_ABS(values[-1]), c(lambd)), c(0))


@activation("softshrink")
def softshrink(c, x, lambd=0.5):
    if lambd < 0:
        raise Decline("lambda must not be negative")
    return _ADD(_MAXIMUM(c(0), _SUB(x, c(lambd))), _MINIMUM(c(0), _ADD(x, c(lambd))))
