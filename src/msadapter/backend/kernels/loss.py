"""Losses and their gradients. `reduction` is ATen's number: 0 none, 1 mean, 2 sum."""

import math

import numpy as np
import torch

from ..elementary import log, log1p, softplus_tail
from ..registry import Decline, kernel
from ..storage import broadcast, cast, constant, ms, read
from ..tracing import expect, lasting, look, traced
from .pointwise import pair
from .reduction import total as total_of
from .scatter import elements

from mindspore.ops.auto_generate import gen_ops_prim  # isort: skip
from mindspore.ops.operations import _grad_ops  # isort: skip

P = ms.ops
_CAST = P.Cast()
_ADD, _SUB, _MUL, _DIV, _NEG, _ABS, _SIGN = P.Add(), P.Sub(), P.Mul(), P.Div(), P.Neg(), P.Abs(), P.Sign()
_RELU, _MAXIMUM = P.ReLU(), P.Maximum()
_SQUARED_DIFFERENCE, _RESHAPE, _SELECT, _NOT_EQUAL = P.SquaredDifference(), P.Reshape(), P.Select(), P.NotEqual()
_GATHER, _GATHER_D = P.Gather(), P.GatherD()
_SUM, _MEAN = gen_ops_prim.SumExt(), gen_ops_prim.MeanExt()
_CACHE = {}  # (primitive, attributes) -> instance
_ONES = {}  # (classes, dtype) -> the class weights that torch calls None
_NAME = {0: "none", 1: "mean", 2: "sum"}


def _with(primitive, *attributes):
    key = primitive, attributes
    if key not in _CACHE:
        _CACHE[key] = primitive(*attributes)
    return _CACHE[key]


def _reduce(v, reduction, dtype):
    """v reduced to ATen's `reduction`, in the torch dtype `dtype`."""
    if reduction == 0 or not v.ndim:
        return cast(v, dtype)
    if not v.size:
        return constant(math.nan if reduction == 1 else 0, dtype)
    return cast(total_of(v, _MEAN if reduction == 1 else _SUM), dtype)


def _spread(grad, reduction, count, dtype):
    """The gradient of each element that the gradient of the reduced loss gives: a value that broadcasts."""
    g = cast(read(grad), dtype)
    return _MUL(g, constant(1 / count if count else math.nan, dtype)) if reduction == 1 else g


def _work(dtype):
    """Low precision computes in float32."""
    if not dtype.is_floating_point:
        raise Decline(f"a loss of {dtype}")
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _operands(x, y):
    """(x, y, dtype of the result, dtype to compute in)."""
    a, b, dtype = pair(x, y)
    work = _work(dtype)
    return cast(a, work), cast(b, work), dtype, work


# ------------------------------------------------------------------------------------------------ differences of values


@kernel("mse_loss", layout=True)
def mse_loss(x, y, reduction=1):
    a, b, dtype, _ = _operands(x, y)
    return _reduce(_SQUARED_DIFFERENCE(a, b), reduction, dtype)


@kernel("mse_loss_backward")
def mse_loss_backward(grad, x, y, reduction):
    a, b, dtype, work = _operands(x, y)
    factor = 2 / x.numel() if reduction == 1 and x.numel() else 2
    return cast(_MUL(_SUB(a, b), _MUL(cast(read(grad), work), constant(factor, work))), dtype)


def _smooth(a, b, beta, work):
    """smooth_l1 of each element. The primitive holds beta as a float32."""
    if work is torch.float64 and beta != float(np.float32(beta)):
        raise Decline("beta is not exact in float32")
    if beta == 0:
        return _ABS(_SUB(a, b))
    if a.shape != b.shape:
        shape = tuple(np.broadcast_shapes(a.shape, b.shape))
        a, b = broadcast(a, shape), broadcast(b, shape)
    if not a.size:
        return a
    return _with(P.SmoothL1Loss, float(beta), "none")(*((a, b) if a.shape else (_RESHAPE(a, (1,)), _RESHAPE(b, (1,)))))


