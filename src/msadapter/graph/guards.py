"""What a recorded call depended on besides its tensors: Python values and objects that it can reach.

`Guards(fn, arguments)` walks from a function's closure, the globals that its code names and its arguments through
modules, optimizers, containers and plain objects, and notes numbers and strings by value, tensors and modules by
identity. `changed()` names the first that is another now, in words: "model.dropout.p (0.1, now 0.2)".

Not noted, because a compiled call asks anew each time: an optimizer's numbers and a scheduler's state (replay.py).
"""

import functools
import types

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)
LIMIT = 20_000  # things looked at; a walk that long has left the program
DEPTH = 6
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Guards:
    def __init__(self, fn, arguments=()):
        self._values, self._objects = [], []  # (container, key, expected, path)
        self._lengths = []  # (container, length, path)
        self.modules, self.optimizers = [], []
        self._seen = set()
        self._function(fn, "", 0)
        for i, a in enumerate(arguments):
            if not isinstance(a, torch.Tensor):
                self._walk(a, f"argument {i}", 1)

    def changed(self):
        """The path of the first thing that is no longer what it was, with its values; None if nothing is."""
        try:
            for container, key, expected, path in self._objects:
                if container[key] is not expected:
                    return f"{path} (another object)"
            for container, key, expected, path in self._values:
                now = container[key]
                if now is not expected and (type(now) is not type(expected) or now != expected):
                    return f"{path} ({expected!r}, now {now!r})"
            for container, length, path in self._lengths:
                if len(container) != length:
                    return f"{path} ({length} entries, now {len(container)})"
        except (KeyError, IndexError):
            return f"{path} (gone)"
        return None

    # --------------------------------------------------------------------------------------------------------- the walk

    def _note(self, container, key, path, depth):
        value = container[key]
        if isinstance(value, PLAIN):
            self._values.append((container, key, value, path))
        elif isinstance(value, torch.Tensor):
            self._objects.append((container, key, value, path))
        elif isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType, torch.jit.ScriptFunction)):
            return
        else:
            self._objects.append((container, key, value, path))
            self._walk(value, path, depth + 1)

    def _walk(self, x, path, depth):
        if id(x) in self._seen or depth > DEPTH or len(self._seen) > LIMIT:
            return
        self._seen.add(id(x))
        if isinstance(x, torch.nn.Module):
            self._module(x, path)
        elif isinstance(x, Optimizer):
            self._optimizer(x, path)
        elif isinstance(x, LRScheduler):
            return
        elif isinstance(x, torch.amp.GradScaler):
            self._some(x.__dict__, ("_enabled", "_scale", "_growth_tracker", "_growth_factor", "_backoff_factor"), path, depth)
        elif isinstance(x, dict):
            self._lengths.append((x, len(x), path))
            for key in list(x):
                self._note(x, key, f"{path}[{key!r}]", depth)
        elif isinstance(x, (list, tuple)):
            self._lengths.append((x, len(x), path))
            for i in range(len(x)):
                self._note(x, i, f"{path}[{i}]", depth)
        elif isinstance(x, (types.FunctionType, types.MethodType, functools.partial)):
            self._function(x, path, depth)
        elif hasattr(x, "__dict__") and type(x).__module__.partition(".")[0] not in _LIBRARIES:
            for key in list(x.__dict__):
                self._note(x.__dict__, key, f"{path}.{key}", depth)

    def _some(self, container, keys, path, depth):
        for key in keys:
            if key in container:
                self._note(container, key, f"{path}.{key}", depth)

    def _module(self, module, path):
        self.modules.append(module)
        for name, m in module.named_modules(prefix=path):
            self._seen.add(id(m))
            d = m.__dict__
            for key, value in d.items():
                if isinstance(value, PLAIN):
                    self._values.append((d, key, value, f"{name}.{key}"))
                elif key not in _TORCH_ATTRIBUTES and not isinstance(value, (types.ModuleType, type)):
                    self._note(d, key, f"{name}.{key}", 3)
            for kind in ("_parameters", "_buffers", "_modules", *_HOOKS):
                self._lengths.append((d[kind], len(d[kind]), f"{name}.{kind}"))
            for kind in ("_parameters", "_buffers", "_modules"):
                for key, value in d[kind].items():
                    self._objects.append((d[kind], key, value, f"{name}.{key}"))
            for key, p in d["_parameters"].items():
                if p is not None:
                    self._values.append((_Attribute(p, "requires_grad"), 0, p.requires_grad, f"{name}.{key}.requires_grad"))

    def _optimizer(self, optimizer, path):
        self.optimizers.append(optimizer)
        self._lengths.append((optimizer.state, len(optimizer.state), f"{path}.state"))
        self._lengths.append((optimizer.param_groups, len(optimizer.param_groups), f"{path}.param_groups"))
        for i, group in enumerate(optimizer.param_groups):
            where = f"{path}.param_groups[{i}]"
            self._lengths.append((group["params"], len(group["params"]), f"{where}['params']"))
            for k, p in enumerate(group["params"]):
                self._objects.append((group["params"], k, p, f"{where}['params'][{k}]"))
                for key, value in optimizer.state.get(p, {}).items():
                    if isinstance(value, torch.Tensor):
                        self._objects.append((optimizer.state[p], key, value, f"{path}.state[{k}][{key!r}]"))
            for key, value in group.items():
                if isinstance(value, (bool, str, type(None))):
                    self._values.append((group, key, value, f"{where}[{key!r}]"))

    def _function(self, fn, path, depth):
        while isinstance(fn, functools.partial):
            for i, a in enumerate((*fn.args, *fn.keywords.values())):
                self._walk(a, f"{path or 'partial'} argument {i}", depth + 1)
            fn = fn.func
        if isinstance(fn, torch.nn.Module) or not callable(fn):
            self._walk(fn, path or "module", depth)
            return
        if isinstance(fn, types.MethodType):
            self._walk(fn.__self__, path or "self", depth)
            fn = fn.__func__
        fn = getattr(fn, "__wrapped__", fn)
        code = getattr(fn, "__code__", None)
        if code is None:
            self._walk(getattr(fn, "__self__", None), path or "self", depth)
            if type(fn).__call__ is not types.FunctionType and hasattr(fn, "__dict__"):
                self._walk(fn.__dict__, path or "object", depth)
            return
        if fn.__module__ and fn.__module__.partition(".")[0] in _LIBRARIES:
            return
        self._seen.add(id(fn))
        for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
            self._note(_Cell(cell), 0, name, depth) if _filled(cell) else None
        for name in _names(code):
            if name in fn.__globals__:
                self._note(fn.__globals__, name, name, depth)
        for name, value in zip(code.co_varnames[code.co_argcount - len(fn.__defaults__ or ()) :], fn.__defaults__ or ()):
            self._walk(value, name, depth + 1)


_LIBRARIES = {"torch", "numpy", "mindspore", "msadapter", "builtins", "functools", "random", "time", "math", "threading"}
_TORCH_ATTRIBUTES = {*torch.nn.Module().__dict__, "_flat_weights", "_flat_weight_refs", "_all_weights", "_flat_weights_names"}


def _names(code):
    """The global names of a function's code and of the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _filled(cell):
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class _Cell:
    """A closure's cell, read like a container."""

    def __init__(self, cell):
        self._cell = cell

    def __getitem__(self, key):
        return self._cell.cell_contents


class _Attribute:
    def __init__(self, owner, name):
        self._owner, self._name = owner, name

    def __getitem__(self, key):
        return getattr(self._owner, self._name)
