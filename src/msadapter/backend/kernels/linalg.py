"""Matrix products. A transposed operand is passed by the primitive's flag, not copied."""

import functools
import math

import torch

from ..registry import Decline, kernel, quick, raw, shortcut
from ..routes import run_op
from ..storage import LOCK, TORCH_DTYPE, as_strided, cast, constant, create_empty_tensor, ms, read
from ..storage import _prim as prim

HALF = {torch.float16, torch.bfloat16}
_FLAGS = [(a, b) for a in (False, True) for b in (False, True)]
_MATMUL = {(a, b): ms.ops.MatMul(transpose_a=a, transpose_b=b) for a, b in _FLAGS}
_BATCH = {(a, b): ms.ops.BatchMatMul(transpose_a=a, transpose_b=b) for a, b in _FLAGS}
_BATCH_3D = prim.BatchMatMulExt()  # less work per call than BatchMatMul, but three dimensions and no flags
_ADD, _MUL, _BIAS, _SUM = ms.ops.Add(), ms.ops.Mul(), ms.ops.BiasAdd(), prim.SumExt()
_RESHAPE, _TILE = ms.ops.Reshape(), ms.ops.Tile()

_SMALL = 2048  # elements up to which Add broadcasts a row faster than BiasAdd's fixed cost
_TALL = 1 << 15  # elements from which ones @ x sums rows faster than SumExt


def multiply(u, v, ta=False, tb=False):
    """op(u) @ op(v) of two MindSpore matrices, or two batches of them; op transposes where the flag says so."""
    if u.shape[-2 if ta else -1] == 0:  # MindSpore leaves the result uninitialised
        return constant(0, TORCH_DTYPE[u.dtype], (*u.shape[:-2], u.shape[-1 if ta else -2], v.shape[-2 if tb else -1]))
    primitive = _BATCH_3D if u.ndim == 3 and not (ta or tb) else (_MATMUL if u.ndim == 2 else _BATCH)[ta, tb]
    if u.dtype == ms.bfloat16:
        return cast(primitive(cast(u, torch.float32), cast(v, torch.float32)), torch.bfloat16)
    return primitive(u, v)


