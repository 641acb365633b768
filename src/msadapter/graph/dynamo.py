"""`torch.compile(model, backend="mindspore")`: dynamo's graphs as compiled MindSpore programs.

AOTAutograd splits what dynamo captured into a forward and a backward graph of ATen ops. A graph's first call runs op by
op and is recorded (capture.py). The second call with inputs of the same kind compiles the lowered program and compares
what it computes with what the ops do one by one; later ones run the program alone. Where a recording is of no use, the
graph goes on running op by op, and one warning says why.

This module costs nothing to import: what it needs is loaded when the first graph is compiled.
"""

import collections
import functools
import operator
import threading
import warnings
import weakref

import torch

LIMIT = 64  # kinds of inputs for which one graph keeps programs
COUNTS = collections.Counter()  # calls of graphs that were "recorded", "compiled", run as a "program", or "eager"
GRAPHS = weakref.WeakSet()  # the live ones

# Our modules whose code runs inside of ops: dynamo must not compile it. The others wrap what users call.
_SKIPPED = ["graph", "runtime", "config"]
_SKIPPED += [
    f"backend.{name}"
    for name in "kernels registry fallback storage routes tracing counters elementary double composite serialization".split()
]


def backend(graph, inputs, **options):
    """What torch.compile calls with dynamo's graph: registered as "mindspore"."""
    return _aot()(graph, inputs, **options)


def install():
    """Make the backend known to dynamo; called when `torch._dynamo` is imported."""
    from torch._dynamo import trace_rules
    from torch._dynamo.backends import registry

    if "mindspore" not in registry._COMPILER_FNS:
        registry.register_backend(backend, "mindspore")
    for name in (*(f"msadapter.{name}" for name in _SKIPPED), "mindspore"):
        trace_rules.add(name)


@functools.cache
def _aot():
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(
        fw_compiler=functools.partial(_compiler, "forward"),
        bw_compiler=functools.partial(_compiler, "backward"),
        inference_compiler=functools.partial(_compiler, "inference"),
    )


def _compiler(kind, graph, inputs):
    compiled = Graph(graph, kind)

    def call(inputs):
        return compiled(inputs)

    call._boxed_call = True  # AOTAutograd hands the inputs over in a list, to be emptied
    return call


class Graph:
    """A graph of AOTAutograd's, called with the list of its inputs, which it empties."""

    def __init__(self, graph, kind):
        self.graph, self.kind = graph, kind
        self.reason = _host_work(graph)  # why it runs op by op
        self.entries = {}  # kind of inputs -> Entry
        self._warned, self._lock = False, threading.RLock()
        GRAPHS.add(self)

    def __call__(self, boxed):
        inputs = list(boxed)
        boxed.clear()
        if self.reason is not None:
            return self._eagerly(inputs, self.reason)
        key = _kind(inputs)
        entry = self.entries.get(key)
        if entry is None:
            if len(self.entries) >= LIMIT:
                return self._eagerly(inputs, f"it has been called with {LIMIT} kinds of inputs")
            return self._record(key, inputs)
        from ..backend.tracing import CannotCapture

        moved = _moved(inputs)
        with self._lock:
            if not entry.suits(moved):  # they need what only the kernels do, such as an error about an index
                COUNTS["eager"] += 1
                return self._one_by_one(inputs)
            if not entry.ready:
                try:
                    result = entry.prepare(lambda: self._one_by_one(inputs), inputs, moved)
                    self.reason = entry.wrong
                    return result
                except CannotCapture as error:
                    self.reason = str(error)
                    return self._eagerly(inputs, self.reason)
            COUNTS["program"] += 1
            return entry.run(inputs, moved)

    def _eagerly(self, inputs, reason):
        COUNTS["eager"] += 1
        if not self._warned:
            self._warned = True
            from .compile import CaptureWarning

            text = f"torch.compile: this {self.kind} graph runs op by op on the device: {reason}"
            warnings.warn(text, CaptureWarning, stacklevel=3)
        return self._one_by_one(inputs)

    def _one_by_one(self, inputs, recorder=None):
        return _Ops(self.graph, recorder).run(*inputs)

    def _record(self, key, inputs):
        from ..backend.tracing import CannotCapture
        from . import bound

        COUNTS["recorded"] += 1
        moved = _moved(inputs)
        recorder = bound.recorder_of(moved)
        with recorder:
            result = self._one_by_one(moved, recorder)
        try:
            self.entries[key] = bound.Entry(recorder, moved, list(result))
        except CannotCapture as error:
            self.reason = str(error)
        back = {id(m): x for m, x in zip(moved, inputs) if m is not x}
        return [back.get(id(x), x) for x in result]