def _smooth_grad(g, a, b, beta, shape):
    if beta == 0:
        return _MUL(_SIGN(_SUB(a, b)), g)
    if a.dtype == ms.float64 and beta != float(np.float32(beta)):
        raise Decline("beta is not exact in float32")
    if not a.size:
        return a
    a, b = (t if t.shape == shape else broadcast(t, shape) for t in (a, b))
    grad = _with(_grad_ops.SmoothL1LossGrad, float(beta), "none")
    if not shape:
        return _RESHAPE(grad(*(_RESHAPE(t, (1,)) for t in (a, b, g))), ())
    return grad(a, b, g if g.shape == shape else broadcast(g, shape))


@kernel("smooth_l1_loss", layout=True)
def smooth_l1_loss(x, y, reduction=1, beta=1.0):
    if beta < 0:
        raise Decline("beta must not be negative")
    a, b, dtype, work = _operands(x, y)
    v = _smooth(a, b, beta, work)
    return _reduce(v if x.dim() or y.dim() else _RESHAPE(v, ()), reduction, dtype)


@kernel("smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad, x, y, reduction, beta):
    a, b, dtype, work = _operands(x, y)
    return cast(_smooth_grad(_spread(grad, reduction, x.numel(), work), a, b, beta, tuple(x.shape)), dtype)


@kernel("huber_loss", layout=True)
def huber_loss(x, y, reduction=1, delta=1.0):
    if delta <= 0:
        raise Decline("delta must be positive")
    a, b, dtype, work = _operands(x, y)
    v = _smooth(a, b, delta, work)
    v = v if x.dim() or y.dim() else _RESHAPE(v, ())
    return _reduce(v if delta == 1 else _MUL(v, constant(delta, work)), reduction, dtype)


@kernel("huber_loss_backward")
def huber_loss_backward(grad, x, y, reduction, delta):
    a, b, dtype, work = _operands(x, y)
    g = _spread(grad, reduction, x.numel(), work)
    return cast(_smooth_grad(g if delta == 1 else _MUL(g, constant(delta, work)), a, b, delta, tuple(x.shape)), dtype)


# ------------------------------------------------------------------------------------------------- binary cross entropy


def _check_bce(x, y):
    if x.dtype is not y.dtype or x.shape != y.shape:
        raise Decline("input and target differ")


@kernel("binary_cross_entropy", layout=True)
def binary_cross_entropy(x, target, weight=None, reduction=1):
    _check_bce(x, target)
    if x.numel():
        p = look(read(x)) if x.dtype is not torch.bfloat16 else np.float32(0)
        if not (p.min() >= 0 and p.max() <= 1):
            raise Decline("probabilities must be in [0, 1]")
    work = _work(x.dtype)
    p, y, floor = cast(read(x), work), cast(read(target), work), constant(-100, work)
    log_q, log_p = _MAXIMUM(log1p(_NEG(p)), floor), _MAXIMUM(log(p), floor)
    v = _SUB(_MUL(_SUB(y, constant(1, work)), log_q), _MUL(y, log_p))
    if weight is not None:
        v = _MUL(v, cast(read(weight), work))
    return _reduce(v, reduction, x.dtype)


@kernel("binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad, x, target, weight=None, reduction=1):
    work = _work(x.dtype)
    p, y = cast(read(x), work), cast(read(target), work)
    g = _spread(grad, reduction, x.numel(), work)
    v = _MUL(g, _DIV(_SUB(p, y), _MAXIMUM(_MUL(_SUB(constant(1, work), p), p), constant(1e-12, work))))
    if weight is not None:
        v = _MUL(v, cast(read(weight), work))
    return cast(v, x.dtype)


@kernel("binary_cross_entropy_with_logits", layout=True)
def binary_cross_entropy_with_logits(x, target, weight=None, pos_weight=None, reduction=1):
    _check_bce(x, target)
    work = _work(x.dtype)
    z, y = cast(read(x), work), cast(read(target), work)
    tail = softplus_tail(z)  # softplus(-z) = relu(-z) + tail
    if pos_weight is None:
        v = _ADD(_SUB(_RELU(z), _MUL(z, y)), tail)
    else:
        one = constant(1, work)
        scale = _ADD(_MUL(_SUB(cast(read(pos_weight), work), one), y), one)
        v = _ADD(_MUL(_SUB(one, y), z), _MUL(scale, _ADD(tail, _RELU(_NEG(z)))))
    if weight is not None:
        v = _MUL(v, cast(read(weight), work))
    return _reduce(v, reduction, x.dtype)


# ---------------------------------------------------------------------------------------------- negative log likelihood
# NLLLossGrad writes out of bounds for a negative class number: they are checked first.


def _targets(x, target, ignore_index):
    """Check the class numbers; whether some are ignored."""
    if target.dtype is not torch.int64:
        raise Decline(f"a target of dtype {target.dtype}")
    v = read(target)
    a = look(v)
    ignored = a == ignore_index
    some = traced(v) or bool(ignored.any())
    if some:
        a = a[~ignored]
    classes = x.size(0) if x.dim() == 1 else x.size(1)
    expect(v, 0, classes, but=ignore_index)
    if a.size and (int(a.min()) < 0 or int(a.max()) >= classes):
        raise Decline("target out of bounds")
    return classes, some


_ROWS = 4096  # up to which the sum of NLLLoss, one after the other, is as good as PyTorch's


def _composes(work, ignore_index):
    """Whether NLLLoss will not do: it adds up in float32, and its class numbers are int32."""
    return work is torch.float64 or not -(2**31) <= ignore_index < 2**31


def _labels32(x, target, ignore_index):
    """The class numbers as NLLLoss and its gradient take them without a cast, checked."""
    if target.dtype is not torch.int64:
        raise Decline(f"a target of dtype {target.dtype}")
    v = read(target)
    a = look(v)
    if traced(v) or a.view(np.uint64).max() >= x.size(1):
        _targets(x, target, ignore_index)
    if traced(v):
        return _CAST(v, ms.int32)
    return ms.Tensor.from_numpy(a.astype(np.int32))


def _class_weights(weight, classes, dtype):
    if weight is not None:
        if weight.dim() != 1 or weight.numel() != classes:
            raise Decline("one weight for each class")
        return cast(read(weight), dtype)
    key = classes, dtype
    if key not in _ONES:
        _ONES[key] = lasting(constant(1, dtype, (classes,)))
    return _ONES[key]


def _rows_and_targets(x, target):
    if x.dim() not in (1, 2) or target.dim() != x.dim() - 1 or x.dim() == 2 and target.size(0) != x.size(0):
        raise Decline("input and target do not fit")
    if x.dim() == 1:
        return x.unsqueeze(0), target.unsqueeze(0)
    return x, target


@kernel("nll_loss_forward")
def nll_loss_forward(x, target, weight, reduction, ignore_index):
    rows, target = _rows_and_targets(x, target)
    work, dtype = _work(x.dtype), x.dtype
    if weight is not None and weight.dtype is not dtype:
        raise Decline("weight and input differ in dtype")
    if not rows.numel():
        loss = (
            constant(0, dtype, tuple(target.shape))
            if reduction == 0
            else constant(math.nan if reduction == 1 else 0, dtype)
        )
        return loss, constant(0, dtype)
    v = cast(read(rows), work)
    if reduction == 0 or len(rows) > _ROWS or _composes(work, ignore_index):  # NLLLoss leaves ignored rows unset
        classes, some = _targets(rows, target, ignore_index)
        loss, total = _composed(v, read(target), weight, reduction, ignore_index, some, classes, work)
        return cast(loss if x.dim() == 2 or reduction else _RESHAPE(loss, ()), dtype), cast(total, dtype)
    w = _class_weights(weight, rows.size(1), work)
    loss, total = _with(P.NLLLoss, _NAME[reduction], ignore_index)(v, _labels32(rows, target, ignore_index), w)
    return cast(loss, dtype), cast(total, dtype)


@kernel("nll_loss_backward")
def nll_loss_backward(grad, x, target, weight, reduction, ignore_index, total_weight):
    rows, target = _rows_and_targets(x, target)
    if not rows.numel():
        return constant(0, x.dtype, tuple(x.shape))
    work = _work(x.dtype)
    if _composes(work, ignore_index):
        classes, some = _targets(rows, target, ignore_index)
        v = _composed_grad(
            grad, rows.shape, read(target), weight, reduction, ignore_index, total_weight, some, classes, work
        )
        return cast(_RESHAPE(v, tuple(x.shape)), x.dtype)
    g = cast(read(grad), work)
    if reduction == 0 and x.dim() == 1:
        g = _RESHAPE(g, (1,))
    w = _class_weights(weight, rows.size(1), work)
    out = _with(_grad_ops.NLLLossGrad, _NAME[reduction], ignore_index)(
        cast(read(rows), work), g, _labels32(rows, target, ignore_index), w, cast(read(total_weight), work)
    )
    return cast(out if x.dim() == 2 else _RESHAPE(out, tuple(x.shape)), x.dtype)


def _safe(target, ignore_index, some):
    """(class numbers that may be looked up, mask of the targets that count or None)."""
    if not some:
        return target, None
    keep = _NOT_EQUAL(target, constant(ignore_index, torch.int64))
    return _SELECT(keep, target, P.ZerosLike()(target)), keep


def _picked(v, target, weight, work, ignore_index, some, classes):
    """(loss of each target, its weight or None)."""
    t, keep = _safe(target, ignore_index, some)
    loss = _NEG(_RESHAPE(_GATHER_D(v, 1, _RESHAPE(t, (t.shape[0], 1, *t.shape[1:]))), t.shape))
    w = None
    if weight is not None:
        w = _GATHER(_class_weights(weight, classes, work), t, 0)
        loss = _MUL(loss, w)
    if keep is not None:
        zero = P.ZerosLike()(loss)
        w = _SELECT(keep, w if w is not None else broadcast(constant(1, work), t.shape), zero)
        loss = _SELECT(keep, loss, zero)
    return loss, w


@kernel("nll_loss2d_forward")
def nll_loss2d_forward(x, target, weight, reduction, ignore_index):
    _check_2d(x, target)
    classes, some = _targets(x, target, ignore_index)
    work, dtype = _work(x.dtype), x.dtype
    if weight is not None and weight.dtype is not dtype:
        raise Decline("weight and input differ in dtype")
    if not x.numel():
        loss = (
            constant(0, dtype, tuple(target.shape))
            if reduction == 0
            else constant(math.nan if reduction == 1 else 0, dtype)
        )
        return loss, constant(0, dtype)
    loss, total = _composed(cast(read(x), work), read(target), weight, reduction, ignore_index, some, classes, work)
    return cast(loss, dtype), cast(total, dtype)


@kernel("nll_loss2d_backward")
def nll_loss2d_backward(grad, x, target, weight, reduction, ignore_index, total_weight):
    _check_2d(x, target)
    classes, some = _targets(x, target, ignore_index)
    shape = tuple(x.shape)
    if not x.numel():
        return constant(0, x.dtype, shape)
    work = _work(x.dtype)
    out = _composed_grad(grad, shape, read(target), weight, reduction, ignore_index, total_weight, some, classes, work)
    return cast(out, x.dtype)


def _composed(v, target, weight, reduction, ignore_index, some, classes, work):
    """(loss, total weight) by gathering: the classes are dimension 1 of v."""
    loss, w = _picked(v, target, weight, work, ignore_index, some, classes)
    if reduction == 0:
        return loss, constant(0, work)
    total = constant(loss.size, work) if w is None else total_of(w, _SUM)
    loss = total_of(loss, _SUM)
    return _DIV(loss, total) if reduction == 1 else loss, total


def _composed_grad(grad, shape, target, weight, reduction, ignore_index, total_weight, some, classes, work):
    """The gradient of `_composed`: minus the weight at each target, zero elsewhere."""
    t, keep = _safe(target, ignore_index, some)
    g = _NEG(cast(read(grad), work))
    if reduction == 1:
        g = _DIV(g, cast(read(total_weight), work))
    if weight is not None:
        g = _MUL(g, _GATHER(_class_weights(weight, classes, work), t, 0))
    if g.shape != t.shape:
        g = _RESHAPE(g, t.shape) if g.size == t.size else broadcast(g, t.shape)
    if keep is not None:
        g = _SELECT(keep, g, P.ZerosLike()(g))
    one = (shape[0], 1, *shape[2:])
    return elements(1)(constant(0, work, tuple(shape)), _RESHAPE(t, one), _RESHAPE(g, one))


def _check_2d(x, target):
    if x.dim() != 4 or target.dim() != 3 or (x.size(0), *x.shape[2:]) != tuple(target.shape):
        raise Decline("input and target do not fit")
