"""Recording: one eager call of a function, written down as MindSpore primitives on named values.

The call runs as always, kernel by kernel. A dispatch mode sees every ATen op (forward, backward, optimizer) and, while
its kernel runs, every MindSpore primitive the kernel calls. Nothing has to be made functional afterwards: a storage's
buffer is never changed, only replaced (storage.py), so the primitives are already a program in which each value is
assigned once, and a write is the buffer that a storage holds at the end.

A value comes from one of these (`Source`):
    storage    the buffer of a storage that was there before: a parameter, optimizer state, a buffer
    gradient   the buffer of a parameter's gradient that was there before
    argument   a tensor among the call's arguments, on the device or on the host
    draw       random numbers that a kernel drew on the host; drawn anew in each run, in the same order
    prelude    found from the arguments before each run, because its shape depends on their values (a mask's indices)
    constant   made by a kernel from numbers and shapes
    primitive  an earlier line of the recording

Whatever else could influence the result is noticed and makes the recording unusable, with a reason: a value read by the
host, an op that ran on the host, a host tensor made on the way, a primitive on a value of unknown origin.
"""

import dataclasses
import functools
import random
import sys
import threading

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map

from ..backend import registry, storage, tracing
from ..backend.storage import ms
from .effects import Watch

Primitive = ms.ops.Primitive
DYNAMIC = {"NonZero", "MaskedSelect", "UniqueConsecutive", "Unique"}


@dataclasses.dataclass(eq=False, repr=False)
class Value:
    """One `ms.Tensor` of the recording."""

    source: str  # as above
    origin: object  # a tensor of the storage, a parameter, an argument's number, (draw, part), a NumPy array, a Line
    tensor: object  # kept, so that its id stays its own
    node: object = None  # the ATen op that made it
    shape: tuple = ()
    dtype: object = None
    varying: bool = False  # a constant that each run gives anew: an optimizer's number


@dataclasses.dataclass(eq=False, repr=False)
class Line:
    """A call of a primitive."""

    primitive: object
    args: tuple  # of Value, Python values, and tuples or lists of them
    outputs: list  # of Value
    single: bool  # whether it returns one tensor, not a tuple
    node: object


@dataclasses.dataclass(eq=False, repr=False)
class Node:
    """An ATen op."""

    name: str
    where: str  # "train.py:12", or "backward"
    shapes: tuple  # of its results
    scalars: tuple  # its Python numbers
    region: object = None  # the host call (optimizer.step) that it belongs to
    result: object = None  # in a region: what it returned, each tensor as the number of an operand or as a like tensor


@dataclasses.dataclass(eq=False)
class Region:
    """A host call that is made again before each run, for the numbers that it computes: `optimizer.step()`."""

    call: object
    owner: object
    gradients: dict  # id(parameter) -> whether it had a gradient
    nodes: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Read:
    """A number that the program took from the device (`.item()`)."""

    value: Value
    number: object
    node: Node


def instances(kind, tree):
    """The instances of `kind` in nested tuples and lists. torch's tree_leaves takes ten times as long."""
    for x in tree:
        if isinstance(x, kind):
            yield x
        elif isinstance(x, (tuple, list)):
            yield from instances(kind, x)


def values_in(tree):
    """The Values in nested tuples and lists."""
    return list(instances(Value, tree))


def operands_of(args, kwargs):
    """What an ATen op is given, lists taken apart: those of ATen do not nest."""
    found = []
    for a in (*args, *kwargs.values()):
        found.extend(a) if isinstance(a, (list, tuple)) else found.append(a)
    return found


