"""What torch cannot be told through its dispatcher, patched once, for device tensors only.

Each entry says why. Everything else that a tensor or storage does is torch's own code.
"""

import functools
import itertools
import threading
import types

import torch
from torch.nn.parameter import UninitializedTensorMixin

_ADDRESS_SPACE = 1 << 46  # virtual addresses start above what a process maps
_next_address = itertools.count(_ADDRESS_SPACE, 1 << 32)


def is_ours(x):
    return x.device.type == "mindspore"


def apply():
    _patch_tensor()
    _patch_storage()
    _patch_generator()
    _patch_module()
    _patch_accelerator()


def _override(owner, name, when=is_ours):
    """Replace owner.name by a function that takes the original first, where `when(self)` holds."""

    def decorate(fn):
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(self, *args, **kwargs):
            if when(self):
                return fn(original, self, *args, **kwargs)
            return original(self, *args, **kwargs)

        setattr(owner, name, method)
        return fn

    return decorate


# ------------------------------------------------------------------------------------------------------------- tensors


def _patch_tensor():
    tensor = torch.Tensor

    @_override(tensor, "data_ptr")  # C++ has no memory to point at; identity is what callers compare
    def data_ptr(original, x):
        return address(x.untyped_storage()) + x.storage_offset() * x.element_size() if x.numel() else 0

    @_override(tensor, "pin_memory", when=lambda x: True)  # host memory needs no pinning for MindSpore to read it
    def pin_memory(original, x, device=None):
        return x

    @_override(tensor, "__dlpack__")  # C++ would export a null pointer
    def __dlpack__(original, x, **kwargs):
        raise BufferError("Expected a host tensor: a mindspore tensor has no address to export. Use x.cpu() first.")

    export = torch._C._to_dlpack

    def to_dlpack(x):
        return x.__dlpack__() if is_ours(x) else export(x)

    torch.to_dlpack = torch.utils.dlpack.to_dlpack = to_dlpack

    @_override(tensor, "share_memory_")  # as on CUDA: a no-op
    def share_memory_(original, x):
        return x


    contents = torch._tensor_str._tensor_str  # printing reads values one by one: once is enough

    @functools.wraps(contents)
    def tensor_str(x, indent):
        return contents(x.detach().cpu() if is_ours(x) else x, indent)

    torch._tensor_str._tensor_str = tensor_str


# ------------------------------------------------------------------------------------------------------------ storages


def address(s):
    """A number that is the same for all aliases of a storage and differs between live storages."""
    if not hasattr(s, "address"):
        s.address = next(_next_address)
    return s.address


def _patch_storage():
    storage = torch.UntypedStorage

    @_override(storage, "nbytes")  # C++ counts bytes of an allocator we do not have
    def nbytes(original, s):
        from .storage import capacity, itemsize

        return capacity(s) * itemsize(s) if hasattr(s, "buf") else original(s)

    storage.size = storage.nbytes
    _override(storage, "__len__")(lambda original, s: s.nbytes())

    @_override(storage, "data_ptr")
    def data_ptr(original, s):
        return address(s) if s.nbytes() else 0

    @_override(storage, "clone")  # deepcopy comes here
    def clone(original, s):
        from .storage import new_storage

        return new_storage(s)

    @_override(storage, "cpu")  # torch.save comes here
    def cpu(original, s):
        from .storage import host_bytes

        return host_bytes(s).clone().untyped_storage()

    @_override(storage, "_write_file")  # the legacy file format comes here
    def _write_file(original, s, *args):
        return original(s.cpu(), *args)

    @_override(storage, "resize_")
    def resize_(original, s, size):
        from .storage import resize_storage

        resize_storage(s, int(size))
        return s

    @_override(storage, "fill_")
    def fill_(original, s, value):
        from .storage import set_bytes

        set_bytes(s, torch.full((s.nbytes(),), int(value), dtype=torch.uint8, device="cpu"))
        return s

    @_override(storage, "__getitem__")
    def __getitem__(original, s, i):
        return s.cpu()[i]

    @_override(storage, "tolist")
    def tolist(original, s):
        return s.cpu().tolist()

    @_override(storage, "__reduce__")
    def __reduce__(original, s):
        return s.cpu().__reduce__()

    @_override(storage, "copy_", when=lambda s: True)
    def copy_(original, s, source, non_blocking=None):
        if not is_ours(s) and not is_ours(source):
            return original(s, source, non_blocking)
        from .storage import host_bytes, set_bytes

        data = host_bytes(source) if is_ours(source) else torch.tensor([], dtype=torch.uint8, device="cpu").set_(source)
        if is_ours(s):
            set_bytes(s, data.clone())
            return s
        return original(s, data.untyped_storage(), non_blocking)

    original_new = storage.__new__

    def __new__(cls, *args, device=None, **kwargs):  # C++ would look for an allocator and crash
        if device is not None and torch.device(device).type == "mindspore":
            from .storage import storage_from_bytes

            size = args[0] if args and isinstance(args[0], int) else 0
            data = torch.zeros(size, dtype=torch.uint8, device="cpu")
            if args and isinstance(args[0], (list, tuple)):
                data = torch.tensor(args[0], dtype=torch.uint8, device="cpu")
            return storage_from_bytes(data)
        return original_new(cls, *args, **({"device": device} if device is not None else {}), **kwargs)

    storage.__new__ = staticmethod(__new__)
    storage.mindspore = lambda s, device=None, non_blocking=False: to_device(s)


