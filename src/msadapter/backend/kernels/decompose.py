"""QR and its reflectors, singular and eigenvalues, least squares, the exponential of matrices.

What is empty never reaches a primitive: some of them divide by its size, and end the process.
"""

import functools
import math

import numpy as np
import torch
from mindspore.ops.operations.math_ops import Orgqr, SelfAdjointEig

from ..registry import Decline, aten, kernel
from ..storage import NP_DTYPE, cast, constant, ms, read_fresh
from .linalg import multiply
from .triangular import (
    columns,
    columns_like_first,
    conjugated,
    dtype_of,
    eye,
    finite,
    is_complex,
    matrix,
    part,
    prim,
    zeros,
)

P = ms.ops
_QR, _GEQRF, _ORGQR = {full: prim.Qr(full) for full in (False, True)}, prim.Geqrf(), Orgqr()
_EIGH = SelfAdjointEig(True)
_ABS, _COMPLEX_ABS, _REAL, _IMAG = P.Abs(), P.ComplexAbs(), P.Real(), P.Imag()
_ADD, _SUB, _MUL, _SUM, _MAX = P.Add(), P.Sub(), P.Mul(), P.ReduceSum(), P.ReduceMax()
_RESHAPE, _SELECT, _CONCAT, _CONCAT_ROWS = P.Reshape(), P.Select(), P.Concat(-1), P.Concat(0)


@functools.cache
def _svd(full, vectors):
    return prim.Svd(full, vectors)


def _magnitude(v):
    return _COMPLEX_ABS(v) if is_complex(v) else _ABS(v)


def _real(v):
    return _REAL(v) if is_complex(v) else v


def _nothing(dtype):
    return constant(0, dtype, (0,))


def product(u, v):
    """u @ v for equal batches, nothing among what may be empty."""
    shape = (*u.shape[:-1], v.shape[-1])
    return zeros(shape, u) if 0 in shape else multiply(u, v)


# ------------------------------------------------------------------------------------------------------------------- QR


@kernel("linalg_qr", layout=columns_like_first)
def qr(x, mode="reduced"):
    if mode not in ("reduced", "complete", "r"):
        raise Decline("torch has no such mode")
    v, full = matrix(x), mode == "complete"
    *batch, m, n = v.shape
    rows = m if full else min(m, n)
    if 0 in v.shape:
        q, r = eye(m, rows, x.dtype, batch), constant(0, x.dtype, (*batch, rows, n))
    else:
        q, r = _QR[full](v)
    return (_nothing(x.dtype) if mode == "r" else q), r


@kernel("geqrf", layout=columns_like_first)
def geqrf(x):
    v = matrix(x)
    if 0 in v.shape:
        return v, constant(0, x.dtype, (*v.shape[:-2], min(v.shape[-2:])))
    return _GEQRF(v)  # which has no complex kernel


def _reflectors(x, tau):
    """The values of x and tau, which must fit each other."""
    v, t = matrix(x), read_fresh(tau)
    if tau.dtype is not x.dtype or t.shape[:-1] != v.shape[:-2] or t.shape[-1] > min(v.shape[-2:]):
        raise Decline("expected as many factors as reflectors, of one dtype")
    return v, t


def _orthogonal(v, t):
    """The first columns, as many as v has, of the product of the reflectors."""
    *batch, m, n = v.shape
    if 0 in v.shape or 0 in t.shape:
        return eye(m, n, dtype_of(v), batch)
    return _ORGQR(v, t)


@kernel("linalg_householder_product", layout=columns)
def householder_product(x, tau):
    v, t = _reflectors(x, tau)
    if v.shape[-1] > v.shape[-2]:
        raise Decline("more columns than rows")
    return _orthogonal(v, t)


