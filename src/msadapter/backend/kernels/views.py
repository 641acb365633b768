"""Views, copies and factories: what moves or makes memory without computing."""

import torch

from .. import fallback, storage
from ..counters import Host
from ..registry import LIB, aten, raw
from ..storage import _META, as_strided, capacity, new_empty, read, read_fresh, wrap, write
from ..tracing import moved

# ---------------------------------------------------------------------------------------------------------- factories


def _check_device(device):
    if device is not None and device.index:
        raise RuntimeError(f"Expected mindspore:0 (one device a process), got {device}: invalid device ordinal.")


@raw("empty.memory_format", metadata=True)
def empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    _check_device(device)
    dtype = dtype or torch.get_default_dtype()
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"Expected a dense layout, got {layout}: the mindspore device has no sparse tensors.")
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return new_empty(size, dtype)
    return new_empty(size, dtype, torch.empty(size, device="meta", memory_format=memory_format).stride())


@raw("_efficientzerotensor")
def efficient_zero_tensor(size, dtype=None, layout=None, device=None, pin_memory=None):
    """Autograd's zeros. They need no bit of their own here: a buffer that nobody wrote reads as zeros."""
    return new_empty(size, dtype or torch.get_default_dtype())


@raw("empty_strided", metadata=True)
def empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    _check_device(device)
    return new_empty(size, dtype or torch.get_default_dtype(), tuple(stride))


# -------------------------------------------------------------------------------------------------------------- views


def _alias(name):
    packet, _, overload = name.partition(".")
    redispatch = getattr(getattr(aten, packet), overload or "default").redispatch

    @raw(name, metadata=True)
    def view(x, *args, **kwargs):
        return redispatch(_META, x, *args, **kwargs)


for _name in ("view", "unfold", "_reshape_alias", "view_as_real", "view_as_complex", "view.dtype"):
    _alias(_name)


def _check_bounds(x, s, size, stride, offset):
    need = storage.storage_size(size, stride, offset)
    if need > capacity(s) * storage.itemsize(s) // x.element_size() and 0 not in size:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and itemsize "
            f"{x.element_size()} requiring a storage size of {need * x.element_size()} are out of bounds for storage "
            f"of size {capacity(s) * storage.itemsize(s)}"
        )


@raw("as_strided", metadata=True)
def as_strided_kernel(x, size, stride, storage_offset=None):
    offset = x.storage_offset() if storage_offset is None else storage_offset
    s = x.untyped_storage()
    if hasattr(s, "buf"):
        _check_bounds(x, s, size, stride, offset)
    return as_strided(x, size, stride, offset)


_set = aten.set_.source_Storage_storage_offset.redispatch


@raw("as_strided_")
def as_strided_(x, size, stride, storage_offset=None):
    offset = x.storage_offset() if storage_offset is None else storage_offset
    s = x.untyped_storage()
    _check_bounds(x, s, size, stride, offset)
    return _set(_META, x, s, offset, size, stride)


@raw("resize_")
def resize_(x, size, memory_format=None):
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        raise NotImplementedError("Expected resize_ with memory_format contiguous on the mindspore device.")
    return storage.resize(x, size)


@raw("set_.source_Storage_storage_offset")
def set_storage(x, source, storage_offset, size, stride=()):
    if getattr(source, "buf", source) is source:
        raise RuntimeError("Expected a storage of the mindspore device, got one on another device. Use x.copy_() to move data.")
    storage.retype(source, x.dtype)
    stride = tuple(stride) or storage.contiguous_stride(size)
    _check_bounds(x, source, size, stride, storage_offset)
    return _set(_META, x, source, storage_offset, size, stride)


@raw("set_.source_Storage")
def set_whole_storage(x, source):
    n = capacity(source) * storage.itemsize(source) // x.element_size()
    return set_storage(x, source, 0, (n,), (1,))


@raw("set_.source_Tensor")
def set_tensor(x, source):
    if not fallback.is_device(source):
        raise RuntimeError(f"Expected a mindspore tensor as the source of set_, got one on {source.device}.")
    return _set(_META, x, source.untyped_storage(), source.storage_offset(), source.shape, source.stride())


@raw("set_")
def set_empty(x):
    return set_tensor(x, new_empty((0,), x.dtype))


# ------------------------------------------------------------------------------------------------------------- copies


def _own(src, dtype):
    return src.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)


@raw("_copy_from")
def copy_from(src, dst, non_blocking=False):
    if not fallback.is_device(dst):  # device -> host
        Host.syncs += 1
        dst.copy_(storage.host(src))
        return dst
    if not fallback.is_device(src):  # host -> device: our own copy, the host tensor may change later
        value = moved(src, lambda: storage.from_host(_own(src, dst.dtype)))
    else:
        value = storage.cast(read_fresh(src), dst.dtype) if src.dtype is not dst.dtype else read_fresh(src)
    shape = tuple(dst.shape)
    if value.shape != shape:
        if (common := tuple(torch.broadcast_shapes(value.shape, shape))) != shape:
            raise RuntimeError(
                f"output with shape {list(shape)} doesn't match the broadcast shape {list(common)}: "
                f"a source of shape {list(value.shape)} cannot be copied into it"
            )
        value = storage.broadcast(value, shape)
    write(dst, value)
    return dst


# Its schema does not say that dst is written, so torch would resolve dst's lazy bits into a copy and lose the write.
for _key in ("Conjugate", "Negative"):
    LIB.impl("_copy_from", torch.library.fallthrough_kernel, _key)


@raw("_copy_from_and_resize")
def copy_from_and_resize(src, dst):
    if tuple(src.shape) != tuple(dst.shape):
        dst.resize_(src.shape)
    return copy_from(src, dst)


@raw("clone")
def clone(x, memory_format=None):
    if memory_format in (None, torch.preserve_format):
        if not x.is_contiguous():
            stride = torch.empty_like(torch.empty_strided(x.shape, x.stride(), device="meta")).stride()
            if stride != storage.contiguous_stride(x.shape):
                return storage.wrap_strided(read(x), stride)
    elif memory_format is not torch.contiguous_format:
        out = empty(x.shape, x.dtype, memory_format=memory_format)
        write(out, read_fresh(x))
        return out
    return wrap(read_fresh(x))  # buffers are never changed in place, so sharing one is a copy


@raw("_local_scalar_dense")
def local_scalar_dense(x):
    return storage.item(x)
