"""`msadapter.compile(fn)`: a whole training step as one MindSpore graph.

The first calls run eagerly and are recorded (capture.py). When two in a row do the same, they become an `Entry`
(replay.py) that later calls run, as long as what they depended on is what it was (guards.py): the arguments' shapes,
Python numbers, the modules' modes and parameters. Otherwise the call is recorded again, or, if it cannot be a graph at
all, runs eagerly with one warning that says why.
"""

import collections
import functools
import threading
import warnings

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

from ..backend.storage import LOCK
from ..backend.tracing import CannotCapture
from . import cache
from .capture import Recorder
from .guards import PLAIN, Guards
from .replay import Entry, Miss, without_history

ADVICE = 8  # captures after which the user is told what keeps changing
ENOUGH = 32  # captures after which calls that fit none run eagerly
KEPT = 4  # captures of calls with equal arguments
MISSES = 3  # times in a row that a capture turns out not to fit, after which the call is recorded again
ATTEMPTS = 4  # recordings of one kind of call that led to nothing


class CaptureWarning(UserWarning):
    """A compiled function runs eagerly, or is captured again and again."""


class Step:
    """A function, and what was captured of it. Made by `compile`."""

    def __init__(self, fn, fullgraph=False):
        functools.update_wrapper(self, fn)
        self._fn, self._fullgraph = fn, fullgraph
        self._entries = {}  # key -> [(Guards, Entry)], the last used first
        self._pending = {}  # key -> (Guards, Recorder) of the last call
        self._eager = {}  # key -> why calls like this are not captured
        self._attempts, self._vain = {}, 0  # recordings for each key, and in a row without a capture
        self._lock = threading.RLock()
        self._counts = {"captures": 0, "hits": 0, "eager": 0}
        self._changes, self._last, self._told = collections.deque(maxlen=64), None, set()

    def __call__(self, *args, **kwargs):
        with self._lock:
            leaves, spec = tree_flatten((args, kwargs))
            tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
            if _others_watch() or torch.compiler.is_compiling():
                return self._fn(*args, **kwargs)
            key = _key(leaves, spec)
            missed = False
            for found in self._fitting(key, tensors):
                try:
                    result = found.run(tensors)
                    found.misses = 0
                    self._counts["hits"] += 1
                    self._vain = 0
                    self._last = found
                    return result
                except Miss as miss:
                    self._changes.append(str(miss))
                    found.misses += 1
                    missed |= found.misses < MISSES  # one odd call (an overflow) is no reason to record
            if self._vain >= ENOUGH:
                self._warn(
                    f"{self._name()} runs eagerly where no capture fits: {ENOUGH} calls were recorded and no two of them were "
                    "alike. Pass numbers that change in tensors, and objects that are the same each time."
                )
            if missed or key in self._eager or self._counts["captures"] >= ENOUGH or self._vain >= ENOUGH:
                self._counts["eager"] += 1
                return self._fn(*args, **kwargs)
            return self._record(key, args, kwargs, leaves, tensors)

    def _fitting(self, key, tensors):
        """The entries that may do this call, one after the other: the first to come is put in front."""
        why, tried = None, False
        entries = self._entries.get(key, ())
        for i, (guards, entry) in enumerate(list(entries)):
            why = guards.changed() or entry.fits(tensors)
            if why is None:
                if i and not tried:
                    entries.insert(0, entries.pop(i))
                tried = True
                yield entry
        if tried:
            return
        if why is not None:
            self._changes.append(why)
        elif self._entries and key not in self._entries and key not in self._pending and key not in self._eager:
            self._changes.append("the arguments' shapes, types or numbers, or a mode such as no_grad")

    def _record(self, key, args, kwargs, leaves, tensors):
        guards = Guards(self._fn, [x for x in leaves if not isinstance(x, PLAIN)])
        known = guards.storages()
        with Recorder(tensors, guards.grads(), known, checks=True) as recorder:
            result = self._fn(*args, **kwargs)
        changed = guards.unfit or guards.changed() or next(iter(recorder.effects), None)
        self._counts["eager"] += 1
        self._vain += 1
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        last = self._pending.pop(key, None)
        try:
            if recorder.reason is not None:
                raise CannotCapture(recorder.reason)
            moved = last and (last[0].changed() or _returned(last[2], result))
            if last is None or changed or moved or not _alike(last[1], recorder):
                if attempt >= ATTEMPTS and (changed or moved):
                    raise CannotCapture(f"Python state that changes with each call: {changed or moved}")
                if attempt >= ATTEMPTS:
                    Entry(last[1], recorder, result, tensors, cache.compile)  # says what differs
                    raise CannotCapture("the call does not do the same each time")
                self._pending[key] = (guards, recorder, [x for x in tree_leaves(result) if isinstance(x, PLAIN)])
                while len(self._pending) > KEPT:
                    oldest = next(iter(self._pending))
                    del self._pending[oldest], self._attempts[oldest]
                return result
            result = without_history(recorder, result)
            recorder.forget()
            with LOCK:
                entry = Entry(last[1], recorder, result, tensors, cache.compile)
            entry.alone()
        except CannotCapture as reason:
            self._give_up(key, str(reason))
            return result
        self._attempts[key] = self._vain = 0
        entries = self._entries.setdefault(key, [])
        entries.insert(0, (guards, entry))
        del entries[KEPT:]
        self._last = entry
        self._counts["captures"] += 1
        if self._counts["captures"] == ADVICE + 1:
            recent = "; ".join(dict.fromkeys(list(self._changes)[-ADVICE:]))
            self._warn(
                f"{self._name()} has been captured {ADVICE + 1} times. What changed: {recent}. Keep shapes equal (drop or pad "
                "the last batch), and keep numbers that change in tensors."
            )
        return result

    def _give_up(self, key, reason):
        if self._fullgraph:
            raise CannotCapture(f"Expected {self._name()} to be one graph (fullgraph=True): {reason}.")
        self._eager[key] = reason
        self._warn(f"{self._name()} runs eagerly: {reason}.")

    def _warn(self, text):
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, CaptureWarning, stacklevel=4)

    def _name(self):
        return getattr(self._fn, "__name__", type(self._fn).__name__)

    # ------------------------------------------------------------------------------------------------------- inspection

    def stats(self):
        """{"captures", "hits", "eager": how many, "changed": why captures did not fit, "reasons": why calls are no graph}."""
        return {**self._counts, "changed": list(dict.fromkeys(self._changes)), "reasons": list(self._eager.values())}

    def source(self):
        """The MindSpore function that the last captured or used call became, as Python. RuntimeError if there is none."""
        return self._compiled().program.source()

    def draw(self, path):
        """Write a picture of the captured graph as `path` with .svg and with .html, with the time of each op by itself."""
        from . import draw

        program = self._compiled().program
        with LOCK:
            draw.draw(program, path, draw.profile(program))

    def reset(self):
        """Forget all captures."""
        with self._lock:
            for kept in (self._entries, self._pending, self._eager, self._attempts):
                kept.clear()
            self._last, self._vain = None, 0

    def _compiled(self):
        if self._last is None:
            raise RuntimeError(f"Expected a captured call of {self._name()}, found none yet. Call it three times first.")
        return self._last


