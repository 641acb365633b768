"""The buffer behind a torch storage.

A device tensor is a plain `torch.Tensor` whose memory is an `ms.Tensor`, kept as the attribute `buf` of its storage
object: every alias (view, `detach`, `.data`, a saved tensor) shares the storage and therefore the buffer.

The rules every function here keeps:

* `buf` holds the storage's elements in storage order: read as a flat array, element i of `buf` is element i of the
  storage. Its own shape is that of whoever wrote it last, so that the common read needs no reshape.
* `buf` is fresh: contiguous, offset 0, never a MindSpore view of something else.
* `buf` is never changed in place, only replaced (MindSpore's in-place ops silently do nothing on CPU). Two storages may
  therefore hold the same buffer, a clone costs nothing, and host views of a buffer are safe to read for ever.
* `buf` is None until somebody writes: `pending` then says (number of elements, dtype), and the first read makes zeros.

Beside `buf`, `shape` and `dtype` (torch's) repeat what buf has, so that `read` decides in half a microsecond; `dtype` is
None where that fast way must not be taken (nothing written yet, no elements, bytes from a file, complex with its lazy
conjugation).
"""

import math
import os
import threading

import numpy as np
import torch

from .. import runtime
from .counters import Host

ms = runtime.ms()
from mindspore.ops.auto_generate import gen_ops_prim as _prim  # noqa: E402

_AS_STRIDED = _prim.AsStrided()
_CONTIGUOUS = _prim.Contiguous()
_RESHAPE = _prim.Reshape()
_TRANSPOSE = _prim.Transpose()
_CAST = ms.ops.Cast()
_SELECT = ms.ops.Select()
_NOT_EQUAL = ms.ops.NotEqual()
_SCATTER = ms.ops.TensorScatterUpdate()
_CONCAT = ms.ops.Concat(0)

# MindSpore's CPU kernels are not safe to run from several Python threads: one at a time. Kernels may call each other.
LOCK = threading.RLock()

_empty = create_empty_tensor = torch._C._acc.create_empty_tensor
_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
_as_strided_meta = torch.ops.aten.as_strided.default.redispatch
_set = torch.ops.aten.set_.source_Storage_storage_offset.redispatch

MS_DTYPE = {
    torch.float32: ms.float32, torch.float64: ms.float64, torch.float16: ms.float16, torch.bfloat16: ms.bfloat16,
    torch.int64: ms.int64, torch.int32: ms.int32, torch.int16: ms.int16, torch.int8: ms.int8,
    torch.uint8: ms.uint8, torch.bool: ms.bool_, torch.complex64: ms.complex64, torch.complex128: ms.complex128,
    torch.uint16: ms.uint16, torch.uint32: ms.uint32, torch.uint64: ms.uint64,
}  # fmt: skip
TORCH_DTYPE = {v: k for k, v in MS_DTYPE.items()}
_BY_ID = {id(v): k for k, v in MS_DTYPE.items()}  # MindSpore's dtypes are slow to hash, and single objects
_COMPLEX = {torch.complex64, torch.complex128}


def _torch_dtype(v):
    dtype = v.dtype
    return _BY_ID.get(id(dtype)) or TORCH_DTYPE[dtype]


NP_DTYPE = {d: torch.empty(0, dtype=d, device="cpu").numpy().dtype for d in MS_DTYPE if d is not torch.bfloat16}
NP_DTYPE[torch.bfloat16] = ms.Tensor(0, ms.bfloat16).asnumpy().dtype

_forked = False


def _after_fork_in_child():
    global _forked
    _forked = runtime.forked


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def check_dtype(dtype):
    if dtype not in MS_DTYPE:
        raise TypeError(
            f"Expected a dtype that MindSpore has, got {dtype}. The mindspore device supports: "
            + ", ".join(str(d).removeprefix("torch.") for d in MS_DTYPE)
            + ". Convert on the host first."
        )


# ---------------------------------------------------------------------------------------------- making device tensors


