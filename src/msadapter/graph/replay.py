"""Two recordings of one function become an `Entry`, which does in one graph what the function does.

Comparing them line by line shows what a single recording cannot: a Python number that is another each time. One that an
optimizer computed becomes an input of the graph; each run makes the optimizer's own code compute it again, with the
arithmetic on the device left out (hostcalls.py). Any other makes the function unfit for a graph, and the reason says where.
"""

import gc
import math
import weakref

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ..backend import storage
from ..backend.storage import LOCK, ms
from ..backend.tracing import CannotCapture
from .capture import Value
from .hostcalls import FORMS, HostCalls, Miss, Scalars
from .lower import Program, agree, first_line, in_range

FLOATS = (ms.float32, ms.float64, ms.float16)


class Entry:
    """A compiled call. Built from two recordings and the call's result in the second of them.

    compile: a function that compiles a Program.
    CannotCapture if the two differ in more than an optimizer's numbers, or MindSpore cannot run the graph.
    """

    def __init__(self, first, second, result, arguments, compile):
        self.recorder, self.misses = second, 0
        scalars = _compare(first, second)
        self._own = {id(a): i for i, a in enumerate(arguments)}
        self._grads = _gradients(second)
        self._writes = [(x, v, _final(second, x.untyped_storage())) for x, v in _state(second) if _written(x, v)]
        leaves, self._spec = tree_flatten(result)
        self._results = [_result(second, x, arguments) for x in leaves]
        self._shared = _shared(second, leaves)
        reads = [r.value for r in second.reads] + second.totals
        outputs = [v for _, _, v in self._writes]
        outputs += [v for *_, v in self._grads.values() if v is not None]
        outputs += [r[1] for r in self._results if r[0] == "new"] + reads
        self.program = Program(second.lines, outputs)
        self._of = dict(zip(outputs, self.program.outputs))
        self._state = [(x, x.untyped_storage(), _geometry(x)) for x, v in _state(second) if v.source == "storage"]
        self._leaves = self._known_leaves(second)
        self._born = [weakref.ref(s) for s in _passing(second, leaves)]
        self._layout = {}  # Value of the program's results -> (shape, torch's dtype)
        self._host_calls = HostCalls(second, scalars)
        self._check(compile)
        for v in second.values.values():  # the graph has the values: what the recording held can go
            if v.source not in ("constant",):
                v.tensor = None
        first.born.clear()
        second.born.clear()

    def alone(self):
        """CannotCapture if a tensor that the call made, and did not return, is still held somewhere: by a container that
        the guards do not see, say. A graph would leave it as it is."""
        if any(ref() is not None for ref in self._born):
            gc.collect()
        for ref in self._born:
            if (s := ref()) is not None:
                raise CannotCapture(f"a tensor{self.recorder.born_at.get(id(s), '')} outlives the call, beside its results")
        self._born = []

    def _known_leaves(self, recorder):
        """[(key, argument's number or parameter, storage, geometry, had a gradient, the gradient's geometry, its twin)]."""
        found, owners = [], {}
        for key, (p, before) in recorder.leaves.items():
            kept = before is not None and key not in recorder.dropped
            twin = owners.setdefault(id(before.untyped_storage()), key) if kept else None
            who = self._own.get(key, p)
            s = None if key in self._own else p.untyped_storage()
            plays = key not in recorder.dropped
            found.append((who, s, _geometry(p), plays, before is not None, _geometry(before) if kept else None))
            if twin not in (None, key):
                raise CannotCapture("two parameters have gradients in one memory")
        return found

    def _check(self, compile):
        """Compile, run once on what the recording ran on, and compare: a graph that computes something else is no good."""
        try:
            if not self.program.computed:  # it only hands tensors around
                self.program.run = lambda tensors: ()
                return
            compile(self.program)
            results = self.program.run([v.tensor for v in self.program.inputs])
        except Exception as error:
            raise CannotCapture(f"MindSpore cannot compile it: {first_line(error)}") from error
        results = dict(zip(self.program.computed, results))
        for v, made in results.items():  # what is stored again and again need not be looked at each time
            if _fresh(made) is made and made.size and not storage.TORCH_DTYPE[made.dtype].is_complex:
                self._layout[v] = tuple(made.shape), storage.TORCH_DTYPE[made.dtype]
        pairs = [
            (storage._host_flat(results[made]), storage._host_flat(v.tensor))
            for v, made in self._of.items()
            if made in results and v.dtype in FLOATS and (v.node is None or v.node.region is None)
        ]
        kinds = [(results[made], v) for v, made in self._of.items() if made in results]
        if any(made.shape != v.shape or made.dtype != v.dtype for made, v in kinds) or not agree(pairs):
            raise CannotCapture("MindSpore's graph computes other values than its ops do one by one")

    # ------------------------------------------------------------------------------------------------------------ a run

    def fits(self, arguments):
        """None, or why the state of the program is not the recorded one."""
        for x, s, geometry in self._state:
            if x.untyped_storage() is not s or (x.shape, x.stride(), x.storage_offset()) != geometry:
                return "a tensor of the program has other memory now"
        for i, s in self.recorder.pinned.items():
            if arguments[i].untyped_storage() is not s:
                return "an argument was a tensor of the program itself, and is none now"
        owners = set()
        for p, s, geometry, plays, had, grad_geometry in self._leaves:
            if s is None:
                p = arguments[p]
                if not p.is_leaf:
                    return "an argument is no leaf now"
            elif p.untyped_storage() is not s or (p.shape, p.stride(), p.storage_offset()) != geometry:
                return "a parameter has other memory now"
            if not plays:
                continue
            grad = p.grad
            if (grad is not None) is not had:
                return "a parameter has no gradient now" if had else "a parameter has a gradient now"
            if had:
                if _geometry(grad) != grad_geometry:
                    return "a gradient is laid out in another way now"
                owners.add(id(grad.untyped_storage()))
        if len(owners) != sum(had and plays for *_, plays, had, _ in self._leaves):
            return "two parameters have gradients in one memory now"
        return None

    def run(self, arguments):
        """Do the call. Miss, with nothing changed on the device, if it turns out not to fit."""
        undo = self._host_calls.undo()
        try:
            return self._run(arguments, self._host_calls.numbers(undo))
        except BaseException:
            undo()
            raise

    def _run(self, arguments, numbers):
        with LOCK:
            values = self._inputs(arguments, numbers)
            try:
                results = dict(zip(self.program.computed, self.program.run(values)))
            except RuntimeError as error:
                if not self.recorder.totals:
                    raise
                raise Miss(f"MindSpore stopped: {first_line(error)}") from error  # NaN makes indices out of range, say
            for read in self.recorder.reads:
                now = _number(self._get(read.value, results, arguments, numbers))
                if now != read.number and not (now != now and read.number != read.number):
                    raise Miss(f"a value that the host reads is {now}, and was {read.number} ({read.node.where})")
            for v in self.recorder.totals:
                if not np.isfinite(self._get(v, results, arguments, numbers).asnumpy()).all():
                    raise Miss("a value that was finite is infinite or NaN")
            made = self._store(results, arguments, numbers)
            return self._answer(made, results, arguments, numbers)

    def _get(self, v, results, arguments, numbers):
        v = self._of.get(v, v)
        if v.source == "host argument":  # the caller keeps that memory
            return _copied(self._input(v, arguments, numbers))
        return results[v] if v in results else self._input(v, arguments, numbers)

    def _inputs(self, arguments, numbers):
        self._drawn = [d() for d in self.recorder.draws]
        for v, low, high, but in self.recorder.expected.values():
            if not in_range(self._input(v, arguments, numbers), low, high, but):
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
            x = arguments[v.origin].to(storage.TORCH_DTYPE[v.dtype])  # its copy to the device may have converted it
            return storage.from_host(x.contiguous() if v.shape == tuple(x.shape) else x.contiguous().view(v.shape))
        x = self._holder(v, v.origin, arguments)
        s = x.untyped_storage()
        if s.dtype is storage._torch_dtype(v) and s.shape == v.shape:
            return s.buf
        buf = s.buf if s.buf is not None else storage._materialize(s)
        if tuple(buf.shape) != v.shape:
            if buf.size != int(np.prod(v.shape)):
                raise Miss("a tensor's memory has another size")
            buf = storage._RESHAPE(buf, v.shape)
        if buf.dtype != v.dtype:
            raise Miss("a tensor's memory has another type")
        return buf

    def _holder(self, v, x, arguments):
        """The tensor in whose memory v is."""
        if v.source == "argument":
            return arguments[v.origin]
        if v.source == "gradient":
            i = self._own.get(id(v.origin))
            return (v.origin if i is None else arguments[i]).grad
        return x

    def _store(self, results, arguments, numbers):
        touched = []
        for x, v, new in self._writes:
            target = self._holder(v, x, arguments)
            new = self._of.get(new, new)
            if new in self._layout:
                s = target.untyped_storage()
                s.buf = results[new]
                s.shape, s.dtype = self._layout[new]
            else:
                storage.store(target.untyped_storage(), _fresh(self._get(new, results, arguments, numbers)))
            touched.append(target)
        made = {}
        if touched:
            torch.autograd.graph.increment_version(touched)
        for key, (p, kind, geometry, v) in self._grads.items():
            p = arguments[self._own[key]] if key in self._own else p
            if kind == "none":
                p.grad = None
            elif kind == "new":
                p.grad = self._made(made, self._shared.get(key, key), v, geometry, results, arguments, numbers)
        return made

    def _made(self, made, memory, v, geometry, results, arguments, numbers):
        """A new tensor; those that shared memory in the recording share it."""
        if memory not in made:
            made[memory] = storage.wrap(_fresh(self._get(v, results, arguments, numbers)))
        return _tensor(made[memory], geometry)

    def _answer(self, made, results, arguments, numbers):
        leaves = []
        for i, (kind, what, *geometry) in enumerate(self._results):
            same = self._shared.get(("same", i))
            if same is not None:
                leaves.append(leaves[same])
            elif kind == "new":
                memory = self._shared.get(("result", i), ("result", i))
                leaves.append(self._made(made, memory, what, geometry, results, arguments, numbers))
            elif kind == "argument":
                leaves.append(arguments[what])
            elif kind == "view":
                leaves.append(storage.as_strided(what.detach(), *geometry))
            else:
                leaves.append(what)
        return tree_unflatten(leaves, self._spec)


