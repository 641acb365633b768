"""A recording of a graph that is a function of its inputs, bound to be run on other inputs of the same kind."""

import torch
from torch import Tensor

from ..backend import storage
from ..backend.storage import LOCK
from ..backend.tracing import CannotCapture
from . import cache, dynamo
from .capture import Recorder, Value
from .lower import Program, agree, first_line, in_range


def recorder_of(inputs):
    """A recorder for a call with these inputs: tensors and numbers."""
    return Recorder([x for x in inputs if isinstance(x, Tensor)])


class Entry:
    """What a recorded call did, as a program, and how its results are made of the program's. CannotCapture if it is unfit.

    Results that shared memory, with each other or with an input, share it again; inputs that were written are written.
    """

    def __init__(self, recorder, inputs, results):
        if recorder.reason is None and recorder.reads:
            recorder.fail("a number is read back", recorder.reads[0].node)
        if recorder.reason is not None:
            raise CannotCapture(recorder.reason)
        self._draws, self._expected = recorder.draws, list(recorder.expected.values())
        self._tensors = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]  # the recorder's number -> ours
        self._of_input = {id(inputs[i].untyped_storage()): i for i in reversed(self._tensors)}
        self._state = {v: s for s, v in recorder.storages.values() if id(s) not in self._of_input}  # the graph's constants
        self._made = {}  # id(storage) -> its place among the results' storages
        self._values = []  # those storages: a Value, or (count, dtype) of one that nobody wrote
        self._writes = []  # (storage or input number, Value)
        seen = {}
        self._plan = [self._planned(k, x, inputs, recorder, seen) for k, x in enumerate(results)]
        for s, v in recorder.storages.values():
            if s.buf is not v.tensor:
                self._writes.append((self._of_input.get(id(s), s), self._value(recorder, s)))
        wanted = [v for v in self._values if isinstance(v, Value)] + [v for _, v in self._writes]
        self.program = Program(recorder.lines, wanted)
        self._stands = dict(zip(wanted, self.program.outputs))
        self._preludes = [v for v in self.program.inputs if v.source == "prelude"]
        self.ready, self.wrong = False, None
        for v in recorder.values.values():
            if v.source != "constant":
                v.tensor = None  # memory that the program does not need

    def _planned(self, k, x, inputs, recorder, seen):
        if not isinstance(x, Tensor):
            return ("number", x)
        if id(x) in seen:
            return ("result", seen[id(x)])
        seen[id(x)] = k
        for i in self._tensors:
            if inputs[i] is x:
                return ("input", i)
        if x.device.type != "mindspore":
            raise CannotCapture("a result is on the host")
        if x.is_conj() or x.is_neg():
            raise CannotCapture("a result is a lazy conjugate or negative")
        s = x.untyped_storage()
        geometry = (tuple(x.shape), x.stride(), x.storage_offset(), x.dtype)
        if id(s) in self._of_input:
            return ("alias", self._of_input[id(s)], geometry)
        if id(s) in recorder.storages:
            return ("state", s, geometry)
        if id(s) not in self._made:
            self._made[id(s)] = len(self._values)
            self._values.append(s.pending if s.buf is None else self._value(recorder, s))
        return ("made", self._made[id(s)], geometry)

    @staticmethod
    def _value(recorder, s):
        v = recorder.values.get(id(s.buf))
        if v is None:
            raise CannotCapture("a result is of unknown origin")
        return v

    # ------------------------------------------------------------------------------------------------------------ a run

    def suits(self, inputs):
        """Whether the program is right for the values that the inputs have."""
        with LOCK:
            for v, low, high, but in self._expected:
                if not in_range(self._resolve(v, inputs, ()), low, high, but):
                    return False
            return all(tuple(self._resolve(v, inputs, ()).shape) == v.shape for v in self._preludes)

    def prepare(self, run, given, inputs):
        """The results of `run()`, compared with those of the compiled program. CannotCapture if there is none."""
        state = torch.get_rng_state() if self._draws else None
        try:
            with LOCK:
                if self.program.computed:
                    cache.compile(self.program)
                ours, writes = self._compute(given, inputs)
        except Exception as error:
            raise CannotCapture(f"MindSpore cannot compile it: {first_line(error)}") from error
        finally:
            if state is not None:
                torch.set_rng_state(state)
        results = run()
        dynamo.COUNTS["compiled"] += 1
        pairs = [(a, b) for a, b in zip(ours, results) if isinstance(b, Tensor) and a is not b]
        if not agree([(storage.host(a), storage.host(b)) for a, b in pairs if b.device.type == "mindspore"]):
            self.wrong = "MindSpore's graph computes other values than its ops do one by one"
        self.ready = True
        return results

    def run(self, given, inputs):
        """The results for the inputs as given, and all on the device."""
        with LOCK:
            results, writes = self._compute(given, inputs)
            for target, v in writes:
                storage.store(inputs[target].untyped_storage() if isinstance(target, int) else target, v)
            return results

    def _compute(self, given, inputs):
        """The results, and (an input's number or a storage, what will be in it)."""
        drawn = [d() for d in self._draws]
        values = {}
        if self.program.computed:
            taken = [self._resolve(v, inputs, drawn) for v in self.program.inputs]
            values = dict(zip(self.program.computed, self.program.run(taken)))

        def value(v):
            v = self._stands[v]
            return values[v] if v in values else self._resolve(v, inputs, drawn)

        bases = [storage.wrap(value(v)) if isinstance(v, Value) else storage.new_empty((v[0],), v[1]) for v in self._values]
        writes = [(target, value(v)) for target, v in self._writes]
        results = []
        for kind, *what in self._plan:
            results.append(_result(kind, what, given, inputs, bases, results))
        return results, writes

    def _resolve(self, v, inputs, drawn):
        """The `ms.Tensor` that v is in this run."""
        if v.source == "constant":
            return v.tensor
        if v.source == "draw":
            number, part = v.origin
            return drawn[number][part] if isinstance(drawn[number], tuple) else drawn[number]
        if v.source == "prelude":
            primitive, args, k = v.origin
            result = primitive(*(self._resolve(a, inputs, drawn) if isinstance(a, Value) else a for a in args))
            return result[k] if isinstance(result, (tuple, list)) else result
        s = self._state[v] if v in self._state else inputs[self._tensors[v.origin]].untyped_storage()
        buf = s.buf if s.buf is not None else storage._materialize(s)
        return buf if buf.shape == v.shape else storage._RESHAPE(buf, v.shape)


def _result(kind, what, given, inputs, bases, results):
    if kind == "number":
        return what[0]
    if kind == "result":
        return results[what[0]]
    if kind == "input":
        return given[what[0]]
    place, (size, stride, offset, dtype) = what
    if kind == "made" and bases[place].dtype is dtype:
        return storage.as_strided(bases[place], size, stride, offset)
    s = place if kind == "state" else (inputs if kind == "alias" else bases)[place].untyped_storage()
    return storage._set(storage._META, storage.new_empty((0,), dtype), s, offset, size, stride)