def wrap(v):
    """A new device tensor of v's shape and dtype that owns the fresh `ms.Tensor` v."""
    if not v.is_contiguous() or v.storage_offset():
        v = _CONTIGUOUS(v)
    shape, dtype = v.shape, _torch_dtype(v)
    x = _empty(shape, dtype)
    s = x.untyped_storage()
    s.buf, s.shape, s.dtype = v, shape, dtype
    if dtype in _COMPLEX:
        s.dtype = None
    if 0 in shape:
        s.dtype = None
        return as_strided(x, shape, contiguous_stride(shape), 0)
    return x


def store(s, v):
    """Make the fresh `ms.Tensor` v the content of the storage s."""
    dtype = _torch_dtype(v)
    shape = v.shape
    s.buf, s.shape, s.dtype = v, shape, None if dtype in _COMPLEX or 0 in shape else dtype


def new_empty(size, dtype, stride=None):
    """An uninitialised device tensor of `size`, with `stride` (elements; default: contiguous)."""
    check_dtype(dtype)
    size = tuple(size)
    if stride is None and 0 in size:
        stride = contiguous_stride(size)  # _empty's own strides for no elements are not torch's
    if stride is None:
        x = _empty(size, dtype)
        count = x.numel()
    else:
        count = storage_size(size, stride, 0)
        x = as_strided(_empty((count,), dtype), size, stride, 0)
    s = x.untyped_storage()
    s.buf, s.dtype, s.pending = None, None, (count, dtype)
    return x


def wrap_strided(v, stride):
    """Like `wrap`, with the given strides: v's elements are laid out in that order."""
    size = v.shape
    if stride == contiguous_stride(size):
        return wrap(v)
    if storage_size(size, stride, 0) != v.size:  # gaps between the elements, or none at all
        x = new_empty(size, _torch_dtype(v), stride)
        write(x, v)
        return x
    perm = sorted(range(len(size)), key=lambda d: (-stride[d], d))
    flat = _CONTIGUOUS(_TRANSPOSE(v, tuple(perm)))
    base = wrap(flat)
    return as_strided(base, size, stride, 0)


def as_strided(x, size, stride, offset):
    """A true alias of x, by metadata alone (torch's own Meta kernel makes it)."""
    return _as_strided_meta(_META, x, size, stride, offset)


def storage_size(size, stride, offset):
    """How many elements a storage must have to hold a tensor of this geometry."""
    last = offset
    for n, s in zip(size, stride):
        if n == 0:
            return offset
        last += (n - 1) * s
    return last + 1


def capacity(s):
    """Number of elements the storage `s` holds now."""
    return s.pending[0] if s.buf is None else s.buf.size


# ------------------------------------------------------------------------------------------------------------ reading


def read(x):
    """x's value as an `ms.Tensor` of x's shape. It may be a MindSpore view: pass it to primitives, never store it."""
    if _forked:
        runtime.ms()  # raises: MindSpore's threads do not exist in a forked process
    s = x.untyped_storage()
    try:
        if s.dtype is x.dtype and s.shape == x.shape and x.is_contiguous():
            return s.buf
    except AttributeError:
        return _read_host(x)
    buf = s.buf if s.buf is not None else _materialize(s)
    if x.is_conj() or x.is_neg():  # lazy bits, which few of our kernels see: torch resolves them before most
        return from_host(host(x))
    shape = tuple(x.shape)
    if x.is_contiguous() and buf.size == x.numel():
        if buf.shape != shape:
            buf = _RESHAPE(buf, shape)
        if buf.dtype is not MS_DTYPE[x.dtype] and buf.dtype != MS_DTYPE[x.dtype]:
            return from_host(host(x))
        return buf
    if buf.dtype != MS_DTYPE[x.dtype]:
        return from_host(host(x))
    return _AS_STRIDED(buf, shape, x.stride(), x.storage_offset())


