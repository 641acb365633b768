"""Triangular systems and what is solved by them alone: Cholesky factors. With the helpers of dense linear algebra.

Values here are MindSpore tensors (..., m, n) of the four types that LAPACK has.
"""

import numpy as np
import torch

from ..registry import Decline, kernel
from ..storage import TORCH_DTYPE, broadcast, constant, contiguous_stride, from_host, ms, read_fresh, wrap, wrap_strided
from ..storage import _prim as prim

P = ms.ops
_SOLVE, _CHOLESKY = prim.SolveTriangular(), prim.Cholesky()
_RESHAPE, _TRANSPOSE, _CONTIGUOUS = P.Reshape(), prim.Transpose(), prim.Contiguous()
_CONJ, _REAL, _IMAG, _COMPLEX, _NEG = P.Conj(), P.Real(), P.Imag(), P.Complex(), P.Neg()
_CONCAT_LAST, _STACK, _SELECT, _AS_STRIDED = P.Concat(-1), P.Stack(-2), P.Select(), prim.AsStrided()

LAPACK = {torch.float32, torch.float64, torch.complex64, torch.complex128}
_COMPLEX_OF = (ms.complex64, ms.complex128)


# -------------------------------------------------------------------------------------------------------------- helpers


def columns(op, args, kwargs, v):
    """The layout of LAPACK's results: matrices are column-major."""
    return wrap_strided(v, column_stride(v.shape)) if len(v.shape) > 1 else wrap(v)


def columns_like_first(op, args, kwargs, v):
    """Column-major are the results that have as many dimensions as the first argument; pivots are not matrices."""
    return wrap_strided(v, column_stride(v.shape)) if len(v.shape) == args[0].dim() else wrap(v)


def column_stride(shape):
    *batch, m, n = shape
    stride = contiguous_stride((*batch, n, m))
    return (*stride[:-2], stride[-1], stride[-2])


def matrix(x, square=False):
    """The value of x, which must be matrices that LAPACK takes: MindSpore takes others."""
    if x.dtype not in LAPACK or x.dim() < 2 or (square and x.shape[-1] != x.shape[-2]):
        raise Decline("expected matrices of a float type")
    return read_fresh(x)


def dtype_of(v):
    return TORCH_DTYPE[v.dtype]


def is_complex(v):
    return v.dtype in _COMPLEX_OF


def transposed(v):
    n = len(v.shape)
    return _CONTIGUOUS(_TRANSPOSE(v, (*range(n - 2), n - 1, n - 2)))


def conjugated(v):
    """The conjugate transpose."""
    v = transposed(v)
    return _CONJ(v) if is_complex(v) and v.size else v


def part(v, rows=None, cols=None):
    """v[..., rows, cols], each a (start, end)."""
    *batch, m, n = v.shape
    (r, s), (c, d) = rows or (0, m), cols or (0, n)
    if (r, s, c, d) == (0, m, 0, n):
        return v
    if 0 in (*batch, s - r, d - c):
        return zeros((*batch, s - r, d - c), v)
    return _CONTIGUOUS(_AS_STRIDED(v, (*batch, s - r, d - c), contiguous_stride(v.shape), r * n + c))


def expanded(v, batch):
    """v with the batch dimensions `batch`."""
    return v if v.shape[:-2] == batch else _CONTIGUOUS(broadcast(v, (*batch, *v.shape[-2:])))


def eye(m, n, dtype, batch=()):
    """Identity matrices, made on the host."""
    v = from_host(torch.eye(m, n, dtype=dtype, device="cpu"))
    return expanded(v, tuple(batch)) if batch else v


def zeros(shape, like):
    return constant(0, dtype_of(like), tuple(shape))


def finite(v):
    return bool(np.isfinite(v.asnumpy()).all())


def diagonal(v):
    """The main diagonals of v, as vectors."""
    *batch, m, n = v.shape
    stride = contiguous_stride(v.shape)
    return _CONTIGUOUS(_AS_STRIDED(v, (*batch, min(m, n)), (*stride[:-2], n + 1), 0))


def where_lower(lower, upper, offset=0):
    """The matrix that has the elements of `lower` on and below the diagonal `offset`, those of `upper` above it."""
    mask = np.tri(*lower.shape[-2:], offset, dtype=bool)
    return _SELECT(ms.Tensor.from_numpy(np.broadcast_to(mask, lower.shape).copy()), lower, upper)


def triangle(v, lower, offset=0):
    """v with zeros in its other triangle. `tril` with an offset, or `triu`."""
    if 0 in v.shape:
        return v
    return where_lower(v, zeros(v.shape, v), offset) if lower else where_lower(zeros(v.shape, v), v, offset - 1)


def solve(a, b, lower, unit=False, trans=0, left=True):
    """op(a) x = b, or x op(a) = b, for triangular a; op transposes (trans 1) or takes the adjoint (2)."""
    batch = tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    a, b = expanded(a, batch), expanded(b, batch)
    if a.shape[-1] != b.shape[-2 if left else -1]:
        raise Decline("expected sizes to match")
    if 0 in b.shape:
        return zeros(b.shape, b)
    if left:
        return _SOLVE(a, b, trans, lower, unit)
    if trans == 2:
        return conjugated(_SOLVE(a, conjugated(b), 0, lower, unit))
    return transposed(_SOLVE(a, transposed(b), 1 - trans, lower, unit))