class Recorder(TorchDispatchMode):
    """Records what runs inside `with recorder:`.

    arguments: the call's tensors, in order.
    gradients: {id(parameter): its gradient before the call}, as far as known: it shows what `zero_grad` dropped.
    known: ids of the storages that the function also reaches by itself. An argument with one of them is state.
    checks: whether each run will check that `totals` are finite.
    """

    def __init__(self, arguments=(), gradients=None, known=(), checks=False):
        super().__init__()
        self.reason = None  # why this recording is of no use
        self.values = {}  # id(ms.Tensor) -> Value
        self.lines, self.nodes, self.draws, self.reads, self.expected = [], [], [], [], {}
        self.totals, self._checks = [], checks
        self.storages = {}  # id(storage) -> (storage, its first Value), those that were there before
        self.tensors = {}  # id(storage) -> a tensor of it
        self.leaves = {}  # id(tensor) -> (tensor, its gradient before)
        self.dropped = set()  # ids of those whose gradient from before the call plays no part
        self._gradients = gradients or {}
        self.born_at = {}  # id(storage) -> the op and the line that made it
        self.born = {}  # id(storage) -> storage, those made on the way
        self.host_arguments = {}  # address -> (number, bytes)
        self._watch = Watch()
        self.effects = self._watch.found  # what the call does that a graph would not: prints, a look at the clock
        self.drawing = {}  # id(generator) -> generator, those that kernels drew from
        self.backward = False  # whether gradients were computed
        self.generators = {}  # id(generator) -> [generator, its state at first, its state after the last draw]
        self._known, self.pinned = known, {}
        self._arguments = [(x, x.requires_grad) for x in arguments]
        self.regions, self.region = [], None
        self._node, self._depth = None, 0
        for i, x in enumerate(arguments):
            self._argument(i, x)

    # ------------------------------------------------------------------------------------------------- from the program

    def __enter__(self):
        _hooks.install()
        self._states = _random_states()
        self._continues(torch.default_generator)
        self._watch.__enter__()
        return super().__enter__()

    def __exit__(self, *exception):
        self._watch.__exit__(*exception)
        self.backward = self._watch.backward
        _hooks.remove()
        result = super().__exit__(*exception)
        self._continues(torch.default_generator)
        if any(x.requires_grad is not before for x, before in self._arguments):
            self.fail("it changes requires_grad of an argument")
        if _random_states() != self._states:
            self.effects.append("random numbers of Python or NumPy")
        return result

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves = operands_of(args, kwargs)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        on_device = [x for x in tensors if x.device.type == "mindspore"]
        if self.reason is not None or tracing.active.recorder is not None:
            return op(*args, **kwargs)
        for x in on_device:
            self.see(x)
        name = op._schema.name.removeprefix("aten::")
        node = Node(name, _where(), (), tuple(x for x in leaves if type(x) in (int, float, bool, complex)), self.region)
        self.nodes.append(node)
        if self.region is not None and on_device:
            self.region.nodes.append(node)
        to = kwargs.get("device")
        self._host_operands(op, node, tensors, on_device or (to is not None and torch.device(to).type == "mindspore"))
        if name == "_local_scalar_dense" and on_device:
            return self._item(op, args, node)
        generators = [torch.default_generator, *(g for g in leaves if isinstance(g, torch.Generator))]
        for g in generators:
            self._continues(g, node)
        draws = len(self.draws)
        self._node, tracing.active.recorder = node, self
        try:
            result = op(*args, **kwargs)
        finally:
            self._node, tracing.active.recorder = None, None
        if len(self.draws) > draws:
            for g in generators:
                self.generators[id(g)][2] = g.get_state()
                self.drawing[id(g)] = g
        found = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        node.shapes = tuple(tuple(x.shape) for x in found)
        for x in found:
            if x.device.type == "mindspore":
                s = x.untyped_storage()
                if id(s) not in self.storages:
                    self.born[id(s)], self.born_at[id(s)] = s, f" of aten::{name} ({node.where})"
            elif on_device:
                self.fail(f"aten::{name} brings a value to the host", node)
        if self.region is not None and on_device:
            node.result = tree_map(lambda x: _like(x, leaves), result)
        return result

    def see(self, x):
        """Note a device tensor that an op takes: state that was there before, unless it was made on the way."""
        s = x.untyped_storage()
        if x.requires_grad and x.is_leaf and id(x) not in self.leaves and id(s) not in self.born:
            grad, before = x.grad, self._gradients.get(id(x))
            if grad is not None and id(grad.untyped_storage()) in self.born:  # assigned by the call itself
                grad = None
            self.leaves[id(x)] = (x, grad)
            if grad is None and before is not None:
                self.dropped.add(id(x))
            if grad is not None and id(grad.untyped_storage()) not in self.storages:
                self._keep(grad, "gradient", x)
        if id(s) in self.storages or id(s) in self.born:
            return
        self._keep(x, "storage", x)

    def _keep(self, x, source, origin):
        s = x.untyped_storage()
        if getattr(s, "buf", None) is None:
            if not hasattr(s, "pending"):
                return
            storage._materialize(s)
        if id(s.buf) in self.values:  # a clone shares its original's buffer: from here on they differ
            s.buf = _alias(s.buf)
        value = self._new(source, origin, s.buf)
        self.storages[id(s)], self.tensors[id(s)] = (s, value), x

    def _argument(self, i, x):
        if x.device.type == "mindspore":
            if x.requires_grad and x.is_leaf:
                self.leaves[id(x)] = (x, x.grad)
            s = x.untyped_storage()
            if id(s) not in self.storages:
                if id(s) in self._known:
                    self.pinned[i] = s
                    self._keep(x, "storage", x)
                else:
                    self._keep(x, "argument", i)
        elif x.numel():
            self.host_arguments[x.data_ptr()] = (i, x.numel() * x.element_size())

    def _host_operands(self, op, node, tensors, on_device):
        if node.region is not None:
            return
        for x in tensors:
            if x.device.type != "cpu" or not x.numel():
                continue
            argument = self.host_argument(x)
            if on_device:
                if x.dim() and x.data_ptr() not in self.host_arguments:
                    self.fail("a host tensor that is no argument meets the device", node)
                elif argument and x.dim() and node.name not in _MOVING:
                    self.fail("it needs the values of a host tensor among the arguments", node)
            elif argument and not (op.is_view or node.name in _LOOKING):
                self.fail("it computes on the host with a tensor among the arguments. Move it to the device first", node)

    def host_argument(self, x):
        """Whether the host tensor x lies in the memory of an argument."""
        place = x.data_ptr()
        return any(start <= place < start + size for start, (_, size) in self.host_arguments.items())

    def _item(self, op, args, node):
        number = node.result = op(*args)
        x = args[0]
        value = self.values.get(id(x.untyped_storage().buf))
        if value is None or x.untyped_storage().buf.size != 1:
            self.fail("a value is read back", node)
        elif value.source != "constant":
            self.reads.append(Read(value, number, node))
        return number

    def forget(self):
        """Leave out the leaves that were made on the way, as by `x.detach().requires_grad_()`, and are gone."""
        held = {id(x) for x in self.tensors.values()} | {id(x) for x, _ in self._arguments}
        for key, (x, _) in list(self.leaves.items()):
            if sys.getrefcount(x) <= 3 and key not in held:
                del self.leaves[key]

    def fail(self, reason, node=None):
        """This recording is of no use; the first reason is kept."""
        if self.reason is None:
            node = node or self._node
            self.reason = reason + (f" ({node.where}, aten::{node.name})" if node else "")

    # ---------------------------------------------------------------------------------------------------- from kernels

    def varies(self, v):
        value = self.values.get(id(v))
        if value is None:
            return not getattr(v, "lasting", False)
        return self._varies(value)

    @staticmethod
    def _varies(value):
        """What an optimizer makes of its numbers varies too: they change with the step."""
        return value.source != "constant" or (value.node is not None and value.node.region is not None)

    def is_number(self, v):
        value = self.values.get(id(v))
        return value is not None and value.source == "constant" and v.size == 1

    def expect(self, v, low, high, but):
        value = self.values.get(id(v))
        if value is not None and value.source in ("argument", "host argument", "storage"):
            self.expected[id(value), low, high] = (value, low, high, but)

    def finite(self, v, sums):
        varies = self.varies(v)
        if varies and not self._checks or not np.isfinite(tracing.look(v)).all():
            return False
        if varies:
            self.totals.append(self.values[id(sums(v))])
        return True

    def _continues(self, g, node=None):
        """Nobody but the kernels' draws may move a generator: a later run makes those draws and nothing else."""
        if g.device.type == "cpu":
            state = g.get_state()
            found = self.generators.setdefault(id(g), [g, state, state])
            if not torch.equal(found[2], state):
                self.fail("it seeds a random generator, or draws from it on the host", node)

    def drawn(self, draw, v):
        parts = v if isinstance(v, tuple) else (v,)
        number = len(self.draws)
        self.draws.append(draw)
        for k, part in enumerate(parts):
            self._new("draw", (number, k), part)

    def made(self, v, array):
        """A kernel made v from an array."""
        place = array.__array_interface__["data"][0]
        i, size = self.host_arguments.get(place, (None, None))
        if i is not None and size == array.nbytes:
            self._new("host argument", i, v)
            return
        self._new("constant", array.copy() if array.size < 4096 else array, v)

    def moved(self, source, make):
        """A copy to the device: of an argument, which each run copies anew, or of what Python numbers made."""
        i, size = self.host_arguments.get(source.data_ptr(), (None, None))
        if i is None or size != source.numel() * source.element_size():
            if source.dim() and source.numel() and self._node.region is None:
                self.fail("a host tensor that is no argument goes to the device")
            return make()
        tracing.active.recorder = None
        try:
            v = make()
        finally:
            tracing.active.recorder = self
        self._new("host argument", i, v)
        return v

    def called(self, primitive, args, result):
        single = not isinstance(result, (tuple, list))
        results = [result] if single else list(result)
        if all(any(r is a for a in args) for r in results):  # it returned its operand
            return
        known = tuple(self._operand(a) for a in args)
        if not any(map(self._varies, values_in(known))):
            for r in results:  # constants alone: folded
                self._new("constant", tracing.look(r), r)
            return
        if primitive.name in DYNAMIC:
            if all(x.source == "argument" for x in known if isinstance(x, Value)):  # found before each run
                for k, r in enumerate(results):
                    self._new("prelude", (primitive, known, k), r)
                return
            self.fail("the shape of its result depends on values")
        line = Line(primitive, known, [], single, self._node)
        for r in results:
            old = self.values.get(id(r))
            line.outputs.append(old if old is not None else self._new("primitive", line, r))
        self.lines.append(line)

    def _operand(self, a):
        if isinstance(a, ms.Tensor):
            value = self.values.get(id(a))
            if value is None and getattr(a, "lasting", False):
                return self._new("constant", tracing.look(a), a)
            if value is None:
                self.fail("a primitive takes a value of unknown origin")
            return value
        if isinstance(a, (tuple, list)):
            return type(a)(self._operand(x) for x in a)
        return a

    def _new(self, source, origin, v):
        value = Value(source, origin, v, self._node, tuple(v.shape), v.dtype)
        self.values[id(v)] = value
        return value


