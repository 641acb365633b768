"""Pointwise ops: one value in, one value out, broadcast and promoted by torch's rules."""

import math

import torch

from ..registry import Decline, kernel
from ..storage import MS_DTYPE, cast, constant, ms, read

P = ms.ops

FLOATING = {torch.float32, torch.float64, torch.float16, torch.bfloat16}


# ------------------------------------------------------------------------------------------------ operands and promotion


def operand(x, dtype):
    """x (a device tensor, a 0-dim host tensor or a Python number) as an `ms.Tensor` of the torch dtype `dtype`."""
    if isinstance(x, torch.Tensor):
        if x.device.type == "cpu" and x.dim() == 0:
            return constant(x.item(), dtype)
        return cast(read(x), dtype)
    return constant(x, dtype)


def promoted(*xs):
    """torch's result type of the operands, left to right."""
    dtype = torch.result_type(xs[0], xs[1])
    if len(xs) == 3:
        a = torch.empty((1,) * max(getattr(x, "ndim", 0) for x in xs[:2]), dtype=dtype, device="meta")
        dtype = torch.result_type(a, xs[2])
    return dtype


def to_float(dtype):
    """Integers and bools compute in the default float type."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def pair(x, y, dtype=None):
    """(x, y, dtype) promoted; the common case of two device tensors of one dtype takes no detour."""
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype is y.dtype and dtype is None:
        if x.device.type == y.device.type == "mindspore":
            return read(x), read(y), x.dtype
    dtype = dtype or torch.result_type(x, y)
    return operand(x, dtype), operand(y, dtype), dtype


# ---------------------------------------------------------------------------------------------------------------- unary

UNARY = {  # same dtype out; integers pass through
    "neg": P.Neg(), "abs": P.Abs(), "sign": P.Sign(), "square": P.Square(), "relu": P.ReLU(),
    "bitwise_not": P.Invert(), "logical_not": P.LogicalNot(),
}  # fmt: skip
FLOAT_UNARY = {  # integers become float
    "exp": P.Exp(), "log": P.Log(), "log1p": P.Log1p(), "expm1": P.Expm1(), "sqrt": P.Sqrt(), "rsqrt": P.Rsqrt(),
    "sin": P.Sin(), "cos": P.Cos(), "tan": P.Tan(), "asin": P.Asin(), "acos": P.ACos(), "atan": P.Atan(),
    "sinh": P.Sinh(), "cosh": P.Cosh(), "asinh": P.Asinh(), "acosh": P.Acosh(), "atanh": P.Atanh(), "tanh": P.Tanh(),
    "sigmoid": P.Sigmoid(), "erf": P.Erf(), "erfc": P.Erfc(), "reciprocal": P.Reciprocal(),
}  # fmt: skip
ROUNDING = {"floor": P.Floor(), "ceil": P.Ceil(), "trunc": P.Trunc(), "round": P.Rint()}  # integers unchanged


def _unary(name, primitive):
    @kernel(name, layout=True)
    def unary(x):
        return primitive(read(x))


def _float_unary(name, primitive):
    @kernel(name, layout=True)
    def unary(x):
        return primitive(read(x) if x.dtype.is_floating_point else cast(read(x), to_float(x.dtype)))


def _rounding(name, primitive):
    @kernel(name, layout=True)
    def unary(x):
        return primitive(read(x)) if x.dtype.is_floating_point else read(x)


for _name, _primitive in UNARY.items():
    _unary(_name, _primitive)
for _name, _primitive in FLOAT_UNARY.items():
    _float_unary(_name, _primitive)
for _name, _primitive in ROUNDING.items():
    _rounding(_name, _primitive)


# --------------------------------------------------------------------------------------------------------------- binary

_ADD, _SUB, _MUL, _DIV, _POW = P.Add(), P.Sub(), P.Mul(), P.Div(), P.Pow()


@kernel("add.Tensor", layout=True)
def add(x, y, alpha=1):
    a, b, dtype = pair(x, y)
    if dtype is torch.bool:
        return P.LogicalOr()(a, b if alpha else constant(False, torch.bool))
    return _ADD(a, b if alpha == 1 else _MUL(b, constant(alpha, dtype)))


@kernel("sub.Tensor", layout=True)
def sub(x, y, alpha=1):
    a, b, dtype = pair(x, y)
    if dtype is torch.bool:
        raise Decline("torch has no bool subtraction")
    return _SUB(a, b if alpha == 1 else _MUL(b, constant(alpha, dtype)))


@kernel("rsub.Tensor", "rsub.Scalar", layout=True)
def rsub(x, y, alpha=1):
    a, b, dtype = pair(x, y)
    return _SUB(b, a if alpha == 1 else _MUL(a, constant(alpha, dtype)))


@kernel("mul.Tensor", "mul.Scalar", layout=True)
def mul(x, y):
    a, b, _ = pair(x, y)
    return _MUL(a, b)


@kernel("div.Tensor", "div.Scalar", layout=True)
def div(x, y):
    dtype = to_float(torch.result_type(x, y))
    return _DIV(operand(x, dtype), operand(y, dtype))


def _compare(name, primitive):
    @kernel(f"{name}.Tensor", f"{name}.Scalar", layout=True)
    def compare(x, y):
        a, b, _ = pair(x, y)
        return primitive(a, b)


for _name, _primitive in {
    "eq": P.Equal(), "ne": P.NotEqual(), "gt": P.Greater(), "ge": P.GreaterEqual(), "lt": P.Less(), "le": P.LessEqual()
}.items():  # fmt: skip
    _compare(_name, _primitive)


@kernel("fill.Scalar", layout=True)
def fill(x, value):
    return constant(value.item() if isinstance(value, torch.Tensor) else value, x.dtype, tuple(x.shape))


@kernel("zero", layout=True)
def zero(x):
    return constant(0, x.dtype, tuple(x.shape))


__all__ = ["FLOATING", "MS_DTYPE", "math", "operand", "pair", "promoted", "to_float"]