def _moved(inputs):
    """The inputs, those on the host as device tensors."""
    return [x.detach().to("mindspore") if _on_host(x) else x for x in inputs]


def _kind(inputs):
    """What a program depends on besides values: geometry, types, numbers, and which inputs share memory."""
    storages, kind = {}, []
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor):
            s = x.untyped_storage()
            shared = storages.setdefault(s._cdata, i)
            kind.append((x.shape, x.stride(), x.storage_offset(), x.dtype, x.device.type, shared, s.nbytes()))
        else:
            kind.append((type(x), x))
    return tuple(kind)


def _host_work(graph):
    """Why the graph cannot be recorded, None if it can.

    Its host inputs are moved to the device before it runs (a Python float is one, to dynamo), and what is computed of them
    on the host is computed on the device then; but such a value cannot meet other host tensors, nor be a result.
    """
    moved = set()
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        if node.op == "output":
            if any(n in moved and n.op != "placeholder" for n in tensors):
                return "a result is on the host"
        elif _on_host(value) and node.op == "placeholder":
            moved.add(node)
        elif _on_host(value) and any(n in moved for n in tensors):
            if any(n not in moved and n.meta["val"].dim() for n in tensors) or "device" in node.kwargs:
                return f"it computes on the host ({_line(node)}, {node.target})"
            moved.add(node)
    return None


def _on_host(x):
    return isinstance(x, torch.Tensor) and x.device.type == "cpu"


def _line(node):
    """The user's line of a node: "train.py:12"."""
    trace = node.meta.get("stack_trace") or ""
    places = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')]
    ours = [p for p in places if "/torch/" not in p] or places
    if not ours:
        return "backward" if "is_backward" in node.meta or "tangents" in str(node.args) else ""
    name, _, rest = ours[-1].removeprefix('File "').partition('"')
    return f"{name.rsplit('/', 1)[-1]}:{rest.removeprefix(', line ').split(',')[0]}"


class _Ops(torch.fx.Interpreter):
    """Runs a graph op by op, each result with the strides that it had when the graph was made.

    A recorder is given the user's lines.
    """

    def __init__(self, graph, recorder):
        super().__init__(graph)
        self.recorder = recorder

    def run_node(self, node):
        noted = self.recorder.nodes if self.recorder is not None else []
        before = len(noted)
        result = super().run_node(node)
        if node.op == "call_function" and isinstance(result, torch.Tensor):
            view_of = () if node.target is operator.getitem else self.map_nodes_to_values(node.all_input_nodes, node)
            result = _restrided(result, node.meta.get("val"), view_of)
        if len(noted) > before:
            line = _line(node)
            for one in noted[before:]:
                one.where = line or one.where
        return result


def _restrided(x, expected, view_of):
    """x, or a copy of it with the strides of `expected`, which views of it count on."""
    if not isinstance(expected, torch.Tensor) or x.device.type != "mindspore" or x.dim() < 2:
        return x
    stride = expected.stride()
    if x.stride() == stride or not all(type(n) is int for n in (*stride, *expected.shape)) or x.shape != expected.shape:
        return x
    if any(n > 1 and s != e for n, s, e in zip(x.shape, x.stride(), stride)) and 0 not in x.shape:
        if not any(isinstance(a, torch.Tensor) and a.untyped_storage() is x.untyped_storage() for a in view_of):
            return torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)
    return x