# ------------------------------------------------------------------------------------------------ comparing recordings


def _compare(a, b):
    """The Scalars of recording b, after a. CannotCapture if they differ otherwise."""
    if [n.name for n in a.nodes] != [n.name for n in b.nodes] or len(a.lines) != len(b.lines):
        raise CannotCapture("the call does not do the same each time" + _first_difference(a, b))
    if len(a.regions) != len(b.regions) or len(a.draws) != len(b.draws) or len(a.reads) != len(b.reads):
        raise CannotCapture("the call does not do the same each time")
    if a.drawing.keys() != b.drawing.keys():
        raise CannotCapture("it makes a random generator")
    for key, (g, state, _) in b.generators.items():
        if g is not torch.default_generator and key in b.drawing and torch.equal(state, a.generators[key][1]):
            raise CannotCapture("it seeds a random generator")
    places = {n: (i, k) for i, region in enumerate(b.regions) for k, n in enumerate(region.nodes)}
    twin = dict(zip(b.nodes, a.nodes))
    scalars, pairs, stands = Scalars(), {}, {}

    def same(v, w, node):
        if isinstance(v, Value) and isinstance(w, Value):
            if v.source == w.source == "prelude" and v.shape != w.shape:
                raise CannotCapture(f"a mask selects another number of elements each time ({node.where}, aten::{node.name})")
            # A buffer's shape says nothing: the memory of channels-last momentum is flat at first.
            alike = v.source == w.source and math.prod(v.shape) == math.prod(w.shape) and v.dtype == w.dtype
            if pairs.setdefault(w, v) is not v or not alike:
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