def read_fresh(x):
    """Like `read`, but contiguous with offset 0: a value that may be stored in another storage."""
    v = read(x)
    return v if v.is_contiguous() and not v.storage_offset() else _CONTIGUOUS(v)


def _materialize(s):
    count, dtype = s.pending
    store(s, ms.Tensor.from_numpy(np.zeros(count, NP_DTYPE[dtype])))
    return s.buf


def _read_host(x):
    """x is not ours: a 0-dim host tensor is a scalar, anything else is torch's device error (or an implicit move)."""
    if x.device.type == "mindspore":  # made by C++ code that bypassed our factories
        s = x.untyped_storage()
        s.buf, s.dtype, s.pending = None, None, (storage_size(x.shape, x.stride(), x.storage_offset()), x.dtype)
        return read(x)
    if x.dim() == 0 and x.device.type == "cpu":
        return from_host(x)
    if Host.implicit and x.device.type == "cpu":
        Host.moved += 1
        return from_host(x)
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"mindspore:0 and {x.device}! Move the host tensor with .to('mindspore') first."
    )


def host(x):
    """A CPU tensor over the same memory as x, with x's size, stride, offset and dtype. For reading only."""
    s = x.untyped_storage()
    buf = getattr(s, "buf", None)
    if buf is None:
        if not hasattr(s, "pending"):
            _read_host(x)
        buf = s.buf if s.buf is not None else _materialize(s)
    flat = _host_flat(buf)
    if flat.dtype != x.dtype:
        flat = flat.view(x.dtype)
    return _lazy_bits(flat.as_strided(x.shape, x.stride(), x.storage_offset()), x)


def _lazy_bits(t, x):
    """The host tensor t, conjugated and negated as x's lazy bits say."""
    if x.is_conj():
        t = t.conj()
    return torch._neg_view(t) if x.is_neg() else t


def _host_flat(v):
    a = v.asnumpy()
    if v.dtype == ms.bfloat16:
        return torch.from_numpy(a.view(np.int16).reshape(-1)).view(torch.bfloat16)
    if v.dtype == ms.uint64:
        a = a.view(np.uint64)  # NumPy's name for it differs from torch's
    return torch.from_numpy(a.reshape(-1))


def from_host(t):
    """A CPU tensor as an `ms.Tensor` over the same memory: the caller must own that memory, or drop the value soon."""
    t = t.detach().resolve_conj().resolve_neg()
    if t._is_zerotensor():  # a gradient that is zero by formula has no memory
        t = torch.zeros(t.shape, dtype=t.dtype, device="cpu")
    if t.dtype is torch.bfloat16:
        return ms.Tensor.from_numpy(t.contiguous().view(torch.int16).numpy().view(NP_DTYPE[torch.bfloat16]))
    check_dtype(t.dtype)
    return ms.Tensor.from_numpy(np.ascontiguousarray(t.numpy()) if t.dim() else t.numpy())


def item(x):
    """The Python number in a one-element tensor. This waits for the device."""
    Host.syncs += 1
    return host(x).item()


def constant(value, dtype, shape=()):
    """A tensor full of the Python number `value`. It is built on the host: there is nothing to compute."""
    if dtype is torch.bfloat16:
        return from_host(torch.full(shape, value, dtype=dtype, device="cpu"))
    return ms.Tensor.from_numpy(np.full(shape, value, NP_DTYPE[dtype]))


_SELECTABLE = {d for d in MS_DTYPE if d not in (torch.bfloat16, torch.bool) and not d.is_complex and "uint" not in str(d)}
_COMPARABLE = {MS_DTYPE[d] for d in _SELECTABLE}
_SMALL = 1 << 18  # elements up to which Select beats Cast


def cast(v, dtype):
    """v converted to the torch dtype `dtype`, as torch converts. Cast takes 350 us to find its kernel, others 20."""
    target = MS_DTYPE[dtype]
    source = v.dtype
    if source is target or source == target:
        return v
    if source == ms.bool_ and dtype in _SELECTABLE and v.size <= _SMALL:
        return _SELECT(v, constant(1, dtype), constant(0, dtype))
    if dtype is torch.bool and source in _COMPARABLE:
        return _NOT_EQUAL(v, constant(0, TORCH_DTYPE[source]))
    return _CAST(v, target)


