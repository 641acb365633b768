"""LU factors with partial pivoting, and what is made from them: solutions, inverses, determinants.

MindSpore's primitive takes real matrices that are not taller than wide, and leaves NaN for singular ones; the rest is
factored here, column by column. Pivots and permutations are index arithmetic, done on the host.
"""

import math

import numpy as np
import torch
from mindspore.scipy.ops import LU

from .. import elementary as E
from ..registry import Decline, kernel
from ..storage import NP_DTYPE, constant, ms, read, wrap
from .linalg import multiply
from .triangular import (
    check_info,
    columns,
    columns_like_first,
    conjugated,
    diagonal,
    dtype_of,
    expanded,
    eye,
    finite,
    is_complex,
    matrix,
    part,
    solve,
    transposed,
    triangle,
    where_lower,
    zeros,
)

P = ms.ops
_LU = LU()
_ABS, _ADD, _SUB, _MUL, _DIV, _SIGN = P.Abs(), P.Add(), P.Sub(), P.Mul(), P.Div(), P.Sign()
_COMPLEX_ABS, _REAL, _IMAG, _PROD, _SUM = P.ComplexAbs(), P.Real(), P.Imag(), P.ReduceProd(), P.ReduceSum()
_RESHAPE, _GATHER, _SELECT, _STACK = P.Reshape(), P.Gather(), P.Select(), P.Stack(1)
_CONCAT, _CONCAT_ROWS = P.Concat(-1), P.Concat(-2)

_PRIMITIVE = 128  # columns up to which MindSpore's primitive is the fastest
_PANEL = 64  # columns that are eliminated one by one; more are halved, to be left to MatMul


# -------------------------------------------------------------------------------------------------------------- factors


def factor(v):
    """(lu, pivots, info) of matrices v as LAPACK has them, the latter two as NumPy arrays."""
    *batch, m, n = v.shape
    k = min(m, n)
    if 0 in v.shape:
        return v, np.zeros((*batch, k), np.int32), np.zeros(batch, np.int32)
    found = _by_primitive(v) if m <= n <= _PRIMITIVE and not is_complex(v) else None
    if found is None:
        lu, _, pivots = _factor(_RESHAPE(v, (math.prod(batch), m, n)))
        found = _RESHAPE(lu, v.shape), pivots.reshape(*batch, k)
    zero = found[0].asnumpy().diagonal(axis1=-2, axis2=-1) == 0
    return *found, np.asarray(np.where(zero.any(-1), zero.argmax(-1) + 1, 0), np.int32)


def _by_primitive(v):
    lu, pivots, _ = _LU(v)
    return (lu, pivots.asnumpy() + 1) if finite(lu) else None


def _factor(v):
    """(lu, order, pivots) of matrices v (b, m, n): `order` has the rows in their new order."""
    _, m, n = v.shape
    k = min(m, n)
    if k <= _PANEL:
        return _by_columns(v)
    half = k // 2
    left, order, pivots = _factor(part(v, cols=(0, half)))
    right = _rows(part(v, cols=(half, n)), order)
    l11, l21 = part(left, rows=(0, half)), part(left, rows=(half, m))
    u12 = solve(l11, part(right, rows=(0, half)), True, unit=True)
    rest, last, more = _factor(_SUB(part(right, rows=(half, m)), multiply(l21, u12)))
    order[:, half:] = np.take_along_axis(order[:, half:], last, 1)
    lu = _CONCAT_ROWS((_CONCAT((l11, u12)), _CONCAT((_rows(l21, last), rest))))
    return lu, order, np.concatenate([pivots, more + half], 1).astype(np.int32)