def _like(x, operands):
    """What stands for a result of an op in a region: an operand's number, or a tensor of its geometry without memory."""
    if not isinstance(x, torch.Tensor):
        return x
    for i, operand in enumerate(operands):
        if operand is x:
            return Operand(i)
    return storage.new_empty(tuple(x.shape), x.dtype, x.stride())


@dataclasses.dataclass
class Operand:
    number: int


def _alias(v):
    return ms.Tensor.from_numpy(v.asnumpy()) if v.dtype != ms.bfloat16 else v.copy()


def _random_states():
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), (kind, keys.tobytes(), *rest)


# Ops that may take a host tensor beside device tensors: what it holds goes to the device as a whole.
_MOVING = {"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize", "index", "index_put", "index_put_", "_index_put_impl_"}
_LOOKING = {"detach", "alias", "lift_fresh", "is_same_size"}

_OURS = ("/torch/", "/msadapter/", "<")


def _where():
    """The user's line that is running."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not any(part in name for part in _OURS):
            return f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "backward"


# --------------------------------------------------------------------------------------------------- hooks in MindSpore


class _Hooks:
    """While somebody records: every primitive, and what makes and reads tensors, tells the thread's recorder."""

    def __init__(self):
        self._lock, self._users, self._undo = threading.Lock(), 0, []

    def install(self):
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            registry.recording(True)
            self._handles = [
                register_optimizer_step_pre_hook(_region_begins),
                register_optimizer_step_post_hook(_region_ends),
            ]
            for cls in _subclasses(LRScheduler):
                if "step" in cls.__dict__:
                    self._replace(cls, "step", _hooked_schedule(cls.__dict__["step"]))
            for cls in _subclasses(Primitive):
                if "__call__" in cls.__dict__:
                    self._replace(cls, "__call__", _hooked_call(cls.__dict__["__call__"]))
            self._replace(ms.Tensor, "from_numpy", staticmethod(_hooked_from_numpy(ms.Tensor.from_numpy)))
            self._replace(ms.Tensor, "asnumpy", _hooked_asnumpy(ms.Tensor.asnumpy))
            for name in ("tolist", "numpy", "__array__", "__dlpack__"):
                self._replace(torch.Tensor, name, _hooked_look(getattr(torch.Tensor, name)))

    def remove(self):
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for owner, name, own in reversed(self._undo):
                setattr(owner, name, own) if own is not None else delattr(owner, name)
            self._undo.clear()
            for handle in self._handles:
                handle.remove()
            registry.recording(False)

    def _replace(self, owner, name, new):
        self._undo.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, new)


