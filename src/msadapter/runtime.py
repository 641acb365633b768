"""How MindSpore is started: `ms()` imports it once, at the first use of the device, with settings that make it fast.

What is set, and why (each measured on MindSpore 2.10, CPU):

* oneDNN's instruction set is held at AVX2 on processors with AVX-512: convolutions become 50 to 100 times faster,
  MatMul up to twice slower. It is set in MindSpore's own copy of oneDNN, not in the environment: PyTorch has a copy
  too, which reads the same variable, and whose bfloat16 MatMul would become 20 times slower.
* Launch blocking on CPU: without it an op may wait milliseconds for its thread.
* No thread of its own for the front end on CPU: the caller's thread waits for it in a busy loop, which takes a core from
  the threads that compute. With two cores a compiled graph then stalls for 10 to 50 ms now and then.
* MindSpore's log: off, except for critical errors; what fails also raises a Python exception.

A user's own ONEDNN_MAX_CPU_ISA, GLOG_v or earlier `import mindspore` wins; MSADAPTER_CPU_ISA overrides all of them.
"""

import ctypes
import functools
import glob
import importlib.util
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType

from .config import config

SUPPORTED = {"torch": ((2, 13), (2, 15)), "mindspore": ((2, 10), (2, 11)), "numpy": ((1, 22), (2, 0))}

# The numbers of `dnnl_cpu_isa_t` in oneDNN 3.
_ISA = {
    "DEFAULT": 0x0, "SSE41": 0x1, "AVX": 0x3, "AVX2": 0x7, "AVX2_VNNI": 0xF, "AVX2_VNNI_2": 0x1F,
    "AVX512_CORE": 0x27, "AVX512_CORE_VNNI": 0x67, "AVX512_CORE_BF16": 0xE7, "AVX512_CORE_FP16": 0x1EF,
    "AVX512_CORE_AMX": 0xFEF, "AVX512_CORE_AMX_FP16": 0x1FEF,
}  # fmt: skip
_USER_ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")

forked = False  # True in a forked child whose parent had started MindSpore; its oneDNN ops would wait for ever there
when_started: list[Callable[[ModuleType], None]] = []  # called with MindSpore once it is configured
problems: list[str] = []  # what is wrong with the settings of this process, in words, for the doctor

_module: ModuleType | None = None
_lock = threading.RLock()


def ms() -> ModuleType:
    """The `mindspore` module; the first call imports and configures it."""
    return _module if _module is not None else _start()


def started() -> bool:
    """Whether MindSpore runs in this process already."""
    return _module is not None


def check_version(package: str, version: str) -> str | None:
    """None if the version is supported, else a sentence that says what to install."""
    low, high = SUPPORTED[package]
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if low <= found < high:
        return None
    return f'Expected {wanted(package)}; received {package} {version}. Install it with: pip install "{wanted(package)}"'


def wanted(package: str) -> str:
    """What to ask pip for: 'torch>=2.13,<2.15'."""
    low, high = SUPPORTED[package]
    return f"{package}>={low[0]}.{low[1]},<{high[0]}.{high[1]}" if package != "numpy" else "numpy<2"


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The processor's feature flags, as Linux names them; empty where /proc/cpuinfo has none."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith(("flags", "Features")):
                    return frozenset(line.split(":", 1)[1].split())
    except OSError:
        pass
    return frozenset()


def wanted_isa() -> str | None:
    """The instruction set that oneDNN shall be held at; None: leave it as it is."""
    if config.cpu_isa:
        return config.cpu_isa
    if any(os.environ.get(name) for name in _USER_ISA_VARIABLES):
        return None
    return "AVX2" if "avx512f" in cpu_flags() else None


def effective_isa() -> str:
    """The instruction set that MindSpore's oneDNN uses, such as 'AVX2'. MindSpore must have started."""
    library = _onednn()
    if library is None:
        return next((os.environ[v] for v in _USER_ISA_VARIABLES if os.environ.get(v)), "unknown")
    value = library.dnnl_get_effective_cpu_isa()
    return next((name for name, number in _ISA.items() if number == value), hex(value))


def _start() -> ModuleType:
    global _module
    with _lock:
        if _module is not None:
            return _module
        if forked:
            raise RuntimeError(
                "Expected the mindspore device to be used in the process that started it; received a use in a process "
                "forked from it, where MindSpore's threads do not exist. Start workers with "
                "multiprocessing_context='spawn' (or the DataLoader with num_workers=0), or keep device tensors out of "
                "the dataset and collate_fn and move each batch to the device in the training loop."
            )
        _check_installed()
        imported_before_us = "mindspore" in sys.modules
        module = sys.modules["mindspore"] if imported_before_us else _import()
        _require("mindspore", module.__version__)
        _hold_isa(imported_before_us)
        if module.get_context("device_target") == "CPU":
            module.runtime.launch_blocking()
            module.common.api._pynative_executor.disable_frontend_and_bprop_pipeline()
        for tell in when_started:
            tell(module)
        _module = module
        return module


def _check_installed() -> None:
    for package in ("numpy", "torch"):
        if package in sys.modules:
            _require(package, sys.modules[package].__version__)
    if "mindspore" not in sys.modules and importlib.util.find_spec("mindspore") is None:
        raise ImportError(
            "Expected MindSpore, which the mindspore device computes with; found no such package. "
            f'Install it with: pip install "{wanted("mindspore")}"'
        )


def _require(package: str, version: str) -> None:
    wrong = check_version(package, version)
    if wrong:
        raise ImportError(wrong)


def _import() -> ModuleType:
    os.environ.setdefault("GLOG_v", "4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mindspore
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    return mindspore


def _hold_isa(imported_before_us: bool) -> None:
    isa = wanted_isa()
    if isa is None:
        return
    library = _onednn()
    if library is None:  # a MindSpore without its own oneDNN file: the variable, read at oneDNN's first op, has to do
        os.environ["ONEDNN_MAX_CPU_ISA"] = isa
        return
    if library.dnnl_set_max_cpu_isa(_ISA[isa]) == 0 or effective_isa() == isa:
        return
    when = "MindSpore had run an op before the mindspore device was first used" if imported_before_us else "it is fixed"
    problems.append(
        f"Expected MindSpore's oneDNN at {isa}; it is at {effective_isa()} and cannot be changed any more ({when}). "
        f"Ops may be much slower, convolutions up to 100 times. Set ONEDNN_MAX_CPU_ISA={isa} in the environment, or "
        "use the device before any MindSpore op."
    )
    warnings.warn(problems[-1], RuntimeWarning, stacklevel=4)


@functools.cache
def _onednn() -> ctypes.CDLL | None:
    """MindSpore's own oneDNN library, which `import mindspore` has loaded."""
    found = glob.glob(os.path.join(os.path.dirname(sys.modules["mindspore"].__file__ or ""), "lib", "libdnnl.so*"))
    try:
        library = ctypes.CDLL(found[0]) if found else None
    except OSError:
        return None
    return library if hasattr(library, "dnnl_set_max_cpu_isa") else None


def _after_fork_in_child() -> None:
    global _module, forked, _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    if _module is not None:
        _module, forked = None, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
