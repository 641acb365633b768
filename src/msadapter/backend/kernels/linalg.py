"""Matrix products. A transposed operand is passed by MatMul's flag, not copied."""

import torch

from ..registry import kernel
from ..storage import constant, ms, read

_MATMUL = {(a, b): ms.ops.MatMul(transpose_a=a, transpose_b=b) for a in (False, True) for b in (False, True)}
_ADD, _MUL = ms.ops.Add(), ms.ops.Mul()


def _matrix(x):
    """(value, transposed): x or, where x is the transpose of a contiguous matrix, that matrix."""
    if not x.is_contiguous() and x.dim() == 2 and x.stride(0) == 1 and x.stride(1) >= x.size(0):
        return read(x.t()), True
    return read(x), False


def _check(a, b):
    if a.dtype is not b.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}")


@kernel("mm")
def mm(a, b):
    _check(a, b)
    (u, ta), (v, tb) = _matrix(a), _matrix(b)
    return _MATMUL[ta, tb](u, v)


@kernel("addmm")
def addmm(bias, a, b, beta=1, alpha=1):
    _check(a, b)
    product = mm(a, b)
    if alpha != 1:
        product = _MUL(product, constant(alpha, a.dtype))
    if beta == 0:
        return product
    return _ADD(product, read(bias) if beta == 1 else _MUL(read(bias), constant(beta, a.dtype)))
