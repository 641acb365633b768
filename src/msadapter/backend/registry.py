"""How ATen reaches our kernels.

    @kernel("addmm", "relu", ...)       a function of ATen's arguments that returns an `ms.Tensor` (or a tuple of them)

One registration serves the functional op, its in-place form (`add_`) and its `out=` form (`add.out`): those three differ
only in where the value goes. What a kernel cannot do (it raises, or says `Decline`) goes to `fallback.run`, which
answers with torch's own error when the call is wrong and with torch's CPU kernel when the call is right.
"""

import time

import torch
from torch import Tensor

from ..config import config
from . import fallback, routes
from .counters import CALLS, FALLBACKS, SECONDS
from .storage import (
    LOCK,
    MS_DTYPE,
    TORCH_DTYPE,
    create_empty_tensor,
    read,
    refuse_repeats,
    resize_output,
    storage_size,
    wrap,
    wrap_strided,
    write,
)

aten = torch.ops.aten
LIB = torch.library.Library("aten", "IMPL")
NATIVE: dict[str, object] = {}  # "add.Tensor" -> the function that implements it


class Decline(Exception):
    """Raised by a kernel that has no native way for this call (a dtype, an option): the host does it, counted."""


def overload(name):
    """`torch.ops.aten` overload for "add.Tensor" or "relu"."""
    base, _, rest = name.partition(".")
    return getattr(getattr(aten, base), rest or "default")


def kernel(*names, layout=False, variants=True, direct=None):
    """Register a function under ATen names on our device.

    layout: how strides follow inputs that are not contiguous. True (pointwise ops): as torch's Meta kernel says;
        "input": as `empty_like` of the first argument; "image": channels last in, channels last out; a function of
        (op, args, kwargs, value) that makes the result: whatever the strides of the inputs.
    variants: also register the in-place and `out=` forms that take the same arguments.
    direct: what the kernel comes to on float32 values of one shape (a primitive of one or two operands). It is called
        without asking where operands are whole, contiguous and alike; a small op costs half as much so.
    """

    def register(fn):
        for name in names:
            op = overload(name)
            run = _locked(_functional(op, fn, layout))
            _record(name, fn, _direct(op, direct, run) if direct else run)
            if variants:
                for form, make in ((_inplace_form(op), _inplace), (_out_form(op), _out)):
                    if form is not None:
                        run = _locked(make(form, op, fn, layout))
                        if direct and make is _inplace:
                            run = _direct(form, direct, run, in_place=True)
                        _derived.setdefault(_name(form), (fn, run))
        return fn

    return register


def raw(*names, metadata=False):
    """Register a function that takes and returns torch tensors itself (views, copies, random fills).

    metadata: it touches no values, and so needs no lock.
    """

    def register(fn):
        for name in names:
            _record(name, fn, fn if metadata else _locked(fn))
        return fn

    return register


def _locked(run):
    def call(*args, **kwargs):
        with LOCK:
            return run(*args, **kwargs)

    return call


_explicit: dict = {}  # "add.Tensor" -> (kernel, what torch calls)
_derived: dict = {}  # the in-place and out= forms of explicit kernels


def _record(name, fn, run):
    _explicit[name] = (fn, run)
    NATIVE[name] = fn


def shortcut(name):
    """Register a quicker way for the commonest calls of a kernel: a function of `run`, the kernel as torch calls it."""

    def register(make):
        fn, run = _explicit[name]
        _explicit[name] = (fn, make(run))
        return make

    return register


def in_place(name):
    """What torch would call for the in-place form `name` if no kernel file had registered it itself."""
    return _derived[name][1]


def install():
    """Hand every recorded kernel to torch. A form that a kernel file registers itself wins over a derived one."""
    for name, (fn, run) in {**_derived, **_explicit}.items():
        NATIVE[name] = fn
        LIB.impl(name, _timed(name, run) if config.profile else run, "PrivateUse1")


def _timed(name, run):
    def timed(*args, **kwargs):
        before, start = FALLBACKS.total(), time.perf_counter()
        result = run(*args, **kwargs)
        if FALLBACKS.total() == before:  # else the host did it, and counted it
            CALLS[name] += 1
            SECONDS[name] += time.perf_counter() - start
        return result

    return timed


# ---------------------------------------------------------------------------------------- one value, three destinations


_recording = False


def recording(on):
    """While a call is recorded, every kernel takes the long way, in which each primitive is seen."""
    global _recording
    _recording = on


def quick():
    """Whether shortcuts may be taken."""
    return not _recording