@kernel("ormqr", layout=columns)
def ormqr(x, tau, other, left=True, transpose=False):
    v, t = _reflectors(x, tau)
    c = matrix(other)
    m, k = v.shape[-2], t.shape[-1]
    if other.dtype is not x.dtype or c.shape[:-2] != v.shape[:-2] or c.shape[-2 if left else -1] != m:
        raise Decline("expected a matrix that fits the reflectors")
    square = _CONCAT((part(v, cols=(0, k)), zeros((*v.shape[:-1], m - k), v))) if m > k else part(v, cols=(0, k))
    q = _orthogonal(square, t)
    q = conjugated(q) if transpose else q
    return product(q, c) if left else product(c, q)


# ----------------------------------------------------------------------------------------------- singular and eigenvalues


def svd(v, full=False, vectors=True):
    """(u, s, v^H) of v; u and v^H are None without `vectors`."""
    *batch, m, n = v.shape
    k = min(m, n)
    if 0 in v.shape:
        dtype = dtype_of(v)
        s = constant(0, dtype.to_real(), (*batch, k))
        return eye(m, m if full else k, dtype, batch), s, eye(n if full else k, n, dtype, batch)
    if not finite(v):
        raise Decline("not finite")
    s, u, w = _svd(full, vectors)(v)
    return (u, _real(s), conjugated(w)) if vectors else (None, _real(s), None)


@kernel("_linalg_svd", layout=columns_like_first)
def linalg_svd(x, full_matrices=False, compute_uv=True, *, driver=None):
    if driver is not None:
        raise Decline("a driver is for CUDA")
    u, s, vh = svd(matrix(x), full_matrices, compute_uv)
    return (u, s, vh) if compute_uv else (_nothing(x.dtype), s, _nothing(x.dtype))


@kernel("_linalg_eigh", layout=columns_like_first)
def eigh(x, UPLO="L", compute_v=True):
    if UPLO.upper() not in ("L", "U"):
        raise Decline("torch has no such triangle")
    v = matrix(x, square=True)
    if 0 in v.shape:
        w = constant(0, x.dtype.to_real(), v.shape[:-1])
    elif not finite(v):
        raise Decline("not finite")
    else:
        w, v = _EIGH(conjugated(v) if UPLO.upper() == "U" else v)
        w = _real(w)
    return w, (v if compute_v else _nothing(x.dtype))


def _scaled(v, factors):
    """v with its columns multiplied by real factors."""
    return _MUL(v, _RESHAPE(cast(factors, dtype_of(v)), (*factors.shape[:-1], 1, factors.shape[-1])))


if hasattr(aten, "linalg_polar"):  # since torch 2.14

    @kernel("linalg_polar")
    def polar(x):
        v = matrix(x)
        if v.shape[-2] < v.shape[-1] or 0 in v.shape:
            raise Decline("expected no fewer rows than columns, and some")
        u, s, vh = svd(v)
        return product(u, vh), product(_scaled(conjugated(vh), s), vh)

    @kernel("linalg_matrix_sqrth")
    def matrix_sqrth(x):
        v = matrix(x, square=True)
        if 0 in v.shape:
            return v
        if not finite(v):
            raise Decline("not finite")
        w, q = _EIGH(v)
        return product(_scaled(q, P.Sqrt()(P.ReLU()(_real(w)))), conjugated(q))


# -------------------------------------------------------------------------------------------------------- least squares


