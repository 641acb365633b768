"""What happens when MindSpore has no kernel for an op: torch's CPU kernel runs over the same memory, loudly.

`MSADAPTER_FALLBACK=warn` (default) warns once per op, `silent` only counts, `error` raises instead of computing.
The same path gives errors their torch form: a call that PyTorch refuses on the CPU raises PyTorch's own error here.
"""

import warnings

import torch
from torch.utils._pytree import tree_map

from .. import runtime
from ..config import config
from . import storage, tracing
from .counters import FALLBACKS, Host

_HOST = torch.device("cpu")


class FallbackWarning(UserWarning):
    """An op ran on the host because it has no native kernel."""


def is_device(x):
    return isinstance(x, torch.Tensor) and x.device.type == "mindspore"


def run(op, args, kwargs, error=None):
    """Run `op` with torch's CPU kernel. `error` is why the native kernel did not do it (None: there is none)."""
    if runtime.forked:
        runtime.ms()  # raises: say why the kernel could not run, rather than limp along on the host
    written = _written(op, args, kwargs)
    owned = {id(x) for x in written}
    twins = {}  # id(device tensor) -> its host twin; a tensor given twice must stay one tensor

    def to_host(x):
        if isinstance(x, torch.Tensor):
            if x.device.type == "mindspore":
                if id(x) not in twins:
                    twins[id(x)] = _private_copy(x) if id(x) in owned else storage.host(x)
                return twins[id(x)]
            _check_host(x)
            return x
        if isinstance(x, torch.device):
            return _HOST if x.type == "mindspore" else x
        return x

    host_args, host_kwargs = tree_map(to_host, (tuple(args), dict(kwargs)))
    if host_kwargs.get("pin_memory"):
        host_kwargs["pin_memory"] = False
    with torch._C._DisableTorchDispatch(), torch.device("cpu"):
        result = op(*host_args, **host_kwargs)  # torch's own error, if the call is wrong

    whole = op._schema.name
    name = whole.removeprefix("aten::")
    if config.fallback == "error":
        why = f" for this call ({type(error).__name__}: {_first_line(error)})" if error else ""
        raise NotImplementedError(
            f"Expected a native MindSpore kernel for {whole}, found none{why}. "
            "MSADAPTER_FALLBACK=error forbids running it on the host; use warn or silent to allow that."
        ) from error
    if tracing.recording():
        tracing.active.recorder.fail(f"aten::{name} runs on the host")
    FALLBACKS[name] += 1
    if FALLBACKS[name] == 1 and config.fallback == "warn":
        why = f" ({type(error).__name__}: {_first_line(error)})" if error else ""
        message = f"{whole} has no native MindSpore kernel for this call and runs on the host{why}."
        warnings.warn(message, FallbackWarning, stacklevel=3)

    for x in written:
        if is_device(x):
            _write_back(x, twins[id(x)])
    return _from_result(op, result, args, kwargs, twins)


# Arguments that CPU kernels change although the schema does not say so.
UNDECLARED_WRITES = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
}


def _written(op, args, kwargs):
    """The tensors that the op changes in place."""
    undeclared = UNDECLARED_WRITES.get(op._schema.name, ())
    values = [
        args[i] if i < len(args) else kwargs.get(a.name)
        for i, a in enumerate(op._schema.arguments)
        if a.name in undeclared or (a.alias_info is not None and a.alias_info.is_write)
    ]
    return list(_flatten(values))


def _first_line(error):
    return next(iter(str(error).strip().splitlines()), "")


def _check_host(x):
    if x.device.type == "cpu" and x.dim() and not Host.implicit:
        storage._read_host(x)


def _private_copy(x):
    """A host twin of x that may be written: same geometry over its own copy of the storage."""
    storage.host(x)  # makes the buffer, if nobody has written yet
    flat = storage._host_flat(x.untyped_storage().buf).clone()
    if flat.dtype != x.dtype:
        flat = flat.view(x.dtype)
    return flat.as_strided(x.shape, x.stride(), x.storage_offset())


def _write_back(x, twin):
    """Store what the host kernel left in x's twin, including a new shape after `out=` or `resize_`."""
    if twin.shape != x.shape or twin.stride() != x.stride():
        storage.resize(x, twin.shape)
    storage.write(x, storage.from_host(twin.contiguous()))


def wrap_host(t):
    """A device tensor that takes over the CPU tensor t's memory, with t's strides where they are dense."""
    if t.layout is not torch.strided:
        raise NotImplementedError(
            f"Expected a dense tensor, got layout {t.layout}: the mindspore device has no sparse tensors. Use .to_dense()."
        )
    t = t.resolve_conj().resolve_neg()
    if t.is_contiguous():
        return storage.wrap(storage.from_host(t))
    perm = sorted(range(t.dim()), key=lambda d: (-t.stride(d), d))
    dense = t.permute(perm)
    if not dense.is_contiguous():
        return storage.wrap(storage.from_host(t.contiguous()))
    return storage.as_strided(storage.wrap(storage.from_host(dense)), t.shape, t.stride(), 0)


def _from_result(op, result, args, kwargs, twins):
    bases = {}
    if any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns):
        bases = {twins[id(x)].untyped_storage()._cdata: x for x in _flatten(args) if id(x) in twins}
    originals = {id(twin): x for x in [*_flatten(args), *_flatten(kwargs.values())] if (twin := twins.get(id(x))) is not None}
    def back(r):
        if not isinstance(r, torch.Tensor):
            return r
        if id(r) in originals:
            return originals[id(r)]
        base = bases.get(r.untyped_storage()._cdata)
        if base is not None and r.dtype is base.dtype:  # a view of an argument: make it a view here too
            return storage.as_strided(base, r.shape, r.stride(), r.storage_offset())
        return wrap_host(r)

    return tree_map(back, result)


def _flatten(values):
    for v in values:
        if isinstance(v, (list, tuple)):
            yield from _flatten(v)
        elif isinstance(v, torch.Tensor):
            yield v


def on_meta(op, args, kwargs, dtypes=None):
    """Run `op` on the Meta device: shapes, strides and dtypes of the result, no values. dtypes: {operand's: another}."""

    def to_meta(x):
        if isinstance(x, torch.Tensor):
            if x.device.type != "mindspore" and not (x.device.type == "cpu" and x.dim()):
                return x  # a host tensor that is not a scalar only comes here where it may meet the device
            return torch.empty_strided(x.shape, x.stride(), dtype=(dtypes or {}).get(x.dtype, x.dtype), device="meta")
        if isinstance(x, torch.device):
            return torch.device("meta")
        return x

    args, kwargs = tree_map(to_meta, (tuple(args), dict(kwargs)))
    return op(*args, **kwargs)


_LIB = torch.library.Library("_", "IMPL")


def register():
    """Every op without a kernel comes to `run`."""

    def locked(op, *args, **kwargs):
        with storage.LOCK:
            return run(op, args, kwargs)

    _LIB.fallback(locked, "PrivateUse1")