def _by_columns(v):
    """Rows stay where they are until the end; `order` says which have been pivots."""
    b, m, n = v.shape
    k = min(m, n)
    each, order, pivots = np.arange(b), np.tile(np.arange(m), (b, 1)), np.empty((b, k), np.int32)
    lower, upper = [], []
    for j in range(k):
        column = part(v, cols=(j, j + 1))
        size = np.take_along_axis(_size(column).asnumpy().reshape(b, m), order[:, j:], 1)
        at = size.argmax(1)  # the first of the largest, or a NaN
        pivots[:, j] = j + at + 1
        order[each, j], order[each, j + at] = order[each, j + at], order[each, j]
        row = _rows(v, order[:, j : j + 1])
        pivot = part(row, cols=(j, j + 1))
        if (zero := size[each, at] == 0).any():  # nothing to eliminate
            pivot = _SELECT(ms.Tensor.from_numpy(zero.reshape(b, 1, 1)), constant(1, dtype_of(v), (b, 1, 1)), pivot)
        lower.append(_DIV(column, pivot))
        upper.append(_RESHAPE(row, (b, n)))
        if j + 1 < k:
            v = _SUB(v, _MUL(lower[-1], row))
        elif n > k:
            break
    low, up = _rows(_CONCAT(tuple(lower)), order), _STACK(tuple(upper))
    if m > n:
        up = _CONCAT_ROWS((up, zeros((b, m - n, n), up)))
    elif m < n:
        low = _CONCAT((low, zeros((b, m, n - m), low)))
    return where_lower(low, up, -1), order, pivots


def _size(v):
    """What LAPACK compares to find a pivot."""
    return _ADD(_ABS(_REAL(v)), _ABS(_IMAG(v))) if is_complex(v) else _ABS(v)


def _rows(v, index):
    """Rows of the matrices v (b, m, n) at `index` (b, r)."""
    b, m, n = v.shape
    at = (np.arange(b)[:, None] * m + index).astype(np.int64)
    if 0 in v.shape:
        return zeros((*index.shape, n), v)
    return _RESHAPE(_GATHER(_RESHAPE(v, (b * m, n)), ms.Tensor.from_numpy(at.reshape(-1)), 0), (*index.shape, n))


def _order(pivots, m):
    """The rows of m in the order in which exchanges by `pivots` leave them."""
    *batch, k = pivots.shape
    flat = pivots.reshape(math.prod(batch), k) - 1
    order, each = np.tile(np.arange(m), (len(flat), 1)), np.arange(len(flat))
    for j in range(k):
        at = flat[:, j]
        order[each, j], order[each, at] = order[each, at], order[each, j]
    return order.reshape(*batch, m)


def _permuted(v, order):
    batch = tuple(torch.broadcast_shapes(v.shape[:-2], order.shape[:-1]))
    v, m, n = expanded(v, batch), *v.shape[-2:]
    flat = np.broadcast_to(order, (*batch, m)).reshape(math.prod(batch), m)
    return _RESHAPE(_rows(_RESHAPE(v, (len(flat), m, n)), flat), v.shape)


def substitute(lu, order, b, adjoint=False):
    """x of a x = b, or of a^H x = b, for a of the factors `lu`, its rows in `order`."""
    if b.shape[-2] != lu.shape[-1]:
        raise Decline("expected sizes to match")
    if adjoint:
        y = solve(lu, solve(lu, b, False, trans=2), True, unit=True, trans=2)
        return _permuted(y, np.argsort(order, -1))
    return solve(lu, solve(lu, _permuted(b, order), True, unit=True), False)


def _lu_solve(lu, order, b, left, adjoint):
    if left:
        return substitute(lu, order, b, adjoint)
    return conjugated(substitute(lu, order, conjugated(b), not adjoint))


def _tensor(array):
    return ms.Tensor.from_numpy(np.ascontiguousarray(array) if array.ndim else array)


def _pivots(lu, pivots):
    """Pivots of the user's on the host, checked: torch refuses others."""
    k = min(lu.shape[-2:])
    if pivots.dtype is not torch.int32 or tuple(pivots.shape) != (*lu.shape[:-2], k):
        raise Decline("pivots of another type or shape")
    host = read(pivots).asnumpy()
    if host.size and (host.min() < 1 or host.max() > lu.shape[-2]):
        raise Decline("pivots out of range")
    return host


@kernel("linalg_lu_factor_ex", layout=columns_like_first)
def lu_factor_ex(x, *, pivot=True, check_errors=False):
    if not pivot:
        raise Decline("torch's CPU kernel always pivots")
    lu, pivots, info = factor(matrix(x))
    info = _tensor(info)
    check_info(info, check_errors)
    return lu, _tensor(pivots), info


def _permutation(order, dtype):
    p = np.zeros((*order.shape, order.shape[-1]), NP_DTYPE[dtype])
    np.put_along_axis(p, order[..., None, :], 1, -2)
    return _tensor(p)


