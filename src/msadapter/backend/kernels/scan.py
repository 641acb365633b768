"""Running sums, products and extremes along a dimension."""

import torch

from ..registry import Decline, kernel
from ..storage import cast, constant, host, ms, read
from .index import check_dim, widened

from mindspore.ops.auto_generate import gen_ops_prim  # isort: skip

P = ms.ops
_CUM_SUM, _CUM_PROD, _LOG_CUM_SUM_EXP = P.CumSum(), P.CumProd(), P.CumulativeLogsumexp()
_RESHAPE = P.Reshape()
_EXTREME = {}  # (primitive, axis) -> instance
_LONG = 256  # torch adds float32 up in float64; beyond this length the difference shows


def _scan(x, dim, dtype, primitive):
    """The running `primitive` of x, computed in the type that keeps torch's accuracy."""
    dim = check_dim(dim, x.dim())
    if dtype is None:
        dtype = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64
    if not x.numel():
        return constant(0, dtype, tuple(x.shape))
    v = cast(read(x), dtype)
    if x.dim() == 0:
        return v
    work = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    if work is torch.float32 and x.size(dim) > _LONG:
        work = torch.float64
    if dtype is torch.bool:
        raise Decline("a running sum of bools")
    return cast(primitive(cast(v, work), dim), dtype)


@kernel("cumsum")
def cumsum(x, dim, dtype=None):
    return _scan(x, dim, dtype, _CUM_SUM)


@kernel("cumprod")
def cumprod(x, dim, dtype=None):
    return _scan(x, dim, dtype, _CUM_PROD)


@kernel("logcumsumexp", "_logcumsumexp")
def logcumsumexp(x, dim):
    dim = check_dim(dim, x.dim())
    if not x.numel() or x.dim() == 0:
        return read(x)
    if not bool(host(x).isfinite().all()):
        raise Decline("CumulativeLogsumexp treats inf and nan otherwise")
    work = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return cast(_LOG_CUM_SUM_EXP(cast(read(x), work), constant(dim, torch.int64)), x.dtype)


def _extreme(name, primitive):
    @kernel(name)
    def extreme(x, dim):
        dim = check_dim(dim, x.dim())
        if not x.numel():
            return constant(0, x.dtype, tuple(x.shape)), constant(0, torch.int64, tuple(x.shape))
        if x.dim() == 0:
            return read(x), constant(0, torch.int64)
        work = {torch.bool: torch.uint8, torch.bfloat16: torch.float32}.get(x.dtype, x.dtype)
        key = name, dim
        if key not in _EXTREME:
            _EXTREME[key] = primitive(dim)
        values, indices = _EXTREME[key](cast(read(x), work))
        return cast(values, x.dtype), widened(indices)


_extreme("cummax", P.Cummax)
_extreme("cummin", gen_ops_prim.Cummin)
