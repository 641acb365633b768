"""Registers the device `mindspore` with torch, and `torch.mindspore`.

`register()` is cheap and runs inside `import torch` (entry point group `torch.backends`). MindSpore and the kernels are
loaded by `activate()`, the first time a device tensor is made.
"""

import contextlib
import os
import resource
import threading
import time
import types

import torch
from torch.utils import backend_registration

from .. import runtime
from ..runtime import ms

_lock = threading.RLock()
_registered = False
_active = False


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    """What C++ asks about the device."""

    def is_available(self):
        return True

    def has_primary_context(self, dev_id):
        return _active

    def is_built(self):
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self):
        return torch._C._autograd.DeviceType.PrivateUse1


def register():
    """Make `torch.device("mindspore")` known. Safe to call more than once."""
    global _registered
    with _lock:
        if _registered:
            return
        wrong = runtime.check_version("torch", torch.__version__)
        if wrong:
            raise ImportError(wrong)
        from . import patches, serialization

        backend_registration._setup_privateuseone_for_python_backend(
            "mindspore", backend_module=MindSporeModule("torch.mindspore"), hook=_Hooks(), device_guard=_Guard()
        )
        patches.apply()
        serialization.apply()
        _register_starters()
        _registered = True


def activate():
    """Import MindSpore and register every kernel."""
    global _active
    with _lock:
        if _active:
            return
        ms()
        from . import kernels

        starters = globals().pop("_starters", None)  # gone already if an import failed the last time
        if starters is not None:
            starters._destroy()
        kernels.load()
        _active = True


def _register_starters():
    """The two factories through which every first device tensor comes: they load the kernels, then call the real ones."""
    lib = torch.library.Library("aten", "IMPL")
    for name in ("empty.memory_format", "empty_strided"):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")

        def start(*args, _op=op, **kwargs):
            activate()
            return _op(*args, **kwargs)

        lib.impl(name, start, "PrivateUse1")
    globals()["_starters"] = lib  # the registration lives as long as the library object


# ------------------------------------------------------------------------------------------------------ torch.mindspore


def _check_index(device):
    """Device 0 is the only one in a process; anything else is torch's error for a wrong ordinal."""
    index = device if isinstance(device, int) else (torch.device(device).index if device is not None else 0)
    if index not in (None, 0, -1):
        raise RuntimeError(f"Expected mindspore device 0 (one device a process), got {index}: invalid device ordinal.")


class _Device(contextlib.AbstractContextManager):
    """`torch.mindspore.device(i)`: selects device i, which can only be 0."""

    def __init__(self, device):
        _check_index(device)

    def __exit__(self, *exc):
        return None


class Stream:
    """A stream that is always up to date: on CPU MindSpore runs every op before it returns."""

    def __init__(self, device=None, priority=0, **kwargs):
        _check_index(device)
        self.device = torch.device("mindspore", 0)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None

    def query(self):
        return True

    def synchronize(self):
        _synchronize()

    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        pass

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event


class Event:
    """An event; with `enable_timing`, `elapsed_time` is wall-clock milliseconds between two records."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, device=None):
        self.enable_timing, self._time = enable_timing, None

    def record(self, stream=None):
        _synchronize()
        self._time = time.perf_counter()

    def query(self):
        return True

    def wait(self, stream=None):
        pass

    def synchronize(self):
        _synchronize()

    def elapsed_time(self, end):
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("Expected both events to be made with enable_timing=True.")
        if self._time is None or end._time is None:
            raise ValueError("Expected both events to be recorded before elapsed_time().")
        return (end._time - self._time) * 1e3


def _synchronize(device=None):
    _check_index(device)
    if _active:
        from mindspore.common.api import _pynative_executor

        _pynative_executor.sync()


def _resident(device=None):
    """Bytes of memory this process holds: MindSpore has no counter of its own on CPU."""
    _check_index(device)
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def _peak(device=None):
    _check_index(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class MindSporeModule:
    """`torch.mindspore`: what `torch.cuda` offers a script, for one device."""

    Stream, Event, device = Stream, Event, _Device

    def __init__(self, name):
        self.__name__ = name

    def __repr__(self):
        return "<module 'torch.mindspore'>"

    # presence
    def is_available(self):
        return True

    def is_initialized(self):
        return _active

    def init(self):
        activate()

    _lazy_init = init

    def device_count(self):
        return 1

    def current_device(self):
        return 0

    def set_device(self, device):
        _check_index(device)

    def get_device_name(self, device=None):
        _check_index(device)
        return f"MindSpore {ms().__version__} ({ms().get_context('device_target')})"

    def get_device_capability(self, device=None):
        return (0, 0)

    def get_device_properties(self, device=None):
        _check_index(device)
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return types.SimpleNamespace(
            name=self.get_device_name(), total_memory=total, major=0, minor=0, multi_processor_count=os.cpu_count()
        )

    def synchronize(self, device=None):
        _synchronize(device)

    def is_bf16_supported(self, including_emulation=True):
        return True

    def get_amp_supported_dtype(self):
        return [torch.float16, torch.bfloat16]

    def _is_in_bad_fork(self):
        return runtime.forked

    # random numbers: torch's CPU generator is the device's
    def manual_seed(self, seed):
        torch.default_generator.manual_seed(int(seed))

    manual_seed_all = manual_seed

    def seed(self):
        torch.default_generator.seed()

    seed_all = seed

    def initial_seed(self):
        return torch.default_generator.initial_seed()

    def get_rng_state(self, device="mindspore"):
        return torch.default_generator.get_state()

    def set_rng_state(self, state, device="mindspore"):
        torch.default_generator.set_state(state.cpu())

    def get_rng_state_all(self):
        return [self.get_rng_state()]

    def set_rng_state_all(self, states):
        self.set_rng_state(states[0])

    @property
    def default_generators(self):
        return (torch.default_generator,)

    # streams
    def current_stream(self, device=None):
        return Stream()

    default_stream = current_stream

    def stream(self, stream):
        return stream if stream is not None else contextlib.nullcontext()

    def set_stream(self, stream):
        pass

    # memory: on CPU the device's memory is the process's
    memory_allocated = memory_reserved = staticmethod(_resident)
    max_memory_allocated = max_memory_reserved = staticmethod(_peak)

    def reset_peak_memory_stats(self, device=None):
        _check_index(device)

    reset_max_memory_allocated = reset_accumulated_memory_stats = reset_peak_memory_stats

    def empty_cache(self):
        pass

    ipc_collect = empty_cache

    def memory_stats(self, device=None):
        return {
            "allocated_bytes.all.current": self.memory_allocated(),
            "allocated_bytes.all.peak": self.max_memory_allocated(),
        }

    def memory_summary(self, device=None, abbreviated=False):
        return f"mindspore: {self.memory_allocated()} bytes allocated, {self.max_memory_allocated()} at the peak"

    def mem_get_info(self, device=None):
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")
