"""What a recorded call depended on besides its tensors: Python values and objects that it can reach.

`Guards(fn, arguments)` walks from a function's closure, the globals that its code names and its arguments through
modules, optimizers, containers and plain objects, and notes numbers and strings by value, tensors and modules by
identity. `changed()` names the first that is another now, in words: "model.dropout.p (0.1, now 0.2)".

Of the user's own objects, classes and modules it notes what the code can ask for: the attributes whose names occur in the
function, or in a function that it names in turn. (A trainer's history of losses is no matter if the step never names it.)

Not noted, because a compiled call asks anew each time: an optimizer's numbers and a scheduler's state (replay.py). And not
noted, because they are taken to stay: the globals and classes of installed packages.
"""

import collections
import functools
import inspect
import itertools
import os
import sys
import types

import numpy as np
import torch
from torch.nn.modules import module as torch_module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .effects import is_users

PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size, np.generic)
LIMIT = 20_000  # things looked at; a walk that long has left the program
DEPTH = 24
SMALL = 1024  # elements of a host tensor that are compared
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = [name for name in vars(torch_module) if name.startswith("_global_") and name.endswith("_hooks")]


class Guards:
    def __init__(self, fn, arguments=()):
        self._values, self._objects = [], []  # (container, key, expected, path)
        self._lengths = []  # (container, length, path)
        self._arrays = []  # (array or host tensor, its values, path)
        self.modules, self.optimizers, self.tensors = [], [], []
        self.unfit = None  # the path of what each call moves on, so that no call is like another
        self._kept = arguments  # their ids are in the key
        self._seen = set()
        self._names, self._named = set(), {}  # names in the code so far; name -> what to do when it occurs
        self._function(fn, "", 0)
        for i, a in enumerate(arguments):
            if not isinstance(a, torch.Tensor):
                self._walk(a, f"argument {i}", 1)
        if self.modules:
            for name in _GLOBAL_HOOKS:
                self._keys(getattr(torch_module, name), f"torch's {name}")
        del self._seen, self._names, self._named

    def changed(self):
        """The path of the first thing that is no longer what it was, with its values; None if nothing is."""
        path = ""
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
            for array, expected, path in self._arrays:
                if not _same(array, expected):
                    return f"{path} (other values)"
        except (KeyError, IndexError, AttributeError, ValueError):
            return f"{path} (gone)"
        return None

    def grads(self):
        """{id(parameter): its gradient now}, of all parameters that are known."""
        known = [p for m in self.modules for p in m.parameters()]
        known += [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        return {id(p): p.grad for p in (*known, *self.tensors) if p.is_leaf}

    def storages(self):
        """The ids of the storages of all device tensors that are known, and what keeps those ids theirs."""
        known = [x for m in self.modules for x in (*m.parameters(), *m.buffers())]
        known += [x for o in self.optimizers for state in o.state.values() for x in state.values()]
        known += [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        known = [x for x in (*known, *self.tensors) if isinstance(x, torch.Tensor) and x.device.type == "mindspore"]
        return {id(s): s for s in (x.untyped_storage() for x in known)}

    # --------------------------------------------------------------------------------------------------------- the walk

    def _note(self, container, key, path, depth):
        value = container[key]
        if isinstance(value, PLAIN):
            self._values.append((container, key, value, path))
            return
        if isinstance(value, types.ModuleType):
            self._namespace(value, path, depth + 1)
            return
        if isinstance(value, (types.BuiltinFunctionType, torch.jit.ScriptFunction)):
            return
        self._objects.append((container, key, value, path))
        self._walk(value, path, depth + 1)

    def _walk(self, x, path, depth):
        if id(x) in self._seen or depth > DEPTH or len(self._seen) > LIMIT or isinstance(x, PLAIN):
            return
        self._seen.add(id(x))
        if isinstance(x, torch.Tensor):
            self._tensor(x, path)
        elif isinstance(x, np.ndarray):
            self._arrays.append((x, x.copy(), path))
        elif isinstance(x, torch.nn.Module):
            self._module(x, path)
        elif isinstance(x, Optimizer):
            self._optimizer(x, path)
        elif isinstance(x, LRScheduler):
            return
        elif isinstance(x, torch.amp.GradScaler):
            self._some(x.__dict__, _SCALER, path, depth)
        elif isinstance(x, dict):
            self._lengths.append((x, len(x), path))
            for key in list(x):
                self._note(x, key, f"{path}[{key!r}]", depth)
        elif isinstance(x, (list, tuple, collections.deque)):
            self._lengths.append((x, len(x), path))
            for i in range(len(x)):
                self._note(x, i, f"{path}[{i}]", depth)
        elif isinstance(x, (set, frozenset)):
            self._values.append((_Call(x.copy), 0, x.copy(), path))
        elif isinstance(x, type):
            self._class(x, path, depth)
        elif isinstance(x, (types.FunctionType, types.MethodType, functools.partial)):
            self._function(x, path, depth)
        elif isinstance(x, (types.GeneratorType, itertools.count, itertools.cycle)) or hasattr(x, "__next__"):
            self.unfit = self.unfit or f"{path} (an iterator or a file)"
        elif isinstance(x, (np.random.Generator, np.random.RandomState)):
            self._values.append((_Call(lambda: repr(_state(x))), 0, repr(_state(x)), path))
        elif _is_open(type(x)):
            self._object(x, path, depth)

    def _object(self, x, path, depth):
        """Attributes: of the user's own classes those that the code names, of others all."""
        own = _users_class(type(x))
        for key in list(getattr(x, "__dict__", ())):
            note = functools.partial(self._note, x.__dict__, key, f"{path}.{key}", depth)
            self._when(key, note) if own else note()
        for cls in type(x).__mro__:
            for key in _slots(cls):
                if hasattr(x, key):
                    self._note(_Attribute(x, key), 0, f"{path}.{key}", depth)
        if own:  # the code may add attributes, or take them away
            held = x.__dict__ if hasattr(x, "__dict__") else {}
            self._values.append((_Call(lambda: frozenset(held)), 0, frozenset(held), f"{path}'s attributes"))
        self._classes(type(x), path, depth)

    def _classes(self, cls, path, depth):
        for c in cls.__mro__:
            if id(c) not in self._seen and _users_class(c):
                self._seen.add(id(c))
                self._class(c, c.__name__, depth)

    def _class(self, cls, path, depth):
        """A class of the user: its methods are code, its other attributes are values."""
        if not _users_class(cls):
            return
        for key, value in list(vars(cls).items()):
            held = value
            value = getattr(value, "__func__", None) or getattr(value, "fget", None) or getattr(value, "func", None) or value
            if isinstance(value, types.FunctionType):
                act = functools.partial(self._method, cls, key, held, value, f"{path}.{key}", depth + 1)
                if key in _MAKING:
                    self._when(cls.__name__, act)
                else:
                    act() if key.startswith("__") or key == "forward" else self._when(key, act)
            elif not key.startswith("__") and not inspect.isdatadescriptor(value):
                self._when(key, functools.partial(self._note, _Attribute(cls, key), 0, f"{path}.{key}", depth + 1))

    def _method(self, cls, key, held, function, path, depth):
        self._objects.append((vars(cls), key, held, path))
        self._function(function, path, depth)

    def _namespace(self, module, path, depth):
        """A Python module of the user."""
        if id(module) in self._seen or not _users_module(module):
            return
        self._seen.add(id(module))
        for key in list(vars(module)):
            if not key.startswith("__"):
                self._when(key, functools.partial(self._note, vars(module), key, f"{path}.{key}", depth))

    def _when(self, name, act):
        """Do `act` now or when the code turns out to contain `name`."""
        if name in self._names:
            act()
        else:
            self._named.setdefault(name, []).append(act)

    def _some(self, container, keys, path, depth):
        for key in keys:
            if key in container:
                self._note(container, key, f"{path}.{key}", depth)

    def _keys(self, container, path):
        """A dict of hooks: the very same ones."""
        self._values.append((_Call(lambda: tuple(container)), 0, tuple(container), path))

    def _tensor(self, x, path):
        self.tensors.append(x)
        if x.device.type == "cpu":
            if x.numel() <= SMALL:
                self._arrays.append((x, x.detach().clone(), path))
            else:
                self._values.append((_Attribute(x, "_version"), 0, x._version, f"{path} (times written)"))
        self._leaf(x, path)

    def _leaf(self, p, path):
        self._values.append((_Attribute(p, "requires_grad"), 0, p.requires_grad, f"{path}.requires_grad"))
        if p.requires_grad:
            self._values.append((_Call(lambda: _tensor_hooks(p)), 0, _tensor_hooks(p), f"hooks of {path}"))

    def _module(self, module, path):
        self.modules.append(module)
        for name, m in module.named_modules(prefix=path):
            self._seen.add(id(m))
            d = m.__dict__
            for key, value in list(d.items()):
                if isinstance(value, PLAIN):
                    self._values.append((d, key, value, f"{name}.{key}"))
                elif key not in _TORCH_ATTRIBUTES and not isinstance(value, (types.ModuleType, type)):
                    self._note(d, key, f"{name}.{key}", 3)
            self._lengths.append((d, len(d), f"{name}'s attributes"))
            for kind in ("_parameters", "_buffers", "_modules"):
                self._lengths.append((d[kind], len(d[kind]), f"{name}.{kind}"))
            for kind in _HOOKS:
                self._keys(d[kind], f"{name}.{kind}")
                for hook in d[kind].values():
                    self._walk(hook, f"{name}.{kind}", 3)
            for kind in ("_parameters", "_buffers", "_modules"):
                for key, value in d[kind].items():
                    self._objects.append((d[kind], key, value, f"{name}.{key}"))
            for key, p in d["_parameters"].items():
                if p is not None and id(p) not in self._seen:
                    self._seen.add(id(p))
                    self._leaf(p, f"{name}.{key}")
            for key, b in d["_buffers"].items():
                if b is not None and b.device.type == "cpu":
                    self._walk(b, f"{name}.{key}", 3)
            self._classes(type(m), name, 3)

    def _optimizer(self, optimizer, path):
        self.optimizers.append(optimizer)
        self._objects.append((optimizer.__dict__, "state", optimizer.state, f"{path}.state"))
        self._objects.append((optimizer.__dict__, "param_groups", optimizer.param_groups, f"{path}.param_groups"))
        self._lengths.append((optimizer.state, len(optimizer.state), f"{path}.state"))
        self._lengths.append((optimizer.param_groups, len(optimizer.param_groups), f"{path}.param_groups"))
        for i, group in enumerate(optimizer.param_groups):
            where = f"{path}.param_groups[{i}]"
            self._objects.append((optimizer.param_groups, i, group, where))
            self._lengths.append((group["params"], len(group["params"]), f"{where}['params']"))
            for k, p in enumerate(group["params"]):
                self._objects.append((group["params"], k, p, f"{where}['params'][{k}]"))
                if id(p) not in self._seen:
                    self._seen.add(id(p))
                    self._leaf(p, f"{where}['params'][{k}]")
                if p in optimizer.state:  # a look at a missing one would make it
                    state = optimizer.state[p]
                    now = _Call(functools.partial(optimizer.state.get, p))
                    self._objects.append((now, 0, state, f"{path}.state[{k}]"))
                    for key, value in state.items():
                        if isinstance(value, torch.Tensor):
                            self._objects.append((state, key, value, f"{path}.state[{k}][{key!r}]"))
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
        while hasattr(fn, "__wrapped__"):  # a decorator is code too, and may hold something
            self._code(fn, path, depth) if hasattr(fn, "__code__") else None
            fn = fn.__wrapped__
        if getattr(fn, "__code__", None) is None:
            self._walk(getattr(fn, "__self__", None), path or "self", depth)
            if hasattr(fn, "__dict__"):
                self._walk(fn, path or "object", depth)
            return
        self._code(fn, path, depth)

    def _code(self, fn, path, depth):
        if fn.__module__ and fn.__module__.partition(".")[0] in _LIBRARIES and not fn.__closure__:
            return
        self._seen.add(id(fn))
        code = fn.__code__
        users = is_users(code.co_filename)
        names = list(dict.fromkeys(_names(code)))
        if "environ" in names or "getenv" in names:
            self._values.append((_Call(_environment), 0, _environment(), "an environment variable"))
        for name in names if users else ():
            self._names.add(name)
            for act in self._named.pop(name, ()):
                act()
        for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
            self._note(_Cell(cell), 0, name, depth) if _filled(cell) else None
        for name in names if users else ():
            if name in fn.__globals__:
                self._note(fn.__globals__, name, name, depth)
        for name, value in zip(code.co_varnames[code.co_argcount - len(fn.__defaults__ or ()) :], fn.__defaults__ or ()):
            self._walk(value, name, depth + 1)
        if fn.__kwdefaults__:
            self._walk(fn.__kwdefaults__, f"{fn.__name__}'s defaults", depth + 1)
        if fn.__dict__:
            for key in fn.__dict__:
                if key != "__wrapped__":
                    self._note(fn.__dict__, key, f"{fn.__name__}.{key}", depth + 1)


_LIBRARIES = {"torch", "numpy", "mindspore", "msadapter"}
_MAKING = {"__init__", "__post_init__", "__new__"}  # run where the code names the class
_TORCH_ATTRIBUTES = {*torch.nn.Module().__dict__, "_flat_weights", "_flat_weight_refs", "_all_weights", "_flat_weights_names"}
_SCALER = ("_enabled", "_scale", "_growth_tracker", "_growth_factor", "_backoff_factor", "_growth_interval")
_STANDARD = {*sys.stdlib_module_names} - {"types", "argparse", "collections", "dataclasses"}


def _top(name):
    return (name or "").partition(".")[0]


def _is_open(cls):
    """Whether a walk goes into instances of cls: not what Python and the libraries below us are made of."""
    return _top(cls.__module__) not in _LIBRARIES | _STANDARD


def _users_class(cls):
    module = sys.modules.get(cls.__module__)
    return _is_open(cls) and (module is None or _users_module(module))


def _users_module(module):
    if _top(module.__name__) in _LIBRARIES | _STANDARD:
        return False
    file = getattr(module, "__file__", None)
    return file is None or is_users(file)


def _slots(cls):
    slots = cls.__dict__.get("__slots__", ())
    return [s for s in ((slots,) if isinstance(slots, str) else slots) if not s.startswith("__")]


def _names(code):
    """The names in a function's code and in the functions within it: globals, attributes, and strings for getattr."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def _environment():
    return hash(frozenset(os.environ.items()))


def _tensor_hooks(p):
    return tuple(p._backward_hooks or ()), tuple(p._post_accumulate_grad_hooks or ())


def _state(generator):
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.bit_generator.state


def _same(array, expected):
    if isinstance(array, torch.Tensor):
        return array.shape == expected.shape and array.dtype == expected.dtype and _same(_numpy(array), _numpy(expected))
    nan = array.dtype.kind in "fc"
    return array.dtype == expected.dtype and np.array_equal(array, expected, equal_nan=nan)


def _numpy(x):
    x = x.detach()
    return x.float().numpy() if x.dtype is torch.bfloat16 else x.resolve_conj().resolve_neg().numpy()


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


class _Call:
    def __init__(self, function):
        self._function = function

    def __getitem__(self, key):
        return self._function()
