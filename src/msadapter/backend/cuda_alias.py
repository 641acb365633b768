"""Scripts that say 'cuda' (or 'npu'): both names are routed to the `mindspore` device, without a mode.

`enable()` is what `msadapter run` and `msadapter.enable(cuda_alias=True)` call. Three mechanisms, in this order:

* kernels on the CUDA dispatch key for the four factories that make memory: `torch.zeros(3, device="cuda")`,
  `nn.Linear(3, 4, device="cuda")`, `x.new_ones(2, device="cuda")` and every other factory end there;
* the tables below: what reads a device name in Python or C++ before it reaches a kernel;
* `torch.cuda`, whose functions become those of `torch.mindspore`.

What stays as it is: `torch.device("cuda")` is a CUDA device object, and a tensor's device prints as `mindspore:0`. So
`x.device == torch.device("cuda")` and `x.device.type == "cuda"` are False (`x.is_cuda` is True), and a function with
`device="cuda"` inside `torch.compile` is not routed. For 'npu', see npu_alias.py.
"""

import contextlib
import functools
import types

import torch
import torch.amp
import torch.utils._device

NAMES = ("cuda", "npu")
_enabled = False


def enable():
    """Route 'cuda' and 'npu' to the device. Safe to call more than once; it stays for the life of the process."""
    global _enabled
    if _enabled:
        return
    _enabled = True
    torch.utils._device._device_constructors()  # cached here: it must hold torch's own functions, not our wrappers
    _register_factories()
    _patch_names()
    _patch_tensor()
    _patch_storage()
    _patch_generator()
    _patch_data_parallel()
    _patch_cuda_module()
    torch.serialization.register_package(14, lambda storage: None, _restore)
    from . import npu_alias

    npu_alias.install()


# --------------------------------------------------------------------------------------------------------------- names


def route(d):
    """'cuda', 'cuda:0', torch.device('cuda'), 'npu:0' -> the mindspore device; anything else as it is."""
    if type(d) is str:
        kind, _, index = d.partition(":")
        return f"mindspore:{index}" if kind in NAMES and index else "mindspore" if kind in NAMES else d
    if isinstance(d, torch.device) and d.type == "cuda":
        return torch.device("mindspore") if d.index is None else torch.device("mindspore", d.index)
    return d


def routed(fn, position=None, name="device"):
    """fn with its device argument, positional or by keyword, routed."""

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        if position is not None and len(args) > position:
            args = (*args[:position], route(args[position]), *args[position + 1 :])
        if name in kwargs:
            kwargs[name] = route(kwargs[name])
        return fn(*args, **kwargs)

    return wrapper


# What parses a device itself: (owner, attribute, position of the device among the arguments, its keyword)
_PARSERS = [
    (torch, "tensor", None, "device"),
    (torch, "as_tensor", 2, "device"),
    (torch, "asarray", None, "device"),
    (torch.Tensor, "to", 1, "device"),
    (torch.Tensor, "new_tensor", None, "device"),
    (torch.nn.Module, "to", 1, "device"),
    (torch.nn.Module, "to_empty", None, "device"),
    (torch.utils._device.DeviceContext, "__init__", 1, "device"),  # set_default_device, `with torch.device("cuda")`
    (torch.amp.autocast, "__init__", 1, "device_type"),
    (torch.amp.GradScaler, "__init__", 1, "device"),
    (torch.amp, "custom_fwd", None, "device_type"),
    (torch.amp, "custom_bwd", None, "device_type"),
    (torch.amp.autocast_mode, "is_autocast_available", 0, "device_type"),
    (torch.amp, "is_autocast_available", 0, "device_type"),
    (torch, "get_autocast_dtype", 0, "device_type"),
    (torch, "set_autocast_dtype", 0, "device_type"),
    (torch, "get_device_module", 0, "device"),
]


def _patch_names():
    for owner, name, position, keyword in _PARSERS:
        setattr(owner, name, routed(getattr(owner, name), position, keyword))
    torch.amp.GradScaler.__init__ = _default_device(torch.amp.GradScaler.__init__)

    enabled = torch.is_autocast_enabled  # without an argument it asks about CUDA
    torch.is_autocast_enabled = functools.wraps(enabled)(lambda device_type="cuda": enabled(route(device_type)))
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("mindspore")


def _default_device(init):
    @functools.wraps(init)
    def __init__(self, device="mindspore", *args, **kwargs):
        return init(self, device, *args, **kwargs)

    return __init__


# ----------------------------------------------------------------------------------------------------------- factories

_FACTORIES = ("empty.memory_format", "empty_strided", "tril_indices", "triu_indices")
_LIB = torch.library.Library("aten", "IMPL")