def _direct(op, primitive, run, in_place=False):
    """Try `primitive` on the bare buffers; whatever is not plain goes to `run`, errors included.

    Written out for speed: behind a MindSpore call the processor's caches are cold, and each step here counts fivefold.
    """
    float32, empty = torch.float32, create_empty_tensor
    whole, storage_of, hold, let_go = Tensor.is_contiguous, Tensor.untyped_storage, LOCK.acquire, LOCK.release
    compute = routes.bare(primitive)

    def unary(x):
        try:
            s = storage_of(x)
            shape = s.shape
            if s.dtype is float32 is x.dtype and shape == x.shape and whole(x) and not _recording:
                hold()
                try:
                    v = compute([s.buf])
                finally:
                    let_go()
                if in_place:
                    s.buf = v
                    return x
                out = empty(shape, float32)
                s = storage_of(out)
                s.buf, s.shape, s.dtype = v, shape, float32
                return out
        except Exception:  # a host tensor, say: the long way finds the words for it
            pass
        return run(x)

    def binary(x, y, **kwargs):
        try:
            s, t = storage_of(x), storage_of(y)
            shape = s.shape
            if (
                s.dtype is float32 is t.dtype
                and x.dtype is float32 is y.dtype
                and shape == x.shape == t.shape == y.shape
                and whole(x)
                and whole(y)
                and not kwargs
                and not _recording
            ):
                hold()
                try:
                    v = compute([s.buf, t.buf])
                finally:
                    let_go()
                if in_place:
                    s.buf = v
                    return x
                out = empty(shape, float32)
                s = storage_of(out)
                s.buf, s.shape, s.dtype = v, shape, float32
                return out
        except Exception:
            pass
        return run(x, y, **kwargs)

    tensors = [str(a.type) for a in op._schema.arguments if not a.kwarg_only]
    return {("Tensor",): unary, ("Tensor", "Tensor"): binary}.get(tuple(tensors), run)


def _functional(op, fn, layout):
    always = callable(layout)
    place = layout if always else _LAYOUTS.get(layout)

    def run(*args, **kwargs):
        try:
            v = fn(*args, **kwargs)
        except Exception as error:
            return fallback.run(op, args, kwargs, error)
        if layout:
            for a in args:
                if isinstance(a, Tensor) and (always or not a.is_contiguous()):
                    return place(op, args, kwargs, v)
        return wrap(v)

    def run_many(*args, **kwargs):
        try:
            values = fn(*args, **kwargs)
        except Exception as error:
            return fallback.run(op, args, kwargs, error)
        if layout and (always or any(isinstance(a, Tensor) and not a.is_contiguous() for a in args)):
            return tuple(place(op, args, kwargs, v) if v is not None else None for v in values)
        return tuple(wrap(v) if v is not None else None for v in values)

    def run_list(*args, **kwargs):
        try:
            values = fn(*args, **kwargs)
        except Exception as error:
            return fallback.run(op, args, kwargs, error)
        return [wrap(v) for v in values]

    returns = op._schema.returns
    if len(returns) > 1:
        return run_many
    return run_list if str(returns[0].type).startswith("List") else run


def _as_meta(op, args, kwargs, v):
    return wrap_strided(v, _meta_stride(op, args, kwargs))


def _meta_stride(op, args, kwargs):
    """The strides that torch's Meta kernel gives the (only) result."""
    if op in _REORDERED:
        op, args, kwargs = aten.add.Tensor, args[:2], {}
    return fallback.on_meta(op, args, kwargs, _AS_FLOAT).stride()


# Meta kernels of the half types lay out as if they computed in float32 and copied; the CPU's do not.
_AS_FLOAT = {torch.float16: torch.float32, torch.bfloat16: torch.float32}

# Ops of two tensors whose Meta kernel is a decomposition that does not begin with the first operand, as the op does.
_REORDERED = {
    *(aten.copysign.Tensor, aten.heaviside.default, aten.logit_backward.default, aten.logaddexp.default),
    *(aten.logaddexp2.default, aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default),
    *(aten.special_xlog1py.default, aten.xlogy.Tensor),
}


def _as_input(op, args, kwargs, v):
    """The strides of `torch.empty_like(first argument)`."""
    x = args[0]
    return wrap_strided(v, torch.empty_like(torch.empty_strided(x.shape, x.stride(), device="meta")).stride())


def _as_image(op, args, kwargs, v):
    """torch CPU's rule for convolution, pooling and the like: channels last in, channels last out."""
    images = [a for a in args[:2] if isinstance(a, Tensor) and a.dim() == 4 and not a.is_contiguous()]
    if len(v.shape) == 4 and any(_channels_last(a) for a in images):
        n, c, h, w = v.shape
        return wrap_strided(v, (h * w * c, 1, w * c, c))
    return wrap(v)


