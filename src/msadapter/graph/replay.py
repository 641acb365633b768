"""Two recordings of one function become an `Entry`, which does in one graph what the function does.

Comparing them line by line shows what a single recording cannot: a Python number that is another each time. One that an
optimizer computed becomes an input of the graph; each run makes the optimizer's own code compute it again, with the
arithmetic on the device left out (`_Numbers`). Any other makes the function unfit for a graph, and the reason says where.
"""

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..backend import storage
from ..backend.storage import LOCK, ms
from ..backend.tracing import CannotCapture
from .capture import Operand, Value
from .lower import Program

# How a kernel may have made a constant of an op's number.
FORMS = {"x": lambda x: x, "-x": lambda x: -x, "1 - x": lambda x: 1 - x, "1 / x": lambda x: 1 / x if x else np.inf}


FLOATS = (ms.float32, ms.float64, ms.float16)


class Miss(Exception):
    """This entry does not fit the call after all: the reason in words."""


class Entry:
    """A compiled call. Built from two recordings and the call's result in the second of them.

    compile: a function that compiles a Program.
    CannotCapture if the two differ in more than an optimizer's numbers, or MindSpore cannot run the graph.
    """

    def __init__(self, first, second, result, arguments, compile):
        self.recorder = second
        self._numbers = _compare(first, second)
        self._grads = _gradients(second)
        self._writes = [(x, v, _final(second, x.untyped_storage())) for x, v in _state(second) if _written(x, v)]
        leaves, self._spec = tree_flatten(result)
        self._results = [_result(second, x, arguments) for x in leaves]
        reads = [r.value for r in second.reads]
        outputs = [v for _, _, v in self._writes]
        outputs += [v for *_, v in self._grads.values() if v is not None]
        outputs += [r[1] for r in self._results if r[0] == "new"] + reads
        self.program = Program(second.lines, outputs)
        self._of = dict(zip(outputs, self.program.outputs))
        self._state = [(x, x.untyped_storage()) for x, v in _state(second) if v.source == "storage"]
        self.placeholders = {id(p): storage.new_empty(tuple(p.shape), p.dtype, p.stride()) for p, _ in second.leaves.values()}
        self._check(compile)
        for v in second.values.values():  # the graph has the values: what the recording held can go
            if v.source not in ("constant",):
                v.tensor = None
        second.born.clear()

    def _check(self, compile):
        """Compile, run once on what the recording ran on, and compare: a graph that computes something else is no good."""
        try:
            compile(self.program)
            results = self.program.run([v.tensor for v in self.program.inputs])
        except Exception as error:
            raise CannotCapture(f"MindSpore cannot compile it: {_first_line(error)}") from error
        results = dict(zip(self.program.computed, results))
        pairs = [
            (v.tensor.asnumpy(), results[made].asnumpy())
            for v, made in self._of.items()
            if made in results and v.dtype in FLOATS and (v.node is None or v.node.region is None)
        ]
        scale = max((np.abs(a, where=np.isfinite(a), out=np.zeros_like(a)).max() for a, _ in pairs if a.size), default=0)
        for a, b in pairs:
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-2, atol=1e-3 * float(scale), equal_nan=True):
                raise CannotCapture("MindSpore's graph computes other values than its ops do one by one")

    # ------------------------------------------------------------------------------------------------------------ a run

    def fits(self):
        """None, or why the state of the program is not the recorded one."""
        for x, s in self._state:
            if x.untyped_storage() is not s:
                return "a tensor of the program has other memory now"
        for key, (p, before) in self.recorder.leaves.items():
            if (p.grad is None) is not (before is None) and key not in self.recorder.dropped:
                return "a parameter has a gradient now" if before is None else "a parameter has no gradient now"
        return None

    def run(self, arguments):
        """Do the call. Miss, with nothing changed on the device, if it turns out not to fit."""
        undo = _Undo(self.recorder)
        try:
            return self._run(arguments, self._host_calls(undo))
        except Miss:
            undo()
            raise

    def _run(self, arguments, numbers):
        with LOCK:
            values = self._inputs(arguments, numbers)
            results = dict(zip(self.program.computed, self.program.run(values)))
            for read in self.recorder.reads:
                now = _number(self._get(read.value, results, arguments, numbers))
                if now != read.number and not (now != now and read.number != read.number):
                    raise Miss(f"a value that the host reads is {now}, and was {read.number} ({read.node.where})")
            self._store(results, arguments, numbers)
            return self._answer(results, arguments, numbers)

    def _get(self, v, results, arguments, numbers):
        v = self._of.get(v, v)
        return results[v] if v in results else self._input(v, arguments, numbers)

    def _inputs(self, arguments, numbers):
        self._drawn = [d() for d in self.recorder.draws]
        for v, low, high, but in self.recorder.expected.values():
            a = self._input(v, arguments, numbers).asnumpy()
            if but is not None:
                a = a[a != but]
            if a.size and (a.min() < low or a.max() >= high):
                raise Miss("an index is out of range")
        return [self._input(v, arguments, numbers) for v in self.program.inputs]

    def _input(self, v, arguments, numbers):
        if v.source == "constant":
            return ms.Tensor.from_numpy(np.full(v.shape, numbers[v], v.origin.dtype)) if v.varying else v.tensor
        if v.source == "draw":
            number, part = v.origin
            drawn = self._drawn[number]
            return drawn[part] if isinstance(drawn, tuple) else drawn
        if v.source == "prelude":
            primitive, args, k = v.origin
            result = primitive(*(self._input(a, arguments, numbers) if isinstance(a, Value) else a for a in args))
            result = result[k] if isinstance(result, (tuple, list)) else result
            if tuple(result.shape) != v.shape:
                raise Miss("a mask selects another number of elements")
            return result
        if v.source == "host argument":
            x = arguments[v.origin]
            return storage.from_host(x.contiguous() if v.shape == tuple(x.shape) else x.contiguous().view(v.shape))
        x = arguments[v.origin] if v.source == "argument" else v.origin.grad if v.source == "gradient" else v.origin
        s = x.untyped_storage()
        buf = s.buf if s.buf is not None else storage._materialize(s)
        if tuple(buf.shape) != v.shape:
            if buf.size != int(np.prod(v.shape)):
                raise Miss("a tensor's memory has another size")
            buf = storage._RESHAPE(buf, v.shape)
        if buf.dtype != v.dtype:
            raise Miss("a tensor's memory has another type")
        return buf

    def _store(self, results, arguments, numbers):
        touched = []
        for x, v, new in self._writes:
            target = arguments[v.origin] if v.source == "argument" else v.origin.grad if v.source == "gradient" else x
            storage.store(target.untyped_storage(), _fresh(self._get(new, results, arguments, numbers)))
            touched.append(target)
        if touched:
            torch.autograd.graph.increment_version(touched)
        for p, kind, geometry, v in self._grads.values():
            if kind == "none":
                p.grad = None
            elif kind == "new":
                p.grad = _tensor(_fresh(self._get(v, results, arguments, numbers)), geometry)

    def _answer(self, results, arguments, numbers):
        leaves, made = [], {}
        for kind, what, *geometry in self._results:
            if kind == "new":
                if what not in made:
                    made[what] = _fresh(self._get(what, results, arguments, numbers))
                leaves.append(_tensor(made[what], geometry))
            elif kind == "argument":
                leaves.append(arguments[what])
            elif kind == "view":
                leaves.append(storage.as_strided(what.detach(), *geometry))
            else:
                leaves.append(what)
        return tree_unflatten(leaves, self._spec)

    # ----------------------------------------------------------------------------------------- numbers of an optimizer

    def _host_calls(self, undo):
        """Make the recorded host calls again; {constant: the number it is now}."""
        if not self.recorder.regions:
            return {}
        grads = [(p, p.grad) for p, _ in self.recorder.leaves.values()]
        seen = []
        try:
            for region in self.recorder.regions:
                for p, _ in grads:
                    p.grad = self.placeholders[id(p)] if region.gradients.get(id(p)) else None
                with _Numbers(region, undo) as mode:
                    region.call()
                seen.append(mode.found)
        finally:
            for p, grad in grads:
                p.grad = grad
        return self._numbers.now(seen)