_hooks = _Hooks()


def _recorder():
    """The recorder that is on top of this thread's modes."""
    return next((m for m in reversed(_get_current_dispatch_mode_stack()) if isinstance(m, Recorder)), None)


def _region_begins(optimizer, args, kwargs):
    recorder = _recorder()
    if recorder is None or recorder.region is not None:
        return
    if len(args) > 1 or kwargs:
        recorder.fail("an optimizer's step takes arguments")
    had = {id(p): p.grad is not None for group in optimizer.param_groups for p in group["params"]}
    recorder.region = Region(lambda: optimizer.step(), optimizer, had)  # whatever `step` is by then
    recorder.regions.append(recorder.region)


def _region_ends(optimizer, args, kwargs):
    recorder = _recorder()
    if recorder is not None and recorder.region is not None and recorder.region.owner is optimizer:
        recorder.region = None


def _hooked_schedule(step):
    """A scheduler only moves numbers on the host: each later run does it again."""

    @functools.wraps(step)
    def hooked(self, *args, **kwargs):
        recorder = _recorder()
        if recorder is None or recorder.region is not None:
            return step(self, *args, **kwargs)
        recorder.region = Region(functools.partial(step, self, *args, **kwargs), self, {})
        recorder.regions.append(recorder.region)
        try:
            return step(self, *args, **kwargs)
        finally:
            recorder.region = None

    return hooked