def _channels_last(x):
    """Whether torch's suggest_memory_format says so: it looks at the strides of dimensions of size 1, too."""
    shape, strides, least = x.shape, x.stride(), 0
    if strides[1] == 0:
        return False
    for d in (1, 3, 2, 0):
        if shape[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * max(shape[d], 1)
    return True


_LAYOUTS = {True: _as_meta, "input": _as_input, "image": _as_image}


def _inplace(form, op, fn, layout):
    pointwise = layout is True

    def run(self, *args, **kwargs):
        if pointwise:
            _refuse_partial_overlap(self, args)
        try:
            v = fn(self, *args, **kwargs)
            if v.shape != tuple(self.shape) or not _castable(v, self):
                raise Decline("the result does not fit its in-place target")
        except Exception as error:
            return fallback.run(form, (self, *args), kwargs, error)
        write(self, v)
        return self

    return run


def _out(form, op, fn, layout):
    pointwise = layout is True
    outs = [a.name for a in form._schema.arguments if a.is_out]
    casts = op.overloadpacket in _CASTING or any(a.name == "dtype" for a in form._schema.arguments)

    def run(*args, **kwargs):
        targets = [kwargs.pop(name) for name in outs]
        try:
            v = fn(*args, **kwargs)
            values = v if isinstance(v, (tuple, list)) else (v,)
            for value, target in zip(values, targets):
                if target.device.type != "mindspore" or not _castable(value, target):
                    raise Decline("the result does not fit out=")
                if value.shape != tuple(target.shape) and any(a is target for a in args):
                    raise Decline("an operand cannot be resized as out=")
                if not pointwise and value.dtype != MS_DTYPE[target.dtype]:  # some ops cast, others refuse
                    if not casts:
                        raise Decline("the host knows whether this op casts")
                    fallback.on_meta(form, args, {**kwargs, **dict(zip(outs, targets))})
        except Exception as error:
            return fallback.run(form, args, {**kwargs, **dict(zip(outs, targets))}, error)
        for value, target in zip(values, targets):
            refuse_repeats(target)
            if pointwise:
                _refuse_partial_overlap(target, args)
            resized = resize_output(target, value.shape)
            if resized and pointwise:
                for a in args:
                    if isinstance(a, Tensor) and not a.is_contiguous():
                        aten.as_strided_(target, value.shape, _meta_stride(op, args, kwargs))
                        break
            elif resized and callable(layout):
                aten.as_strided_(target, value.shape, layout(op, args, kwargs, value).stride())
            if op.overloadpacket in _APART:
                _refuse_shared(target, args)
            write(target, value)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return run


def _castable(v, target):
    return v.dtype == MS_DTYPE[target.dtype] or torch.can_cast(TORCH_DTYPE[v.dtype], target.dtype)


# Ops that are not pointwise, have no argument `dtype`, and convert to the dtype of out=.
_CASTING = {aten.cat, aten.logsumexp, aten.stack, aten.std, aten.var}

# Ops that copy elements: torch lets out= share no memory with an operand.
_APART = {aten.cat, aten.gather, aten.index_select, aten.masked_select, aten.take}


def _refuse_shared(target, operands):
    for x in torch.utils._pytree.tree_leaves(operands):
        if x is target or isinstance(x, Tensor) and _ranges_meet(x, target):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )


def _ranges_meet(a, b):
    if a.untyped_storage() is not b.untyped_storage() or 0 in (a.numel(), b.numel()):
        return False
    (i, j), (k, n) = ((x.storage_offset(), storage_size(x.shape, x.stride(), x.storage_offset())) for x in (a, b))
    return i < n and k < j


def _refuse_partial_overlap(target, operands):
    """torch's rule for pointwise ops: the written tensor may be an operand, but must not overlap one partly."""
    s = target.untyped_storage()
    for x in operands:
        if isinstance(x, Tensor) and x is not target and x.untyped_storage() is s and _overlap_partly(target, x):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )


def _overlap_partly(a, b):
    """ATen's get_overlap_status: it decides only where both tensors fill their range without gaps."""
    ranges = []
    for x in (a, b):
        reach = storage_size(x.shape, x.stride(), 0)
        if x.numel() == 0 or reach != x.numel() or not torch.ops.aten.is_non_overlapping_and_dense(x):
            return False
        ranges.append((x.storage_offset(), x.storage_offset() + reach))
    if ranges[0] == ranges[1]:
        return a.stride() != b.stride()
    return ranges[0][0] < ranges[1][1] and ranges[1][0] < ranges[0][1]


# -------------------------------------------------------------------------------------------------- finding the forms


def _signature(schema):
    return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]


def _name(op):
    name = op._schema.name.removeprefix("aten::")
    return f"{name}.{op._schema.overload_name}" if op._schema.overload_name else name


def _inplace_form(op):
    packet = getattr(aten, op._schema.name.removeprefix("aten::") + "_", None)
    overload_name = op._schema.overload_name or "default"
    if packet is None or overload_name not in packet.overloads():
        return None
    form = getattr(packet, overload_name)
    return form if _signature(form._schema) == _signature(op._schema) else None


def _out_form(op):
    packet = op.overloadpacket
    for name in packet.overloads():
        form = getattr(packet, name)
        if any(a.is_out for a in form._schema.arguments) and _signature(form._schema) == _signature(op._schema):
            return form
    return None


__all__ = ["Decline", "LIB", "NATIVE", "aten", "kernel", "overload", "raw", "read"]