def broadcast(v, shape):
    """v expanded to `shape`."""
    return ms.ops.BroadcastTo(shape)(v)


# ------------------------------------------------------------------------------------------------------------ writing


def write(x, v):
    """Make v (an `ms.Tensor` of x's shape, cast to x's dtype) the value of x, seen by every alias of x."""
    if x.is_conj() or x.is_neg():
        v = from_host(torch.empty(x.shape, dtype=x.dtype, device="cpu").copy_(_lazy_bits(_host_flat(v).view(x.shape), x)))
    s = x.untyped_storage()
    try:
        buf = s.buf
    except AttributeError:
        if Host.implicit and x.device.type == "cpu":  # a host tensor changed in place by a device operand stays there
            Host.syncs += 1
            x.copy_(_host_flat(v if v.is_contiguous() and not v.storage_offset() else _CONTIGUOUS(v)).view(x.shape))
            return
        _read_host(x)  # raises unless x is a bare device tensor
        buf = s.buf
    if v.dtype != MS_DTYPE[x.dtype]:
        v = cast(v, x.dtype)
    if x.is_contiguous() and x.numel() == (s.pending[0] if buf is None else buf.size):
        if buf is not None and buf.dtype != MS_DTYPE[x.dtype]:
            return _write_host(x, v)
        store(s, v if v.is_contiguous() and not v.storage_offset() else _CONTIGUOUS(v))
        return
    if x.numel() == 0:
        return
    refuse_repeats(x)
    if buf is None:
        buf = _materialize(s)
    if buf.dtype != MS_DTYPE[x.dtype]:
        return _write_host(x, v)
    store(s, _scatter(buf, x, v))


def refuse_repeats(x):
    """torch's rule for a written tensor: no two of its elements in one place (where a stride of 0 says so)."""
    if 0 in x.stride() and any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride())):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def _scatter(buf, x, v):
    """buf with the elements that x addresses replaced by v."""
    n, size, offset = x.numel(), buf.size, x.storage_offset()
    flat = _RESHAPE(buf, (size,))
    if x.is_contiguous():  # one run of elements: glue head, v and tail
        parts = [_AS_STRIDED(flat, (offset,), (1,), 0)] if offset else []
        parts.append(_RESHAPE(v, (n,)))
        if offset + n < size:
            parts.append(_AS_STRIDED(flat, (size - offset - n,), (1,), offset + n))
        return _CONCAT(tuple(parts))
    perm = _dense_permutation(x, size)
    if perm is not None:
        return _RESHAPE(_CONTIGUOUS(_TRANSPOSE(v, perm)), (size,))
    index = ms.Tensor.from_numpy(_flat_index(x).reshape(n, 1))
    if buf.dtype == ms.bfloat16:  # no scatter kernel: float32 holds every bfloat16
        wide = _SCATTER(_CAST(flat, ms.float32), index, _CAST(_RESHAPE(_CONTIGUOUS(v), (n,)), ms.float32))
        return _CAST(wide, ms.bfloat16)
    return _SCATTER(flat, index, _RESHAPE(_CONTIGUOUS(v), (n,)))


def _dense_permutation(x, size):
    """The permutation that puts x's dimensions in storage order, if x covers its storage exactly; else None."""
    if x.numel() != size:
        return None
    stride = x.stride()
    perm = tuple(sorted(range(x.dim()), key=lambda d: (-stride[d], -x.shape[d])))
    expected = 1
    for d in reversed(perm):
        if x.shape[d] != 1:
            if stride[d] != expected:
                return None
            expected *= x.shape[d]
    return perm