def _subclasses(cls):
    found, todo = {cls}, [cls]
    while todo:
        for sub in todo.pop().__subclasses__():
            if sub not in found:
                found.add(sub)
                todo.append(sub)
    return found


@functools.cache
def _hooked_call(call):
    @functools.wraps(call)
    def hooked(self, *args, **kwargs):
        recorder = tracing.active.recorder
        if next(instances(ms.Tensor, args), None) is None:
            return call(self, *args, **kwargs)
        if recorder is None and (unseen := _recorder()) is not None:
            unseen.fail(f"primitive {self.name} is called outside of any op")
        if recorder is None or recorder._depth:
            return call(self, *args, **kwargs)
        recorder._depth = 1
        try:
            result = call(self, *args, **kwargs)
        finally:
            recorder._depth = 0
        if kwargs:
            recorder.fail(f"primitive {self.name} is called by keywords")
        recorder.called(self, args, result)
        return result

    return hooked


def _hooked_from_numpy(make):
    def from_numpy(array):
        v = make(array)
        if tracing.active.recorder is not None:
            tracing.active.recorder.made(v, array)
        return v

    return from_numpy


def _hooked_asnumpy(read):
    @functools.wraps(read)
    def asnumpy(self):
        recorder = tracing.active.recorder
        if recorder is not None and recorder.varies(self):
            frame = sys._getframe(1)
            place = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
            recorder.fail(f"its kernel decides by values, {place}")
        return read(self)

    return asnumpy


def _hooked_look(look):
    """The user's code takes the numbers of a host tensor."""

    @functools.wraps(look)
    def hooked(self, *args, **kwargs):
        recorder = _recorder()
        if recorder is not None and tracing.active.recorder is None and self.device.type == "cpu" and self.numel():
            if recorder.region is None and recorder.host_argument(self):
                recorder.fail(f"it reads a host tensor among the arguments ({_where()})")
        return look(self, *args, **kwargs)

    return hooked