def _register_factories():
    for name in _FACTORIES:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        _LIB.impl(name, functools.partial(_on_device, op), "CUDA", allow_override=True)


def _on_device(op, *args, device=None, pin_memory=None, **kwargs):
    return op(*args, device=route(device), **kwargs)


# --------------------------------------------------------------------------------------------------- tensors, storages


def _is_device(x):
    return x.device.type == "mindspore"


def _cuda(self, device=None, non_blocking=False, memory_format=torch.preserve_format):
    device = "mindspore" if device is None else f"mindspore:{device}" if isinstance(device, int) else device
    return self.to(device, non_blocking=non_blocking, memory_format=memory_format)


def _patch_tensor():
    tensor = torch.Tensor
    tensor.cuda = tensor.npu = _cuda
    tensor.is_cuda = tensor.is_npu = property(_is_device)
    torch.nn.Module.npu = lambda self, device=None: self._apply(lambda t: t.npu(device))
    record_stream, type_ = tensor.record_stream, tensor.type
    tensor.record_stream = lambda self, stream: None if _is_device(self) else record_stream(self, stream)

    @functools.wraps(type_)
    def typed(self, dtype=None, non_blocking=False, **kwargs):
        if dtype is None:
            return type_(self).replace("torch.mindspore.", "torch.cuda.")
        dtype = _tensor_type(dtype)
        if isinstance(dtype, _TensorType):
            return self.to("mindspore", dtype.dtype, non_blocking=non_blocking)
        return type_(self, dtype, non_blocking, **kwargs)

    tensor.type = typed


def _patch_storage():
    def cuda(self, device=None, non_blocking=False):
        return self.mindspore()

    torch.storage._StorageBase.cuda = torch.UntypedStorage.cuda = cuda
    torch.UntypedStorage.is_cuda = property(_is_device)


def _restore(storage, location):
    """torch.load: a storage saved on, or mapped to, 'cuda:0' or 'npu:0' comes to the device."""
    if location.partition(":")[0] in NAMES:
        if location.partition(":")[2] not in ("", "0"):
            raise RuntimeError(
                f"Expected device 0 (one device a process); received a checkpoint for {location!r}. "
                f"Load it with map_location='cuda:0' or map_location='cpu'."
            )
        return storage.mindspore()
    return None


class _TensorType(type):
    """`torch.cuda.FloatTensor`: makes device tensors; isinstance looks at device and dtype."""

    def __instancecheck__(cls, x):
        return isinstance(x, torch.Tensor) and x.dtype is cls.dtype and _is_device(x)

    def __call__(cls, *args, device=None):
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.as_tensor(args[0], dtype=cls.dtype, device="mindspore")
        return torch.empty(*args or (0,), dtype=cls.dtype, device="mindspore")