class _Undo:
    """What host calls change on the host: step counters (0-dim tensors) and the numbers of optimizers and schedulers."""

    def __init__(self, recorder):
        owners = [region.owner for region in recorder.regions]
        owners += [o.optimizer for o in owners if isinstance(o, LRScheduler)]
        self._tensors, self._dicts = {}, []
        for owner in owners:
            dicts = owner.param_groups if isinstance(owner, torch.optim.Optimizer) else [owner.__dict__]
            self._dicts += [(d, dict(d)) for d in dicts]

    def note(self, tensors):
        for x in tensors:
            if id(x) not in self._tensors:
                self._tensors[id(x)] = (x, x.clone())

    def __call__(self):
        for x, value in self._tensors.values():
            x.copy_(value)
        for d, before in self._dicts:
            d.update(before)


class _Numbers(TorchDispatchMode):
    """Runs a host call without its arithmetic on the device; collects the Python numbers that its ops take."""

    def __init__(self, region, undo):
        super().__init__()
        self._nodes, self._undo = iter(region.nodes), undo
        self.found = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        leaves = tree_leaves((args, kwargs or {}))
        if not any(isinstance(x, torch.Tensor) and x.device.type == "mindspore" for x in leaves):
            self._undo.note(x for x in leaves if isinstance(x, torch.Tensor))
            return op(*args, **(kwargs or {}))
        node = next(self._nodes, None)
        if node is None or node.name != op._schema.name.removeprefix("aten::"):
            raise Miss("the optimizer computes something else now")
        self.found.append(tuple(x for x in leaves if type(x) in (int, float, bool, complex)))
        return tree_map(lambda r: leaves[r.number] if isinstance(r, Operand) else r, node.result)


