"""`torch.hash_tensor`: the exclusive or of the elements' 64 bits."""

import math

import numpy as np
import torch

from ..registry import Decline, kernel
from ..storage import cast, constant, ms, read
from .index import check_dim

_XOR, _CONCAT, _SLICE, _RESHAPE = ms.ops.BitwiseXor(), ms.ops.Concat(1), ms.ops.Slice(), ms.ops.Reshape()


def _seen_as(v, dtype):
    a = np.ascontiguousarray(v.contiguous().asnumpy())
    return ms.Tensor.from_numpy(a.view(dtype).reshape(v.shape))


@kernel("hash_tensor")
def hash_tensor(x, dim=(), *, keepdim=False, mode=0):
    if mode or x.dtype.is_complex or x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        raise Decline("no hash of this")
    dims = sorted({check_dim(d, x.dim()) for d in dim}) or list(range(x.dim()))
    if len(dims) < len(dim) or not all(x.shape[d] for d in dims if x.dim()):
        raise Decline("dims must differ, and have elements")
    if not x.dim():
        x, dims, keepdim = x.reshape(1), [0], False
    kept = [d for d in range(x.dim()) if d not in dims]
    shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims)
    rows = x.permute(kept + dims).reshape(math.prod(x.size(d) for d in kept), -1) if x.numel() else x
    if not x.numel():
        return _seen_as(constant(0, torch.int64, shape), np.uint64)
    v = cast(read(rows), torch.float64 if x.dtype.is_floating_point else torch.int64)
    v = _seen_as(v, np.int64)
    while v.shape[1] > 1:  # the second half upon the first
        m, n = v.shape
        half = n // 2
        joined = _XOR(_SLICE(v, (0, 0), (m, half)), _SLICE(v, (0, half), (m, half)))
        v = _CONCAT((joined, _SLICE(v, (0, n - 1), (m, 1)))) if n % 2 else joined
    return _seen_as(_RESHAPE(v, shape), np.uint64)