def add_bias(y, bias):
    """y + bias, bias broadcast to y's shape: Add broadcasts slowly, so a row goes to BiasAdd and the rest is tiled."""
    if bias.shape == y.shape or y.size <= _SMALL or y.dtype == ms.bfloat16:
        return _ADD(y, bias)
    if y.ndim == 2 and bias.size == y.shape[1] and bias.shape[-1] == y.shape[1]:
        return _BIAS(y, bias if bias.ndim == 1 else _RESHAPE(bias, (y.shape[1],)))
    padded = (1,) * (y.ndim - bias.ndim) + bias.shape
    return _ADD(y, _TILE(bias, tuple(n // m for n, m in zip(y.shape, padded))))


def sum_rows(y):
    """The sum of the rows of the matrix y."""
    m, n = y.shape
    if m * n >= _TALL and y.dtype != ms.bfloat16:
        return _RESHAPE(multiply(constant(1, TORCH_DTYPE[y.dtype], (1, m)), y), (n,))
    return _sum_first(y)


def _sum_first(y):
    """The sum over the first dimension, in y's dtype."""
    if y.shape[0] == 0:  # MindSpore leaves the result uninitialised
        return constant(0, TORCH_DTYPE[y.dtype], y.shape[1:])
    if y.dtype == ms.bfloat16:
        return cast(_SUM(cast(y, torch.float32), (0,), False, None), torch.bfloat16)
    return cast(_SUM(y, (0,), False, None), TORCH_DTYPE[y.dtype])


def operand(x):
    """(value, transposed): x or, where x is the transpose of contiguous matrices, those matrices."""
    if not x.is_contiguous() and not x.dtype.is_complex:  # complex MatMul conjugates what it transposes
        m, n = x.shape[-2:]
        stride = x.stride()
        if stride[-2] == 1 and stride[-1] == m and (x.dim() == 2 or stride[0] == m * n):
            return read(as_strided(x, (*x.shape[:-2], n, m), (*stride[:-2], m, 1), x.storage_offset())), True
    return read(x), False


def _product(a, b, rank):
    """a @ b; MindSpore promotes and broadcasts where torch refuses."""
    if rank == 2 and a.dtype is b.dtype is torch.float32 and a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] > 0:
        (u, ta), (v, tb) = operand(a), operand(b)
        return _MATMUL[ta, tb](u, v)
    if a.dim() != rank or b.dim() != rank or a.dtype is not b.dtype:
        raise Decline(f"expected two {rank}-d operands of one dtype")
    if a.shape[-1] != b.shape[-2] or (rank == 3 and a.shape[0] != b.shape[0]):
        raise Decline("expected sizes to match")
    (u, ta), (v, tb) = operand(a), operand(b)
    return multiply(u, v, ta, tb)


def _combine(bias, a, y, beta, alpha):
    """beta * bias + alpha * y for y made of operands like a; beta == 0 ignores even a NaN bias."""
    if bias.dtype is not a.dtype:
        raise Decline(f"expected one dtype, got {bias.dtype} and {a.dtype}")
    if torch.broadcast_shapes(tuple(bias.shape), y.shape) != y.shape:
        raise Decline("expected a bias that broadcasts to the product")
    if alpha != 1:
        y = _MUL(y, constant(alpha, a.dtype))
    if beta == 0:
        return y
    b = read(bias)
    return add_bias(y, b if beta == 1 else _MUL(b, constant(beta, a.dtype)))


def rounded_once(fn):
    """Small floats are multiplied, scaled and added up in float32 and rounded once, as torch does."""

    @functools.wraps(fn)
    def run(*args, **kwargs):
        dtype = args[0].dtype
        if dtype not in HALF:
            return fn(*args, **kwargs)
        if any(isinstance(a, torch.Tensor) and a.dtype is not dtype for a in args):
            raise Decline("expected operands of one dtype")
        return cast(fn(*(a.float() if isinstance(a, torch.Tensor) else a for a in args), **kwargs), dtype)

    return run


def _row(x):
    """The vector x as a 1 x n matrix."""
    (n,) = x.shape
    return as_strided(x, (1, n), (n * x.stride(0), x.stride(0)), x.storage_offset())


def _column(x):
    (n,) = x.shape
    return as_strided(x, (n, 1), (x.stride(0), 1), x.storage_offset())


# ------------------------------------------------------------------------------------------------------------- products


@kernel("mm")
def mm(a, b):
    return _product(a, b, 2)


@shortcut("mm")
def _plain_mm(run):
    """Whole float32 matrices, or the transpose of one: straight to the primitive."""
    float32, empty, storage_of, name = torch.float32, create_empty_tensor, torch.Tensor.untyped_storage, "MatMul"

    def flag(x, s):
        """Whether x is s transposed; None if it is neither that nor s."""
        if x.dtype is not float32 or s.dtype is not float32:
            return None
        if x.is_contiguous():
            return False if s.shape == x.shape else None
        m, n = x.shape
        return True if s.shape == (n, m) and x.stride() == (1, m) else None

    def mm(a, b):
        try:
            s, t = storage_of(a), storage_of(b)
            ta, tb = flag(a, s), flag(b, t)
            (m, k), (rows, n) = a.shape, b.shape
            if ta is not None and tb is not None and k == rows and k and m and n and quick():
                with LOCK:
                    v = run_op(_MATMUL[ta, tb], name, (s.buf, t.buf, ta, tb))
                out = empty((m, n), float32)
                s = storage_of(out)
                s.buf, s.shape, s.dtype = v, (m, n), float32
                return out
        except Exception:  # a host tensor, a vector: the long way finds the words for it
            pass
        return run(a, b)

    return mm


@kernel("bmm")
def bmm(a, b):
    return _product(a, b, 3)


@kernel("mv")
def mv(a, x):
    return _RESHAPE(_product(a, _column(x), 2), (a.shape[0],))


@kernel("dot", "vdot")
def dot(x, y):
    if x.dtype.is_complex:
        raise Decline("complex vectors")
    return _RESHAPE(_product(_row(x), _column(y), 2), ())


@kernel("addmm")
@rounded_once
def addmm(bias, a, b, beta=1, alpha=1):
    return _combine(bias, a, mm(a, b), beta, alpha)


@kernel("baddbmm")
@rounded_once
def baddbmm(bias, a, b, beta=1, alpha=1):
    return _combine(bias, a, bmm(a, b), beta, alpha)


@kernel("addbmm")
@rounded_once
def addbmm(bias, a, b, beta=1, alpha=1):
    (u, ta), (v, tb) = operand(a), operand(b)
    _product(a[:0], b[:0], 3)  # checks
    return _combine(bias, a, _sum_first(multiply(u, v, ta, tb)), beta, alpha)


@kernel("addmv")
@rounded_once
def addmv(bias, a, x, beta=1, alpha=1):
    return _combine(bias, a, mv(a, x), beta, alpha)


@kernel("addr")
def addr(bias, x, y, beta=1, alpha=1):
    return _combine(bias, x, _product(_column(x), _row(y), 2), beta, alpha)


# --------------------------------------------------------------------------------------------------------------- linear


@kernel("linear")
def linear(x, weight, bias=None):
    """One kernel for the layer: as the composite of `t`, `view` and `addmm` it costs three times the calls."""
    k = x.shape[-1]
    if weight.dim() > 2 or weight.shape[-1] != k or weight.dtype is not x.dtype:
        raise Decline("expected a weight that fits the input")
    if bias is not None and (bias.dtype is not x.dtype or weight.dim() != 2 or bias.shape != weight.shape[:1]):
        raise Decline("expected a bias that fits the weight")
    if bias is not None and x.dtype in HALF:
        return rounded_once(linear)(x, weight, bias)
    w, transposed = operand(weight) if weight.dim() == 2 else (_RESHAPE(read(weight), (1, k)), False)
    if x.dtype.is_complex:
        y = read(x.reshape(-1, x.shape[-1]) @ (weight if weight.dim() == 2 else weight.unsqueeze(0)).t())
    else:
        y = multiply(_rows(x), w, False, not transposed)
    if bias is not None:
        y = add_bias(y, read(bias))
    return _shaped(y, (*x.shape[:-1], *weight.shape[:-1]))


@kernel("linear_backward")
def linear_backward(x, grad, weight, mask):
    if x.dtype.is_complex:
        return _complex_linear_backward(x, grad, weight, mask)
    k = x.shape[-1]
    g = _shaped(read(grad), (math.prod(x.shape[:-1]), math.prod(weight.shape[:-1])))
    w, transposed = operand(weight) if weight.dim() == 2 else (_RESHAPE(read(weight), (1, k)), False)
    return (
        _shaped(multiply(g, w, False, transposed), tuple(x.shape)) if mask[0] else None,
        _shaped(multiply(g, _rows(x), True), tuple(weight.shape)) if mask[1] else None,
        _shaped(sum_rows(g), tuple(weight.shape[:-1])) if mask[2] else None,
    )


def _complex_linear_backward(x, grad, weight, mask):
    """The flags of a complex MatMul conjugate, so this one is written in torch ops."""
    w = weight if weight.dim() == 2 else weight.unsqueeze(0)
    g, rows = grad.reshape(-1, w.shape[0]), x.reshape(-1, x.shape[-1])
    return (
        read((g @ w.conj()).reshape(x.shape)) if mask[0] else None,
        read((g.t() @ rows.conj()).reshape(weight.shape)) if mask[1] else None,
        read(g.sum(0).reshape(weight.shape[:-1])) if mask[2] else None,
    )


def _shaped(v, shape):
    return v if v.shape == shape else _RESHAPE(v, shape)


def _rows(x):
    """x as a matrix whose rows are its last dimension."""
    return _shaped(read(x), (math.prod(x.shape[:-1]), x.shape[-1]))


@raw("_trilinear")
def trilinear(a, b, c, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """The contraction behind nn.Bilinear: the product of three expanded tensors, summed over `sumdim`."""
    for dims, i in ((expand1, 0), (expand2, 1), (expand3, 2)):
        for d in dims:
            a, b, c = (x.unsqueeze(d) if j == i else x for j, x in enumerate((a, b, c)))
    product = a * b * c
    return product.sum(sumdim, dtype=product.dtype) if sumdim else product