def to_device(s):
    """A device storage with the bytes of the host storage s."""
    from .device import activate

    if is_ours(s):
        return s
    activate()
    from .storage import storage_from_bytes

    return storage_from_bytes(torch.tensor([], dtype=torch.uint8, device="cpu").set_(s).clone())


# ---------------------------------------------------------------------------------------------------------- generators


def _patch_generator():
    """`torch.Generator(device="mindspore")` is a CPU generator: the device draws from the host (see random.py)."""
    original = torch.Generator

    class Meta(type(original)):
        def __instancecheck__(cls, x):
            return isinstance(x, original)

        def __subclasscheck__(cls, c):
            return issubclass(c, original)

    def __new__(cls, device="cpu"):
        d = torch.device(device)
        return original("cpu" if d.type == "mindspore" else d)

    torch.Generator = Meta("Generator", (original,), {"__new__": __new__, "__module__": "torch", "__doc__": original.__doc__})


# ------------------------------------------------------------------------------------------------------------- modules


def _patch_module():
    """`Module.to(device)` must keep the identity of parameters (an optimizer built before it), as it does for CUDA.

    torch changes `param.data`, which cannot change the kind of device; its other way, swapping the two tensors, can. But
    a swap takes hooks and Python attributes along, which `param.data =` leaves: they are put back.
    """
    original, swap = torch.nn.Module._apply, torch.utils.swap_tensors

    @functools.wraps(swap)
    def swap_tensors(a, b):
        if not _crossing.now:
            return swap(a, b)
        kept = dict(a.__dict__), a._backward_hooks, a._post_accumulate_grad_hooks
        lazy = type(a) if isinstance(a, UninitializedTensorMixin) else None  # torch hands a plain Parameter as b
        if type(a) is type(b) and a._use_count() == b._use_count() == 1:
            torch._C._swap_tensor_impl(a, b)  # nothing else refers to a: weak references to it may stay, too
        else:
            swap(a, b)
        if lazy is not None:
            a.__class__ = lazy
        a.__dict__.update(kept[0])
        if kept[1]:
            a._backward_hooks = kept[1]
        if kept[2]:
            a._post_accumulate_grad_hooks = kept[2]

    torch.utils.swap_tensors = swap_tensors

    @functools.wraps(original)
    def _apply(self, fn, recurse=True):
        if _crosses(self, fn):
            before = torch.__future__.get_swap_module_params_on_conversion()
            torch.__future__.set_swap_module_params_on_conversion(True)
            outer, _crossing.now = _crossing.now, True
            try:
                return original(self, fn, recurse)
            finally:
                _crossing.now = outer
                torch.__future__.set_swap_module_params_on_conversion(before)
        return original(self, fn, recurse)

    torch.nn.Module._apply = _apply


class _Crossing(threading.local):
    """Whether a module is being moved onto or off the device, on this thread."""

    now = False


_crossing = _Crossing()


def _crosses(module, fn):
    """Whether fn moves the module's parameters onto or off the device."""
    p = next(iter(module.parameters()), None)
    if p is None or p.device.type == "meta":
        return False
    if not isinstance(fn, types.FunctionType):
        return False
    with torch.no_grad():
        try:
            moved = fn(torch.empty(0, dtype=p.dtype, device=p.device))
        except Exception:
            return False  # the real conversion will say what is wrong
    return isinstance(moved, torch.Tensor) and (moved.device.type == "mindspore") != (p.device.type == "mindspore")


# --------------------------------------------------------------------------------------------------- torch.accelerator


def _patch_accelerator():
    """`torch.accelerator` asks C++ for an allocator and streams that a Python backend cannot provide."""
    module = torch.mindspore
    accelerator = torch.accelerator
    for name in ("synchronize", "current_stream", "set_stream", "empty_cache", "memory_allocated", "max_memory_allocated",
                 "memory_reserved", "max_memory_reserved", "memory_stats", "reset_peak_memory_stats",
                 "reset_accumulated_memory_stats"):  # fmt: skip
        replacement = getattr(module, name)
        setattr(accelerator, name, replacement)
        if hasattr(accelerator, "memory") and hasattr(accelerator.memory, name):
            setattr(accelerator.memory, name, replacement)
    accelerator.get_memory_info = module.mem_get_info