def _shared(recorder, leaves):
    """{a result or gradient: the memory it lies in}, and {("same", i): the earlier result that is the very same tensor}."""
    found, objects = {}, {}
    for key, (p, before) in recorder.leaves.items():
        if p.grad is not None and p.grad is not before:
            found[key] = id(p.grad.untyped_storage())
    for i, x in enumerate(leaves):
        if isinstance(x, torch.Tensor):
            found["result", i] = id(x.untyped_storage())
            if objects.setdefault(id(x), i) != i:
                found["same", i] = objects[id(x)]
    return found


def _passing(recorder, leaves):
    """The storages that the call made and that nothing should hold when it is over."""
    held = [x for x in leaves if isinstance(x, torch.Tensor)]
    held += [p.grad for p, _ in recorder.leaves.values() if p.grad is not None] + list(recorder.tensors.values())
    held = {id(x.untyped_storage()) for x in held}
    return [s for key, s in recorder.born.items() if key not in held]


def without_history(recorder, result):
    """The result as later runs will give it: detached. CannotCapture if its history could still be asked for gradients."""
    for x in tree_leaves(result):
        if isinstance(x, torch.Tensor) and x.grad_fn is not None and (not recorder.backward or _alive(x.grad_fn)):
            raise CannotCapture(
                "it returns a tensor with a history. Call backward inside, or return it detached: loss.detach()"
            )
    leaves, spec = tree_flatten(result)
    detached = {}
    for x in leaves:
        if isinstance(x, torch.Tensor) and x.grad_fn is not None:
            detached.setdefault(id(x), x.detach())
    return tree_unflatten([detached.get(id(x), x) for x in leaves], spec) if detached else result


def _alive(fn):
    """Whether a graph of autograd still has tensors that it saved: backward has not been there."""
    seen, todo = set(), [fn]
    while todo:
        fn = todo.pop()
        if fn is None or fn in seen:
            continue
        seen.add(fn)
        todo += [f for f, _ in fn.next_functions]
        for name in dir(fn):
            if name.startswith("_saved_") or name == "saved_tensors":
                try:
                    saved = getattr(fn, name)
                except RuntimeError:  # freed
                    break
                if any(isinstance(x, torch.Tensor) for x in tree_leaves(saved)):
                    return True
    return False


def _tensor(x, geometry):
    size, stride, offset = geometry
    if tuple(x.shape) == tuple(size) and x.stride() == tuple(stride) and not offset:
        return x
    return storage.as_strided(x, size, stride, offset)


def _copied(v):
    return v.copy() if v.dtype == ms.bfloat16 else ms.Tensor.from_numpy(v.asnumpy().copy())


def _fresh(v):
    return v if v.is_contiguous() and not v.storage_offset() else storage._CONTIGUOUS(v)


def _number(v):
    return v.asnumpy().reshape(-1)[0].item()