class _Scalars:
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


# ------------------------------------------------------------------------------------------------ comparing recordings


def _compare(a, b):
    """The _Scalars of recording b, after a. CannotCapture if they differ otherwise."""
    if [n.name for n in a.nodes] != [n.name for n in b.nodes] or len(a.lines) != len(b.lines):
        raise CannotCapture("the call does not do the same each time" + _first_difference(a, b))
    if len(a.regions) != len(b.regions) or len(a.draws) != len(b.draws) or len(a.reads) != len(b.reads):
        raise CannotCapture("the call does not do the same each time")
    places = {n: (i, k) for i, region in enumerate(b.regions) for k, n in enumerate(region.nodes)}
    twin = {}
    for x, y in zip(a.nodes, b.nodes):
        twin[y] = x
    scalars, pairs, stands = _Scalars(), {}, {}

    def same(v, w, node):
        if isinstance(v, Value) and isinstance(w, Value):
            if v.source == w.source == "prelude" and v.shape != w.shape:
                raise CannotCapture(f"a mask selects another number of elements each time ({node.where}, aten::{node.name})")
            if pairs.setdefault(w, v) is not v or v.source != w.source or v.shape != w.shape or v.dtype != w.dtype:
                raise CannotCapture(f"another tensor takes part the second time ({node.where}, aten::{node.name})")
            if w.source == "constant":
                constant(v, w)
            elif w.source in ("storage", "gradient", "argument", "host argument") and v.origin is not w.origin:
                if w.source in ("argument", "host argument") and v.origin == w.origin:
                    return
                raise CannotCapture(f"another tensor takes part the second time ({node.where}, aten::{node.name})")
            return
        if isinstance(v, (tuple, list)) and isinstance(w, (tuple, list)) and len(v) == len(w):
            for x, y in zip(v, w):
                same(x, y, node)
            return
        if type(v) is not type(w) or v != w and not (v != v and w != w):
            raise CannotCapture(f"a number changed from {v!r} to {w!r} ({node.where}, aten::{node.name})")

    def constant(v, w):
        if w in stands or w.varying:
            return
        node = w.node
        if node in places and w.origin.size and (w.origin == w.origin.flat[0]).all():
            region, k = places[node]
            for i, (s, t) in enumerate(zip(twin[node].scalars, node.scalars)):
                for form, f in FORMS.items():
                    if _is(v.origin, f(s)) and _is(w.origin, f(t)):
                        key = (form, repr(s), repr(t), str(w.dtype), w.shape)
                        group = scalars.groups.setdefault(key, (w, set()))
                        group[1].update((region, k, j) for j in _equal(twin[node].scalars, node.scalars, i))
                        w.varying = True
                        stands[w] = group[0]
                        return
        if not np.array_equal(v.origin, w.origin, equal_nan=w.origin.dtype.kind in "fc"):
            was, now = (x.origin.flat[0] for x in (v, w))
            raise CannotCapture(f"a Python number changed from {was} to {now} ({node.where}, aten::{node.name})")

    for x, y in zip(a.lines, b.lines):
        if x.primitive.name != y.primitive.name or str(x.primitive.attrs) != str(y.primitive.attrs):
            raise CannotCapture("the call does not do the same each time")
        same(x.args, y.args, y.node)
        for v, w in zip(x.outputs, y.outputs):
            pairs[w] = v
    for x, y in zip(a.reads, b.reads):
        if x.number != y.number:
            raise CannotCapture(f"a value is read back, {x.number} and then {y.number} ({y.node.where})")
    for line in b.lines:
        line.args = _standing(line.args, stands)
    used = {place for _, found in scalars.groups.values() for place in found}
    for i, region in enumerate(b.regions):
        for k, node in enumerate(region.nodes):
            scalars.fixed += [((i, k, j), s) for j, s in enumerate(node.scalars) if (i, k, j) not in used]
    return scalars