def _unpacked(lu):
    m, n = lu.shape[-2:]
    k = min(m, n)
    low, up = part(lu, cols=(0, k)), part(lu, rows=(0, k))
    one = eye(m, k, dtype_of(lu), lu.shape[:-2])
    return (where_lower(low, one, -1) if low.size else one), triangle(up, False)


@kernel("linalg_lu")
def linalg_lu(x, *, pivot=True):
    if not pivot:
        raise Decline("torch's CPU kernel always pivots")
    lu, pivots, _ = factor(matrix(x))
    return _permutation(_order(pivots, x.shape[-2]), x.dtype), *_unpacked(lu)


@kernel("lu_unpack")
def lu_unpack(lu, pivots, unpack_data=True, unpack_pivots=True):
    v = matrix(lu)
    nothing = constant(0, lu.dtype, (0,))
    p = _permutation(_order(_pivots(lu, pivots), lu.shape[-2]), lu.dtype) if unpack_pivots else nothing
    return (p, *_unpacked(v)) if unpack_data else (p, nothing, nothing)


# ------------------------------------------------------------------------------------------------------------ solutions


def _solution(op, args, kwargs, v):
    """The layout of solutions: column-major, and row-major where the unknown is on the left; pivots and info are none."""
    if v.dtype == ms.int32 or getattr(v, "by_rows", False):
        return wrap(v)
    return columns(op, args, kwargs, v)


@kernel("linalg_lu_solve", layout=_solution)
def lu_solve(lu, pivots, b, *, left=True, adjoint=False):
    if lu.dtype is not b.dtype:
        raise Decline("dtypes differ")
    v = matrix(lu, square=True)
    x = _lu_solve(v, _order(_pivots(lu, pivots), v.shape[-1]), matrix(b), left, adjoint)
    x.by_rows = not left
    return x


@kernel("_linalg_solve_ex", layout=_solution)
def solve_ex(a, b, *, left=True, check_errors=False):
    if a.dtype is not b.dtype:
        raise Decline("dtypes differ")
    v = matrix(a, square=True)
    vector = b.dim() == 1 or b.shape == a.shape[:-1]
    if vector and not left:
        raise Decline("a vector on the left")
    lu, pivots, info = factor(v)
    check_info(_tensor(info), check_errors)
    x = _lu_solve(lu, _order(pivots, v.shape[-1]), matrix(b.unsqueeze(-1) if vector else b), left, False)
    x.by_rows = not left
    return _RESHAPE(x, x.shape[:-1]) if vector else x, lu, _tensor(pivots), _tensor(info)


@kernel("linalg_inv_ex", layout=columns_like_first)
def inv_ex(x, *, check_errors=False):
    v = matrix(x, square=True)
    lu, pivots, info = factor(v)
    info = _tensor(info)
    check_info(info, check_errors)
    return substitute(lu, _order(pivots, v.shape[-1]), eye(*v.shape[-2:], x.dtype, v.shape[:-2])), info


# --------------------------------------------------------------------------------------------------------- determinants


def _determinant_factors(x):
    """(lu, pivots, sign of the permutation) of x, or of its transpose."""
    v = matrix(x, square=True)
    # torch takes the transpose where that saves it a copy, and the gradient's formula asks the same question
    lu, pivots, _ = factor(transposed(v) if x.is_contiguous() and not x.dtype.is_complex else v)
    exchanged = (pivots != np.arange(1, v.shape[-1] + 1)).sum(-1)
    return lu, _tensor(pivots), _tensor(np.asarray(1 - 2 * (exchanged % 2), NP_DTYPE[x.dtype]))


@kernel("_linalg_det", layout=columns_like_first)
def det(x):
    lu, pivots, sign = _determinant_factors(x)
    return (_MUL(_PROD(diagonal(lu), (-1,)), sign) if lu.size else sign), lu, pivots


@kernel("_linalg_slogdet", layout=columns_like_first)
def slogdet(x):
    lu, pivots, sign = _determinant_factors(x)
    if not lu.size:
        return sign, constant(0, x.dtype.to_real(), sign.shape), lu, pivots
    d = diagonal(lu)
    return _MUL(_PROD(_SIGN(d), (-1,)), sign), _SUM(E.log(_COMPLEX_ABS(d) if is_complex(d) else _ABS(d)), (-1,)), lu, pivots