def _alike(a, b):
    def shape(r):
        return [n.name for n in r.nodes], len(r.lines), [v.shape for v in r.values.values() if v.source == "prelude"]

    return shape(a) == shape(b)


def _returned(before, result):
    """Whether the call returns other Python numbers than last time, in words; else None."""
    now = [x for x in tree_leaves(result) if isinstance(x, PLAIN)]
    for a, b in zip(before, now):
        if type(a) is not type(b) or repr(a) != repr(b):
            return f"it returned {a!r}, and then {b!r}"
    return None if len(before) == len(now) else "it returns something else each time"


def _others_watch():
    """Whether a mode watches the ops of this thread: a recording of a function that calls this one, a counter of flops."""
    return torch._C._len_torch_dispatch_stack() > 0


def _key(leaves, spec):
    """What a capture depends on of the arguments and modes."""
    parts = [spec, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()]
    parts += [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("mindspore", "cpu", "cuda")]
    parts.append(torch._C._len_torch_function_stack())
    first = {}  # id(storage) -> the first argument that has it
    for x in leaves:
        if isinstance(x, torch.Tensor):
            memory = id(x.untyped_storage()) if x.device.type == "mindspore" else x.data_ptr()
            parts.append(first.setdefault(memory, len(first)))
            parts.append((x.device.type, x.dtype, tuple(x.shape), x.stride(), x.storage_offset(), x.requires_grad))
            if x.device.type == "cpu" and not x.dim():  # kernels take it for a number
                parts.append(repr(x.item()))
        elif isinstance(x, PLAIN):
            parts.append((type(x), x if x == x and x != 0 else repr(x)))  # nan is itself, and -0.0 is not 0.0
        else:
            parts.append(id(x))
    return tuple(parts)


def compile(fn=None, *, fullgraph=False, dynamic=None):
    """Make the calls of `fn` MindSpore graphs: forward, backward and optimizer in one.

    fn: a function, usually a whole training step (`zero_grad`, loss, `backward`, `optimizer.step`); also a decorator.
    fullgraph: raise where a call cannot be a graph, instead of running it eagerly with a warning.
    dynamic: accepted for torch.compile's sake; every shape is captured for itself.

    The result is called like `fn` and has `stats()`, `source()`, `draw(path)` and `reset()`. What it returns has no
    history: gradients are computed inside. For gradients outside, use `torch.compile(model, backend="mindspore")`.
    """
    if fn is None:
        return functools.partial(compile, fullgraph=fullgraph, dynamic=dynamic)
    if not callable(fn):
        raise TypeError(f"Expected a function to compile, got {type(fn).__name__}.")
    return Step(fn, fullgraph)