@kernel("linalg_lstsq", layout=columns_like_first)
def lstsq(x, b, rcond=None, *, driver=None):
    """By singular values, whatever the driver: all find the shortest of the best solutions, of one rank."""
    driver = driver or "gelsy"
    vector = x.dim() - 1 == b.dim() and x.shape[:-1] == b.shape
    u, v = matrix(x), matrix(b.unsqueeze(-1) if vector else b)
    *batch, m, n = u.shape
    if driver not in ("gels", "gelsy", "gelsd", "gelss") or b.dtype is not x.dtype or v.shape[:-1] != u.shape[:-1]:
        raise Decline("expected a right side of the same dtype and batch, and a driver that the CPU has")
    real = x.dtype.to_real()
    if 0 in u.shape:
        if vector or (n == 0 < m and driver != "gelsy"):
            raise Decline("nothing to solve, and residuals of it")
        rank, s = constant(0, torch.int64, batch), constant(0, real, (*batch, min(m, n)))
        return _lstsq_results(zeros((*batch, n, v.shape[-1]), v), _nothing(real), rank, s, driver)
    if 0 in v.shape:
        raise Decline("no right side")
    left, s, right = svd(u)
    if rcond is None or rcond < 0:
        rcond = torch.finfo(x.dtype).eps * (max(m, n) if rcond is None else 1)
    singular = s.asnumpy()
    kept = singular > (rcond * singular.max(-1, keepdims=True) if driver != "gels" else 0)
    rank = np.asarray(kept.sum(-1), np.int64)
    mask = ms.Tensor.from_numpy(np.ascontiguousarray(kept))
    inverse = _SELECT(mask, P.Reciprocal()(_SELECT(mask, s, constant(1, real, s.shape))), constant(0, real, s.shape))
    scaled = _MUL(product(conjugated(left), v), _RESHAPE(cast(inverse, x.dtype), (*s.shape, 1)))
    solution = product(conjugated(right), scaled)
    residuals = _nothing(real)
    if m > n and driver != "gelsy" and (rank == n).all():
        rest = _SUB(product(u, solution), v)
        square = _ADD(_square(_REAL(rest)), _square(_IMAG(rest))) if is_complex(rest) else _square(rest)
        residuals = _SUM(square, (-2,))
    solution = _RESHAPE(solution, solution.shape[:-1]) if vector else solution
    return _lstsq_results(solution, residuals, ms.Tensor.from_numpy(rank), s, driver)


def _lstsq_results(solution, residuals, rank, s, driver):
    """What the driver answers."""
    rank = _nothing(torch.int64) if driver == "gels" else rank
    return solution, residuals, rank, s if driver in ("gelsd", "gelss") else constant(0, dtype_of(s), (0,))


def _square(v):
    return _MUL(v, v)


# ---------------------------------------------------------------------------------------------------------- exponential

_TERMS = np.array([[1 / math.factorial(4 * i + j) for j in range(4)] for i in range(5)])  # of the series, in fours
_NORM = {torch.float32: 3.010066362817634, torch.float64: 1.090863719290036}  # up to which 18 terms are exact


@kernel("linalg_matrix_exp")
def matrix_exp(x):
    """Twenty terms of the series of x / 2^s, squared s times; s is each matrix's own."""
    v = matrix(x, square=True)  # of the small floats, torch's CPU kernel makes NaN
    shape, dtype, n = v.shape, x.dtype, v.shape[-1]
    if 0 in shape:
        return v
    v = _RESHAPE(v, (-1, n, n))
    b = v.shape[0]
    norm = _MAX(_SUM(_magnitude(v), (-2,)), (-1,)).asnumpy().astype(np.float64)
    with np.errstate(divide="ignore"):
        times = np.where(np.isfinite(norm), np.maximum(np.ceil(np.log2(norm / _NORM[dtype.to_real()])), 0), 0)
    if times.any():
        v = _MUL(v, ms.Tensor.from_numpy(np.exp2(-times).astype(NP_DTYPE[dtype]).reshape(b, 1, 1)))
    v2 = multiply(v, v)
    v3, v4 = multiply(v2, v), multiply(v2, v2)
    powers = _CONCAT_ROWS(tuple(_RESHAPE(p, (1, -1)) for p in (eye(n, n, dtype, (b,)), v, v2, v3)))
    sums = multiply(ms.Tensor.from_numpy(_TERMS.astype(NP_DTYPE[dtype])), powers)
    sums = [_RESHAPE(part(sums, rows=(i, i + 1)), (b, n, n)) for i in range(5)]
    y = sums.pop()
    while sums:
        y = _ADD(multiply(y, v4), sums.pop())
    for i in range(int(times.max())):
        again = (times > i).reshape(b, 1, 1)
        square = multiply(y, y)
        y = square if again.all() else _SELECT(ms.Tensor.from_numpy(np.broadcast_to(again, (b, n, n)).copy()), square, y)
    return _RESHAPE(y, shape)