def _equal(a, b, i):
    """Where the numbers are those of place i: a list of one number for each parameter."""
    return [j for j, pair in enumerate(zip(a, b)) if pair == (a[i], b[i])]


def _standing(args, stands):
    return tuple(
        stands.get(a, a) if isinstance(a, Value) else type(a)(_standing(a, stands)) if isinstance(a, (tuple, list)) else a
        for a in args
    )


def _is(array, number):
    with np.errstate(all="ignore"):
        return bool((array == np.asarray(number).astype(array.dtype)).all())


def _first_line(error):
    return next((line.strip() for line in str(error).splitlines() if line.strip(" -")), type(error).__name__)


def _first_difference(a, b):
    for x, y in zip(a.nodes, b.nodes):
        if x.name != y.name:
            return f": aten::{x.name}, then aten::{y.name} ({y.where})"
    return ""


# ------------------------------------------------------------------------------------------------- what a recording did


def _state(recorder):
    """(tensor, its value before) of all that was there before."""
    return [(recorder.tensors[key], value) for key, (_, value) in recorder.storages.items()]


def _written(x, v):
    return x.untyped_storage().buf is not v.tensor


def _final(recorder, s):
    value = recorder.values.get(id(s.buf))
    if value is None:
        raise CannotCapture("a tensor ends with a value of unknown origin")
    return value


def _geometry(x):
    return tuple(x.shape), x.stride(), x.storage_offset()


def _gradients(recorder):
    """{id(parameter): (parameter, what became of its gradient, geometry, Value)}."""
    found = {}
    for key, (p, before) in recorder.leaves.items():
        if p.grad is before and key not in recorder.dropped:
            continue
        if p.grad is None:
            found[key] = (p, "none", None, None)
            continue
        s = p.grad.untyped_storage()
        if id(s) in recorder.storages:
            raise CannotCapture("a gradient becomes a tensor that was there before")
        found[key] = (p, "new", _geometry(p.grad), _final(recorder, s))
    return found


def _result(recorder, x, arguments):
    if not isinstance(x, torch.Tensor):
        if not isinstance(x, (int, float, bool, str, bytes, complex, type(None))):
            raise CannotCapture(f"it returns a {type(x).__name__}")
        return ("value", x)
    for i, a in enumerate(arguments):
        if a is x:
            return ("argument", i)
    if x.device.type != "mindspore":
        raise CannotCapture("it returns a tensor on the host")
    s = x.untyped_storage()
    if id(s) in recorder.storages:
        _, value = recorder.storages[id(s)]
        if value.source != "storage":
            raise CannotCapture("it returns a view of an argument")
        return ("value", x) if isinstance(x, torch.nn.Parameter) else ("view", recorder.tensors[id(s)], *_geometry(x))
    return ("new", _final(recorder, s), *_geometry(x))


def _tensor(v, geometry):
    x = storage.wrap(v)
    size, stride, offset = geometry
    if tuple(x.shape) == tuple(size) and x.stride() == tuple(stride) and not offset:
        return x
    return storage.as_strided(x, size, stride, offset)


def _fresh(v):
    return v if v.is_contiguous() and not v.storage_offset() else storage._CONTIGUOUS(v)


def _number(v):
    return v.asnumpy().reshape(-1)[0].item()
