"""How the names of table.py are put in place.

The wrapper of a MindSpore function keeps the original as `__wrapped__`, which is where MindSpore's graph compiler reads
the source of a function: inside of `construct` and `mindspore.jit` the original is compiled.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Deferred(NamedTuple):
    """A table entry whose function is called as function(original, *args): it decides itself which one runs."""

    function: Callable


def has_torch(*values: Any) -> bool:
    """Whether a torch tensor or module is among the values or in their lists, tuples and dicts."""
    for x in values:
        if isinstance(x, (torch.Tensor, torch.nn.Module)):
            return True
        if isinstance(x, (tuple, list)) and has_torch(*x):
            return True
        if isinstance(x, dict) and has_torch(*x.values()):
            return True
    return False


def mapped(function: Callable, x: Any) -> Any:
    """x with function applied to what is in its tuples, lists and dicts; a subclass of tuple becomes a tuple."""
    if isinstance(x, list):
        return [mapped(function, v) for v in x]
    if isinstance(x, tuple):
        values = (mapped(function, v) for v in x)
        return type(x)(*values) if hasattr(x, "_fields") else tuple(values)
    if isinstance(x, dict):
        return {k: mapped(function, v) for k, v in x.items()}
    return function(x)


def wrap_mindspore(table: dict) -> None:
    """Replace the names of the table, in every module of table.MODULES that holds the same object."""
    from .table import MODULES

    for path, ours in table.items():
        owner, name = _owner(path)
        original = getattr(owner, name)
        wrapper = _wrapper(original, ours, name)
        owners = [owner]
        if not isinstance(owner, type):
            owners += [m for m in map(importlib.import_module, MODULES) if vars(m).get(name) is original]
        for place in owners:
            setattr(place, name, staticmethod(wrapper) if name == "__new__" else wrapper)


def _wrapper(original, ours, name):
    if isinstance(ours, Deferred):

        @functools.wraps(original)
        def function(*args, **kwargs):
            return ours.function(original, *args, **kwargs)

    else:

        @functools.wraps(original)
        def function(*args, **kwargs):
            return (ours if has_torch(args, kwargs) else original)(*args, **kwargs)

    return function


def extend_torch(table: dict) -> None:
    """Put the torch half of the table in place. Functions with an attribute `takes_original` get it first."""
    for path, ours in table.items():
        owner, name = _owner(path)
        if getattr(ours, "takes_original", False):
            ours = _bound(ours, getattr(owner, name))
        setattr(owner, name, ours)


def _bound(ours, original):
    @functools.wraps(original)
    def function(*args, **kwargs):
        return ours(original, *args, **kwargs)

    return function


def _owner(path):
    """The module or class that holds the last name of a dotted path, and that name."""
    parts = path.split(".")[:-1]
    owner: Any = importlib.import_module(parts[0])
    for part in parts[1:]:
        owner = getattr(owner, part)
    return owner, path.rpartition(".")[2]
