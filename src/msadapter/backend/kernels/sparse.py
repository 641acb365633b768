"""Sparse COO tensors of the device: indices and values are device tensors, and torch keeps the two together.

What only asks for the parts is torch's own code, which knows no device. The arithmetic is the device's dense one.
"""

import torch

from ..registry import LIB, aten, raw

_KEY = "SparsePrivateUse1"
_PARTS = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)


def _parts(name):
    """Torch's kernel for sparse tensors, which builds one or takes it apart."""
    packet, _, overload = name.partition(".")
    redispatch = getattr(getattr(aten, packet), overload or "default").redispatch

    def call(*args, **kwargs):
        return redispatch(_PARTS, *args, **kwargs)

    LIB.impl(name, call, _KEY)


for _name in (
    "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_with_dims", "_indices", "_values", "indices", "values",
    "is_coalesced", "_coalesced_", "sparse_dim", "dense_dim", "_nnz",
):  # fmt: skip
    _parts(_name)


def sparse(name):
    """Register a function of sparse tensors, written in torch's operations."""

    def register(fn):
        LIB.impl(name, fn, _KEY)
        return fn

    return register


def _like(x, indices, values, coalesced=None):
    return torch.sparse_coo_tensor(indices, values, x.shape, is_coalesced=coalesced, check_invariants=False)


def _same_places(x, values):
    return _like(x, x._indices(), values, x.is_coalesced())


# ----------------------------------------------------------------------------------------------------------- conversion


@sparse("_coalesce")
def coalesce(x):
    """Each place once, in order, with the sum of its values."""
    indices, values, size = x._indices(), x._values(), x.shape[: x.sparse_dim()]
    if x._nnz() < 2:
        return _like(x, indices.clone(), values.clone(), True)
    place = indices.new_zeros(indices.size(1))
    for index, n in zip(indices, size):
        place = place * n + index
    places, at = torch.unique(place, return_inverse=True)
    total = values.new_zeros((places.numel(), *values.shape[1:])).index_add(0, at, values)
    columns = []
    for n in reversed(size):
        columns.append(places % n)
        places = places // n
    return _like(x, torch.stack(columns[::-1]), total, True)


@sparse("_to_dense")
def to_dense(x, dtype=None, masked_grad=None):
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    out = _added(out, x)
    return out if dtype is None else out.to(dtype)


@raw("_to_sparse")
def to_sparse(x, *, layout=None, blocksize=None, dense_dim=None):
    return _to_sparse(x, x.dim() - (dense_dim or 0), layout, blocksize)


@raw("_to_sparse.sparse_dim")
def to_sparse_dim(x, sparse_dim):
    return _to_sparse(x, sparse_dim)


def _to_sparse(x, sparse_dim, layout=None, blocksize=None):
    if layout not in (None, torch.sparse_coo) or blocksize is not None:
        raise NotImplementedError(f"Expected layout torch.sparse_coo, got {layout}: the mindspore device has no other.")
    if not 0 < sparse_dim <= x.dim() and x.dim():
        raise RuntimeError(f"sparse_dim must be in [1, {x.dim()}], got {sparse_dim}")
    chosen = x != 0
    if x.dim() > sparse_dim:
        chosen = chosen.flatten(sparse_dim).any(-1)
    indices = chosen.nonzero().t().contiguous()
    values = x[tuple(indices)] if x.dim() else x.reshape(1)[: indices.size(1)]
    return _like(x, indices, values, True)


@sparse("clone")
def clone(x, memory_format=None):
    return _like(x, x._indices().clone(), x._values().clone(), x.is_coalesced())


@sparse("sparse_mask")
def sparse_mask(x, mask):
    """x where mask has a place. (Torch sends a dense x here too: the mask is sparse.)"""
    x = x.to_dense() if x.is_sparse else x
    return _same_places(mask, x[tuple(mask._indices())])


# ----------------------------------------------------------------------------------------------------------- arithmetic


def _added(dense, x, alpha=1):
    values = x._values().to(dense.dtype)
    return dense.index_put(tuple(x._indices()), values if alpha == 1 else values * alpha, accumulate=True)


@sparse("add.Tensor")
def add(x, y, alpha=1):
    if x.shape != y.shape:
        raise RuntimeError(f"Expected operands of one size, got {tuple(x.shape)} and {tuple(y.shape)}.")
    if not x.is_sparse:
        return _added(x, y, alpha)
    if not y.is_sparse:
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    values = y._values() if alpha == 1 else y._values() * alpha
    return _like(x, torch.cat((x._indices(), y._indices()), 1), torch.cat((x._values(), values)))


@sparse("sub.Tensor")
def sub(x, y, alpha=1):
    return add(x, y, -alpha)


@sparse("add_.Tensor")
def add_(x, y, alpha=1):
    if not x.is_sparse:
        return x.copy_(add(x, y, alpha))
    x.data = add(x, y, alpha)
    return x


@sparse("sub_.Tensor")
def sub_(x, y, alpha=1):
    return add_(x, y, -alpha)


@sparse("zero_")
def zero_(x):
    x.data = _like(x, x._indices()[:, :0], x._values()[:0])
    return x


def _by_number(name):
    op = getattr(aten, name)

    @sparse(f"{name}.Tensor")
    def scaled(x, y):
        if isinstance(y, torch.Tensor) and y.dim():
            raise NotImplementedError(f"Expected a number to {name} a sparse tensor with, got a tensor.")
        return _same_places(x, op(x._values(), y))

    @sparse(f"{name}.Scalar")
    def scaled_by_scalar(x, y):
        return _same_places(x, op(x._values(), y))


for _name in ("mul", "div"):
    _by_number(_name)


@sparse("neg")
def neg(x):
    return _same_places(x, -x._values())


# ------------------------------------------------------------------------------------------------------------- products


@sparse("mm")
def mm(x, y):
    """A sparse matrix by a dense one: the rows of y that x points at, weighted and added up."""
    if not x.is_sparse or y.is_sparse:
        raise NotImplementedError("Expected a sparse matrix by a dense one. Use x.to_dense() @ y.to_dense() for others.")
    if x.dim() != 2 or y.dim() != 2 or x.size(1) != y.size(0) or x.dtype is not y.dtype or x.dense_dim():
        raise RuntimeError(
            f"Expected matrices of one dtype that fit, got {tuple(x.shape)} {x.dtype} and {tuple(y.shape)} {y.dtype}."
        )
    row, column = x._indices()
    terms = y.index_select(0, column) * x._values().unsqueeze(1)
    return y.new_zeros(x.size(0), y.size(1)).index_add(0, row, terms)


@sparse("addmm")
def addmm(bias, x, y, beta=1, alpha=1):
    product = mm(x, y) if alpha == 1 else mm(x, y) * alpha
    return product if beta == 0 else product + bias * beta
