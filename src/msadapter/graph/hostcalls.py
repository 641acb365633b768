"""Host calls: `optimizer.step()` and `scheduler.step()`, made again before each run for the numbers that they compute.

The arithmetic on the device is left out (`_Numbers`). What changed on the host is put back if the run is discarded (`_Undo`).
An optimizer of torch's that keeps no number of its own (SGD) would compute the same again: as long as its settings stay, it
is not asked.
"""

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..backend import storage
from .capture import Operand, operands_of

# How a kernel may have made a constant of an op's number.
FORMS = {"x": lambda x: x, "-x": lambda x: -x, "1 - x": lambda x: 1 - x, "1 / x": lambda x: 1 / x if x else np.inf}

_ITEM = torch.ops.aten._local_scalar_dense.default
_PLAIN = (int, float, bool, str, type(None))


class Miss(Exception):
    """An entry does not fit the call after all: the reason in words."""


class HostCalls:
    """The host calls of a recording. scalars: which of their numbers the graph takes."""

    def __init__(self, recorder, scalars):
        self._recorder, self._scalars = recorder, scalars
        leaves = [p for p, _ in recorder.leaves.values()]
        self._placeholders = {id(p): storage.new_empty(tuple(p.shape), p.dtype, p.stride()) for p in leaves}
        self._known = {}  # Region -> (the settings of its optimizer, the numbers that it computed)

    def undo(self):
        """What puts back all that `numbers` and the draws change."""
        regions = self._recorder.regions
        return _Undo(self._recorder, [] if all(map(self._stays, regions)) else [region.owner for region in regions])

    def numbers(self, undo):
        """Make the calls again; {constant: the number it is now}."""
        seen, grads = [], []
        try:
            for region in self._recorder.regions:
                if self._stays(region):  # asked here, because a scheduler may just have moved the settings
                    region.owner._opt_called = True  # as a scheduler's wrapper of `step` would note
                else:
                    grads = grads or [(p, p.grad) for p, _ in self._recorder.leaves.values()]
                    self._call(region, grads, undo)
                seen.append(self._known[region][1])
        finally:
            for p, grad in grads:
                p.grad = grad
        return self._scalars.now(seen)

    def _stays(self, region):
        """Whether the call would compute what it did last time."""
        settings, _ = self._known.get(region, (None, None))
        return settings is not None and settings == _settings(region.owner)

    def _call(self, region, grads, undo):
        settings = _settings(region.owner)
        for p, _ in grads:
            p.grad = self._placeholders[id(p)] if region.gradients.get(id(p)) else None
        with _Numbers(region, undo) as mode:
            region.call()
        lasts = settings is not None and not mode.host and settings == _settings(region.owner) and _numberless(region.owner)
        self._known[region] = settings if lasts else None, mode.found


def _settings(optimizer):
    """All that the numbers of a call of `step` can depend on, if it is torch's own and runs nobody else's code; else None."""
    cls = type(optimizer)
    if not (isinstance(optimizer, Optimizer) and _torchs(cls) and _torchs(cls.step)):
        return None
    step = optimizer.__dict__.get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        return None
    hooks = torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks
    if any((*hooks, optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)):
        return None
    settings = [item for group in optimizer.param_groups for item in group.items() if item[0] != "params"]
    return repr(settings) if all(isinstance(value, _PLAIN) for _, value in settings) else None


def _torchs(x):
    return x.__module__.startswith("torch.optim.")


def _numberless(optimizer):
    """Whether the optimizer's state is nothing but tensors on the device."""
    values = [x for state in optimizer.state.values() for x in state.values() if x is not None]
    return all(isinstance(x, torch.Tensor) and x.device.type == "mindspore" for x in values)


class _Undo:
    """What a run changes on the host before the graph: generators, step counters (numbers, or tensors of no dimension), and
    the numbers of optimizers and schedulers."""

    def __init__(self, recorder, owners):
        for owner in owners:  # a scheduler may hold others; the list grows
            if isinstance(owner, LRScheduler):
                owners += [owner.optimizer, *getattr(owner, "_schedulers", ())]
        self._tensors, self._dicts = {}, []
        self._generators = [(g, g.get_state()) for g in recorder.drawing.values()]
        for owner in {id(o): o for o in owners}.values():
            if isinstance(owner, torch.optim.Optimizer):
                self._dicts += [(d, dict(d)) for d in owner.param_groups]
                self._dicts += [(d, _plain(d)) for d in (owner.__dict__, *owner.state.values())]
            else:
                self._dicts.append((owner.__dict__, dict(owner.__dict__)))

    def note(self, tensors):
        for x in tensors:
            if id(x) not in self._tensors:
                self._tensors[id(x)] = (x, x.clone())

    def __call__(self):
        for x, value in self._tensors.values():
            x.copy_(value)
        for d, before in self._dicts:
            d.update(before)
        for g, state in self._generators:
            g.set_state(state)


def _plain(d):
    return {k: v for k, v in d.items() if isinstance(v, (int, float))}


class _Numbers(TorchDispatchMode):
    """Runs a host call without its arithmetic on the device; collects the Python numbers that its ops take."""

    def __init__(self, region, undo):
        super().__init__()
        self._nodes, self._undo = iter(region.nodes), undo
        self.found, self.host = [], False  # host: whether an op on host tensors took part

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else each op goes through a wrapper, 3 us

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op is _ITEM and args[0].is_cpu:  # a step counter, for each parameter twice
            self.host = True
            return op(*args)
        leaves = operands_of(args, kwargs or {})
        if not any(isinstance(x, torch.Tensor) and x.device.type == "mindspore" for x in leaves):
            self.host |= op.namespace != "profiler"  # torch marks each step for its profiler
            self._undo.note(x for x in leaves if isinstance(x, torch.Tensor))
            return op(*args, **(kwargs or {}))
        node = next(self._nodes, None)
        if node is None or node.name != op._schema.name.removeprefix("aten::"):
            raise Miss("the optimizer computes something else now")
        self.found.append(tuple(x for x in leaves if type(x) in (int, float, bool, complex)))
        return tree_map(lambda r: leaves[r.number] if isinstance(r, Operand) else _again(r), node.result)


def _again(x):
    """A tensor like x: torch detaches one that it gives out a second time."""
    return storage.new_empty(tuple(x.shape), x.dtype, x.stride()) if isinstance(x, torch.Tensor) else x


class Scalars:
    """Which numbers of which ops are inputs (grouped: equal in both recordings), and which must stay as they were."""

    def __init__(self):
        self.groups = {}  # (form, value in the first, in the second, kind) -> (Value, places)
        self.fixed = []  # (place, number)

    def now(self, seen):
        for (region, node, k), number in self.fixed:
            if seen[region][node][k] != number:
                raise Miss(f"an optimizer's number is {seen[region][node][k]!r}, and was {number!r}")
        values = {}
        for (form, *_), (value, places) in self.groups.items():
            found = {seen[region][node][k] for region, node, k in places}
            if len(found) > 1:
                raise Miss("an optimizer's numbers differ between parameters now")
            values[value] = FORMS[form](found.pop())
        return values