def _flat_index(x):
    """Storage index of each element of x, as int64, in x's row-major order (host arithmetic on metadata only)."""
    index = np.full(tuple(x.shape), x.storage_offset(), np.int64)
    for d, (n, s) in enumerate(zip(x.shape, x.stride())):
        index += (np.arange(n, dtype=np.int64) * s).reshape([-1 if k == d else 1 for k in range(x.dim())])
    return index


def _write_host(x, v):
    """x reinterprets a buffer of another dtype (`view.dtype`): no primitive does that, so edit a host copy."""
    s = x.untyped_storage()
    flat = _host_flat(s.buf).clone()
    flat.view(x.dtype).as_strided(x.shape, x.stride(), x.storage_offset()).copy_(_host_flat(v).view(x.shape))
    store(s, from_host(flat))


def retype(s, dtype):
    """Reinterpret a storage of raw bytes (fresh from a file) as `dtype`; a storage that has a dtype keeps it."""
    if getattr(s, "raw", False):
        store(s, from_host(_host_flat(s.buf).view(dtype)))
        s.raw = False


def itemsize(s):
    """Bytes of one element of the storage's buffer."""
    return s.pending[1].itemsize if s.buf is None else s.buf.itemsize


def contiguous_stride(size):
    """Row-major strides (elements) of `size`, by torch's rule for empty dimensions."""
    stride, step = [], 1
    for n in reversed(tuple(size)):
        stride.append(step)
        step *= max(n, 1)
    return tuple(reversed(stride))


def resize(x, size):
    """`Tensor.resize_`: contiguous `size`; the storage grows when it must and never shrinks."""
    size = tuple(size)
    if tuple(x.shape) == size:
        return x
    s = x.untyped_storage()
    if getattr(s, "buf", s) is s:
        _read_host(x)
    need, have = x.storage_offset() + math.prod(size), capacity(s)
    if need > have:
        if s.buf is None:
            s.pending = (need, s.pending[1])
        else:
            dtype = TORCH_DTYPE[s.buf.dtype]
            store(s, _CONCAT((_RESHAPE(s.buf, (have,)), constant(0, dtype, (need - have,)))))
    return _set(_META, x, s, x.storage_offset(), size, contiguous_stride(size))


def resize_output(out, shape):
    """torch's rule for `out=`: resize when the shape differs, with a warning unless `out` was empty. True if resized."""
    if tuple(out.shape) == tuple(shape):
        return False
    if out.numel():
        import warnings

        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not match "
            f"the required output shape {list(shape)}. Resize it to zero elements first: t.resize_(0).",
            stacklevel=2,
        )
    resize(out, shape)
    return True


# ------------------------------------------------------------------------------------------- storages as torch sees them


def storage_from_bytes(data):
    """A device storage that takes over the uint8 host tensor `data`; it gets a dtype from the first tensor set on it."""
    s = _empty((data.numel(),), torch.uint8).untyped_storage()
    s.buf, s.dtype, s.raw = from_host(data), None, True
    return s


def new_storage(s):
    """A copy of a device storage."""
    c = _empty((0,), torch.uint8).untyped_storage()
    for name in ("buf", "shape", "dtype", "raw", "pending"):
        if hasattr(s, name):
            setattr(c, name, getattr(s, name))
    return c


def host_bytes(s):
    """The storage's bytes as a uint8 host tensor over the same memory. For reading only."""
    return _host_flat(s.buf if s.buf is not None else _materialize(s)).view(torch.uint8)


def set_bytes(s, data):
    """Replace the storage's bytes, keeping its dtype. `data` (uint8, on the host) is taken over."""
    dtype = s.pending[1] if s.buf is None else TORCH_DTYPE[s.buf.dtype]
    store(s, from_host(data.view(dtype)))


def resize_storage(s, nbytes):
    """`UntypedStorage.resize_`: keep what fits, zeros behind it."""
    data = torch.zeros(nbytes, dtype=torch.uint8, device="cpu")
    old = host_bytes(s)
    n = min(nbytes, old.numel())
    data[:n] = old[:n]
    set_bytes(s, data)