_TENSOR_TYPES = {
    name: _TensorType(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
    for name, dtype in {
        "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
        "BFloat16Tensor": torch.bfloat16, "ByteTensor": torch.uint8, "CharTensor": torch.int8,
        "ShortTensor": torch.int16, "IntTensor": torch.int32, "LongTensor": torch.int64, "BoolTensor": torch.bool,
    }.items()
}  # fmt: skip


def _tensor_type(t):
    """'torch.cuda.FloatTensor' -> the class; anything else as it is."""
    if isinstance(t, str):
        module, _, name = t.rpartition(".")
        if module in ("torch.cuda", "torch.npu", "torch.mindspore"):
            return _TENSOR_TYPES.get(name, t)
    return t


def _patch_generator():
    """`torch.Generator(device="cuda")` is a CPU generator, as for "mindspore"."""
    new = torch.Generator.__new__
    torch.Generator.__new__ = staticmethod(lambda cls, device="cpu": new(cls, route(device)))


# -------------------------------------------------------------------------------------------------------- DataParallel


def _patch_data_parallel():
    """One device: `nn.DataParallel(model)` keeps the module (and the 'module.' prefix) and moves inputs to it."""
    module = torch.nn.DataParallel

    def __init__(self, module, device_ids=None, output_device=None, dim=0):
        torch.nn.Module.__init__(self)
        ids = [0] if device_ids is None else [torch.device(route(i)).index or 0 for i in device_ids]
        if any(ids):
            raise RuntimeError(f"Expected device_ids=[0] (one device a process); received {device_ids}.")
        self.module, self.dim, self.device_ids, self.output_device = module.to("mindspore"), dim, [0], 0
        self.src_device_obj = torch.device("mindspore", 0)

    def forward(self, *inputs, **kwargs):
        return _parallel(self.module, inputs, kwargs)

    def data_parallel(module, inputs, device_ids=None, output_device=None, dim=0, module_kwargs=None):
        return _parallel(module, inputs if isinstance(inputs, tuple) else (inputs,), module_kwargs or {})

    module.__init__, module.forward = __init__, forward
    torch.nn.parallel.data_parallel = data_parallel


def _parallel(module, inputs, kwargs):
    move = functools.partial(torch.utils._pytree.tree_map_only, torch.Tensor, lambda x: x.to("mindspore"))
    return module(*move(inputs), **move(kwargs))


# ---------------------------------------------------------------------------------------------------------- torch.cuda

# torch.cuda.f becomes torch.mindspore.f
_SAME = """Event Stream current_device current_stream default_generators default_stream device device_count empty_cache
    get_device_capability get_device_name get_device_properties get_rng_state get_rng_state_all init initial_seed
    ipc_collect is_available is_bf16_supported is_initialized manual_seed manual_seed_all max_memory_allocated
    max_memory_reserved mem_get_info memory_allocated memory_reserved memory_stats memory_summary
    reset_accumulated_memory_stats reset_max_memory_allocated reset_peak_memory_stats seed seed_all set_device
    set_rng_state set_rng_state_all set_stream stream synchronize _is_in_bad_fork""".split()

# torch.cuda.f becomes a function that returns this, whatever its arguments
_ANSWERS = {
    "_lazy_init": None, "_lazy_call": None, "can_device_access_peer": False, "get_allocator_backend": "mindspore",
    "get_arch_list": [], "get_gencode_flags": "", "get_per_process_memory_fraction": 1.0, "get_sync_debug_mode": 0,
    "host_memory_stats": {}, "is_current_stream_capturing": False, "is_tf32_supported": False,
    "list_gpu_processes": "", "memory_snapshot": [], "reset_accumulated_host_memory_stats": None,
    "reset_peak_host_memory_stats": None, "set_per_process_memory_fraction": None, "set_sync_debug_mode": None,
}  # fmt: skip

_UNSUPPORTED = "CUDAGraph MemPool caching_allocator_alloc graph graph_pool_handle make_graphed_callables".split()


def functions():
    """{name: object} for `torch.cuda` and `torch.npu`."""
    ours = torch.mindspore
    table = {name: getattr(ours, name) for name in _SAME}
    table.update({name: _answer(value) for name, value in _ANSWERS.items()})
    table.update({name: _unsupported(name) for name in _UNSUPPORTED})
    table.update(
        device_of=lambda x: ours.device(0), StreamContext=_StreamContext,
        _get_device_properties=ours.get_device_properties, _device_count_nvml=ours.device_count,
        memory_cached=ours.memory_reserved, max_memory_cached=ours.max_memory_reserved,
        reset_max_memory_cached=ours.reset_peak_memory_stats, memory_stats_as_nested_dict=ours.memory_stats,
        get_stream_from_external=lambda *a, **k: ours.current_stream(), _initialized=True, **_TENSOR_TYPES,
    )  # fmt: skip
    return table


def _answer(value):
    return lambda *args, **kwargs: value


def _unsupported(name):
    def raises(self, *args, **kwargs):
        raise NotImplementedError(
            f"Expected no use of torch.cuda.{name}: the mindspore device has no such thing. "
            "Run the step directly, without it."
        )

    return type(name, (), {"__new__": raises, "__module__": "torch.cuda"})  # a class: torch asks isinstance of some


class _StreamContext:
    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        return self.stream

    def __exit__(self, *exc):
        return None


def _patch_cuda_module():
    cuda = torch.cuda
    for name, value in functions().items():
        if isinstance(value, types.MethodType):  # torch.compile wants one function object per name
            value = functools.wraps(value)(functools.partial(value))
        for module in (cuda, cuda.memory, cuda.random, cuda.streams, cuda.graphs):
            if module is cuda or hasattr(module, name):
                setattr(module, name, value)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, _answer(None))
    cuda.nvtx.range = lambda *args, **kwargs: contextlib.nullcontext()
    cuda.profiler.start = cuda.profiler.stop = _answer(None)
    torch.backends.cudnn.version = _answer(None)  # as in a PyTorch without cuDNN
    cuda.amp.custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="mindspore")
    cuda.amp.custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="mindspore")

    set_type = torch.set_default_tensor_type

    @functools.wraps(set_type)
    def set_default_tensor_type(t):
        t = _tensor_type(t)
        if isinstance(t, _TensorType):
            torch.set_default_dtype(t.dtype)
            torch.set_default_device("mindspore")
        else:
            set_type(t)

    torch.set_default_tensor_type = set_default_tensor_type