# --------------------------------------------------------------------------------------------------- triangular systems


@kernel("linalg_solve_triangular", layout=columns)
def solve_triangular(a, b, *, upper, left=True, unitriangular=False):
    if a.dtype is not b.dtype:
        raise Decline("dtypes differ")
    return solve(matrix(a, square=True), matrix(b), not upper, unitriangular, left=left)


@kernel("triangular_solve", layout=columns)
def triangular_solve(b, a, upper=True, transpose=False, unitriangular=False):
    if a.dtype is not b.dtype:
        raise Decline("dtypes differ")
    u, v = matrix(a, square=True), matrix(b)
    batch = tuple(torch.broadcast_shapes(u.shape[:-2], v.shape[:-2]))
    return solve(u, v, not upper, unitriangular, int(transpose)), expanded(u, batch)


# ------------------------------------------------------------------------------------------------------------- Cholesky


def _cholesky(v):
    """The lower factor of v, whose lower triangle alone counts; raises where v is not positive-definite."""
    if 0 in v.shape:
        return v
    if is_complex(v):
        return _cholesky_complex(v)
    return _CHOLESKY(where_lower(v, transposed(v)))


def _cholesky_complex(v):
    """Each element x + iy as the real block [[x, -y], [y, x]]: the factor of those is the blocks of the factor."""
    *batch, n, _ = v.shape
    x = where_lower(_REAL(v), transposed(_REAL(v)))
    y = where_lower(_IMAG(v), _NEG(transposed(_IMAG(v))), -1)
    y = where_lower(y, where_lower(zeros(y.shape, y), y), -1)  # the diagonal is real, whatever is there
    rows = _STACK((_blocks(x, _NEG(y)), _blocks(y, x)))
    factor = _CHOLESKY(_RESHAPE(rows, (*batch, 2 * n, 2 * n)))
    stride = contiguous_stride(factor.shape)
    part = [_AS_STRIDED(factor, (*batch, n, n), (*stride[:-2], 4 * n, 2), k) for k in (0, 2 * n)]
    return _COMPLEX(*map(_CONTIGUOUS, part))


def _blocks(x, y):
    """The elements of x and y in turn along rows, (..., n, n) and (..., n, n) to (..., n, 2n)."""
    *batch, n, _ = x.shape
    shape = (*batch, n, n, 1)
    return _RESHAPE(_CONCAT_LAST((_RESHAPE(x, shape), _RESHAPE(y, shape))), (*batch, n, 2 * n))


def _definite(v):
    try:
        _cholesky(v)
        return True
    except RuntimeError:
        return False


def _order(v):
    """LAPACK's info for one matrix: the order of its first leading minor that is not positive-definite, or 0."""
    sizes = range(1, v.shape[-1] + 1)
    return next((k for k in sizes if not _definite(_CONTIGUOUS(_AS_STRIDED(v, (k, k), (v.shape[-1], 1), 0)))), 0)


def factor(x, upper):
    """(factor, info): NaN is the factor of a matrix that is not positive-definite."""
    v = matrix(x, square=True)
    v = conjugated(v) if upper else v
    batch = v.shape[:-2]
    try:
        out, info = _cholesky(v), constant(0, torch.int32, batch)
    except RuntimeError:
        n = v.shape[-1]
        single = [ms.Tensor.from_numpy(m) for m in v.asnumpy().reshape(-1, n, n)]
        orders = [_order(m) for m in single]
        nan = constant(float("nan"), x.dtype, (n, n))
        parts = [_RESHAPE(nan if bad else _cholesky(m), (1, n, n)) for m, bad in zip(single, orders)]
        out = _RESHAPE(P.Concat(0)(tuple(parts)), v.shape)
        info = ms.Tensor.from_numpy(np.array(orders, np.int32).reshape(batch))
    return (conjugated(out) if upper else out), info


def check_info(info, wanted):
    """torch has the words for the error that is due if somebody wants to know about a bad matrix."""
    if wanted and info.asnumpy().any():
        raise Decline("a matrix does not allow it")


@kernel("linalg_cholesky_ex", layout=columns_like_first)
def cholesky_ex(x, *, upper=False, check_errors=False):
    out, info = factor(x, upper)
    check_info(info, check_errors)
    return out, info


@kernel(*["cholesky"] * hasattr(torch.ops.aten, "cholesky"), layout=columns)  # torch 2.14 has linalg_cholesky alone
def cholesky(x, upper=False):
    out, info = factor(x, upper)
    check_info(info, True)
    return out


def _cholesky_solve(b, a, upper):
    """x of a^H a x = b for upper a, of a a^H x = b for lower a."""
    return solve(a, solve(a, b, not upper, trans=2 if upper else 0), not upper, trans=0 if upper else 2)


@kernel("_cholesky_solve_helper", layout=columns)
def cholesky_solve(b, a, upper):
    return _cholesky_solve(matrix(b), matrix(a, square=True), upper)


@kernel("cholesky_inverse", layout=columns)
def cholesky_inverse(a, upper=False):
    v = matrix(a, square=True)
    return _cholesky_solve(eye(*v.shape[-2:], a.dtype, v.shape[:-2]), v, upper)
