"""The name 'npu', which torch itself does not know: `import torch_npu`, `torch.npu`, `torch.device("npu:0")`.

Importing `torch_npu` (a stub is given), or the first use of `torch.npu`, makes 'npu' a name of the `mindspore` device:
`torch.device` becomes a class that translates it, and the factories accept it. Until then `torch.device` is untouched.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
import types

import torch

_active = False


def install():
    """Offer `torch.npu` and `import torch_npu`."""
    torch.npu = sys.modules["torch.npu"] = _Npu("torch.npu")
    sys.meta_path.insert(0, _Finder())


def activate():
    """Make 'npu' known wherever a device is given. Safe to call more than once."""
    global _active
    if _active:
        return
    _active = True
    from . import cuda_alias

    vars(torch.npu).update(cuda_alias.functions(), amp=torch.cuda.amp, random=torch.cuda.random)
    for name in ("set_compile_mode", "set_option", "config"):
        setattr(torch.npu, name, lambda *args, **kwargs: None)
    _replace_device()
    for owner, names in _FACTORIES.items():
        for name in names:
            setattr(owner, name, cuda_alias.routed(getattr(owner, name)))


_FACTORIES = {
    torch: """empty empty_strided empty_permuted ones zeros full arange range linspace logspace eye rand randn randint
        randperm tril_indices triu_indices scalar_tensor bartlett_window blackman_window hamming_window hann_window
        kaiser_window empty_like ones_like zeros_like full_like rand_like randn_like randint_like""".split(),
    torch.Tensor: "new_empty new_empty_strided new_full new_ones new_zeros".split(),
}


class _Npu(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__") or _active:
            raise AttributeError(f"module 'torch.npu' has no attribute {name!r}")
        activate()
        return getattr(self, name)


def _replace_device():
    """C++ refuses the word 'npu', and a device object cannot be subclassed: translate before it is made."""
    original = torch.device
    from .cuda_alias import route

    class Meta(type):
        def __call__(cls, *args, **kwargs):
            first = args[0] if args else kwargs.get("type", kwargs.get("device"))
            if type(first) is str and first.startswith("npu"):
                index = args[1] if len(args) > 1 else kwargs.get("index")
                return original(route(first)) if index is None else original("mindspore", index)
            return original(*args, **kwargs)

        def __instancecheck__(cls, x):
            return isinstance(x, original)

        def __subclasscheck__(cls, c):
            return issubclass(c, original)

        def __eq__(cls, other):  # torch.compile looks classes up in sets, and compares with torch.device
            return other is cls or other is original

        def __hash__(cls):
            return hash(original)

    torch.device = functools.wraps(original, updated=())(Meta("device", (), {"__module__": "torch"}))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """`import torch_npu` and what scripts import from it."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch_npu":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        activate()
        return torch.npu if spec.name == "torch_npu.npu" else None

    def exec_module(self, module):
        if module.__name__ == "torch_npu":
            module.__version__ = torch.__version__.partition("+")[0]
            module.npu = torch.npu
