"""A PyTorch module as a MindSpore Cell.

    cell = msadapter.to_cell(module, torch.randn(1, 3, 224, 224))     # Parameters named as in module.state_dict()
    mindspore.export(cell, x, file_name="model", file_format="MINDIR")
    cell.to_module()                                                  # weights back into module

The module's forward and backward run once on a copy on the device and are recorded. The forward's primitives become one
inner cell, `Step`, whose `bprop` is the recorded backward: gradients are the ones that PyTorch computes, not what
MindSpore makes of the forward's primitives. `Module` around it holds the Parameters and assigns what the forward changes
(the running statistics of a BatchNorm in training mode).
"""

import atexit
import copy
import functools
import importlib.util
import itertools
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from ..backend import storage, tracing
from ..backend.storage import MS_DTYPE, from_host, ms
from ..backend.tracing import CannotCapture
from .batches import merged
from .capture import Line, Node, Recorder, Value
from .lower import Program

PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # batch sizes to record with, if they are no other size in the module


def to_cell(module, *example_inputs, dynamic_batch=False):
    """See `msadapter.to_cell`."""
    _check(module, example_inputs)
    if not dynamic_batch:
        return _cell(module, [_Recording(module, example_inputs)], example_inputs)
    size = _batch(example_inputs)
    taken = {n for x in (*module.parameters(), *module.buffers(), *example_inputs) for n in x.shape}
    sizes = sorted(PRIMES, key=lambda n: n in taken)[:2]
    recordings = [_Recording(module, [_of_size(x, size, n) for x in example_inputs]) for n in sizes]
    return _cell(module, recordings, example_inputs, sizes)


def _check(module, inputs):
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"Expected a torch.nn.Module; received {type(module).__name__}.")
    for i, x in enumerate(inputs):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"Expected example inputs that are torch.Tensors; input {i} is a {type(x).__name__}.")
    if not inputs:
        raise TypeError("Expected at least one example input: to_cell(module, x).")


def _batch(inputs):
    if any(x.dim() == 0 for x in inputs) or len({len(x) for x in inputs}) > 1 or not len(inputs[0]):
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
        raise ValueError(f"dynamic_batch: expected inputs whose first dimension is the batch; received shapes {shapes}.")
    return len(inputs[0])


def _of_size(x, size, n):
    return x.detach()[torch.arange(n, device=x.device) % size]


# ----------------------------------------------------------------------------------------------------------- recording


class _Recording:
    """The module's forward and backward on `inputs`: two programs, and where each value comes from.

    outputs, writes, gradients: lists of Values; `saved` are those of the forward that only the backward asks for.
    """

    def __init__(self, module, inputs):
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            self._record(_on_device(module), [_whole(x.detach().to("mindspore").clone()) for x in inputs])

    def _record(self, module, inputs):
        leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for p in module.parameters():
            p.requires_grad_(p.is_floating_point())  # frozen ones too: MindSpore may thaw them
        self.count = len(inputs)
        self.recorder = recorder = Recorder(inputs)
        with recorder:
            result = module(*(x.clone() for x in inputs))  # a clone may be changed in place
            found, spec = tree_flatten(result)
            found = [x for x in found if x is not None]
            self._usable()
            self.outputs = [self._value(x) for x in found]
        self._usable()
        self.single = isinstance(result, torch.Tensor)
        names = {id(x.untyped_storage()): name for name, x in named.items()}
        self.names = {v: names.get(i) for i, (_, v) in recorder.storages.items()}
        self.writes = {
            v: recorder.values.get(id(s.buf))
            for s, v in recorder.storages.values()
            if s.buf is not v.tensor and v.source == "storage"
        }
        if None in self.writes.values():
            raise CannotCapture("a buffer ends with a value of unknown origin")
        self.made, self.gradients, self.no_gradients = {}, {}, None
        self._backward(found, [*leaves, *(p for p in module.parameters() if p.requires_grad)])
        lines = [*self._draws(), *recorder.lines]
        wanted = [*self.outputs, *self.writes.values()]
        whole = Program(lines, [*wanted, *self.gradients.values()])
        self.forward = Program(whole._lines, [*map(whole._of, wanted)])
        mine = {v for line in self.forward._lines for v in line.outputs}
        rest = [line for line in whole._lines if line.outputs[0] not in mine]
        self.backward = Program(rest, [whole._of(v) for v in self.gradients.values()])
        asked = [*self.backward.inputs, *self.backward.outputs]
        self.saved = [v for v in dict.fromkeys(asked) if v in mine and v not in self.forward.outputs]
        self.forward = Program(self.forward._lines, [*self.forward.outputs, *self.saved])
        for v in [*self.forward.inputs, *self.backward.inputs]:
            if v.source not in ("argument", "storage", "primitive"):
                raise CannotCapture(_needs(v))

    def _backward(self, found, leaves):
        """What torch's autograd makes of `ones`, which stands for the gradient that MindSpore will give."""
        recorder = self.recorder
        differentiable = [(k, x) for k, x in enumerate(found) if x.requires_grad]
        if not differentiable:
            self.no_gradients = "no output depends on a parameter or on a floating-point input"
            return
        ones = [torch.ones_like(x, memory_format=torch.contiguous_format) for _, x in differentiable]
        for (k, _), x in zip(differentiable, ones):
            recorder._argument(self.count + k, x)
        try:
            with recorder:
                gradients = torch.autograd.grad([x for _, x in differentiable], leaves, ones, allow_unused=True)
                if recorder.reason is None:
                    for leaf, g in zip(leaves, gradients):
                        first = recorder.storages.get(id(leaf.untyped_storage()))
                        if g is not None and first is not None:
                            self.gradients[first[1]] = self._value(g)
        except (RuntimeError, CannotCapture) as error:
            recorder.fail(str(error))
        if recorder.reason is not None:
            self.no_gradients, self.gradients = recorder.reason, {}

    def _usable(self):
        recorder = self.recorder
        if recorder.reason is not None:
            raise CannotCapture(f"Expected a module whose forward is one graph: {recorder.reason}.")
        if recorder.reads:
            read = recorder.reads[0]
            where = f"{read.node.where}, aten::{read.node.name}"
            raise CannotCapture(f"Expected a module whose forward is one graph: it takes a number from the device ({where}).")

    def _value(self, x):
        """The Value of x, in x's shape, whatever storage it is a view of."""
        if not isinstance(x, torch.Tensor) or x.device.type != "mindspore":
            kind = f"a tensor on {x.device}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
            raise CannotCapture(f"Expected a module that returns tensors on its parameters' device; it returns {kind}.")
        recorder = self.recorder
        recorder.see(x)
        recorder._node, tracing.active.recorder = Node("view", "result", (), ()), recorder
        try:
            v = storage.read(x)
        finally:
            recorder._node, tracing.active.recorder = None, None
        self._usable()
        if id(v) not in recorder.values:
            raise CannotCapture("Expected a module whose forward is one graph: a result has a value of unknown origin.")
        return recorder.values[id(v)]

    # Random numbers: MindSpore draws those of dropout.

    def _draws(self):
        seeds = torch.Generator().manual_seed(torch.initial_seed())
        drawn = {}
        for v in self.recorder.values.values():
            if v.source == "draw":
                drawn.setdefault(v.origin[0], []).append(v)
        for number in sorted(drawn):
            yield from _dropout(sorted(drawn[number], key=lambda v: v.origin[1]), seeds)


def _dropout(values, seeds):
    """Lines that draw the noise (0 or 1 / (1 - p)) and the mask of a dropout."""
    node = values[0].node
    if node is None or node.name != "native_dropout":
        raise CannotCapture(_needs(values[0]))
    mask, noise = values
    p = next(x for x in node.scalars if isinstance(x, float))
    seed = [int(torch.randint(1, 2**31 - 1, (), generator=seeds)) for _ in range(2)]
    wide = noise if noise.dtype == ms.float32 else Value("primitive", None, None, node, noise.shape, ms.float32)
    unused = Value("primitive", None, None, node, noise.shape, ms.bool_)
    draw = ms.ops.Dropout(keep_prob=1 - p, Seed0=seed[0], Seed1=seed[1])
    yield Line(draw, (_constant(np.ones(noise.shape, np.float32), node),), [wide, unused], False, node)
    if wide is not noise:
        yield Line(ms.ops.Cast(), (wide, noise.dtype), [noise], True, node)
    yield Line(ms.ops.NotEqual(), (wide, _constant(np.zeros((), np.float32), node)), [mask], True, node)
    mask.source = noise.source = "primitive"


def _constant(array, node):
    tensor = ms.Tensor.from_numpy(array)
    return Value("constant", array, tensor, node, array.shape, tensor.dtype)


def _needs(v):
    """Why a Value cannot be had in a Cell."""
    where = f" ({v.node.where}, aten::{v.node.name})" if v.node else ""
    if v.source == "draw":
        return (
            f"Expected a module whose forward is one graph: it draws random numbers on the host{where}. "
            "Call module.eval() first, if that turns them off."
        )
    if v.source == "prelude":
        return f"Expected a module whose forward is one graph: the shape of a value depends on other values{where}."
    return f"Expected a module whose forward is one graph: it uses a tensor that is neither an input nor its own{where}."


def _on_device(module):
    """A copy of the module on the device, each tensor whole and contiguous in its storage."""
    try:
        made = copy.deepcopy(module)
    except Exception as error:
        raise CannotCapture(f"Expected a module that can be copied; copy.deepcopy says: {error}") from error
    made = made.to("mindspore")
    for x in itertools.chain(made.parameters(), made.buffers()):
        _whole(x)
    return made


def _whole(x):
    """x, contiguous, with a buffer of its shape that is its own."""
    if not x.is_contiguous() or storage.capacity(x.untyped_storage()) != x.numel():
        x.data = x.detach().clone(memory_format=torch.contiguous_format)
    s = x.untyped_storage()
    if s.buf is None:
        storage._materialize(s)
    if s.buf.shape != tuple(x.shape):
        storage.store(s, storage._RESHAPE(s.buf, tuple(x.shape)))
    return x


# ------------------------------------------------------------------------------------------------------------- writing


def _cell(module, recordings, examples, sizes=None):
    first = recordings[0]
    try:
        forward = _function([r.forward for r in recordings], sizes)
    except ValueError as error:
        raise CannotCapture(f"Expected a module whose forward is one graph: {error}.") from error
    try:
        backward = _function([r.backward for r in recordings], sizes)
    except (ValueError, CannotCapture) as error:
        first.no_gradients, backward = str(error).rstrip("."), None
    names = [*dict.fromkeys([*dict(module.named_parameters()), *dict(module.named_buffers())])]
    writer = _CellWriter(first, names, examples, sizes)
    made = _load(writer.text, forward=forward, backward=backward, **writer.constants)
    cell = made.Module(made.Step(), module, {**dict(module.named_parameters()), **dict(module.named_buffers())})
    for i, v in enumerate(writer.others):
        setattr(cell, f"q{i}", ms.Parameter(ms.Tensor(v.tensor.asnumpy().copy()), f"constant.{i}", requires_grad=False))
    return cell


def _function(programs, sizes):
    """The function `step` of a program, or of one for all batch sizes."""
    program = programs[0]
    if not any(p.computed for p in programs):
        return None
    text, constants = program.source(), {f"c{i}": v.tensor for i, v in enumerate(program.constants)}
    if sizes is not None:
        text, constants = merged(programs, sizes)
    return _load(text, **constants).step


class _CellWriter:
    """The text of the two cells around the functions `forward` and `backward`."""

    def __init__(self, recording, names, examples, sizes):
        self.recording, self.constants = recording, {}
        r = recording
        held = {v: f"self.p{names.index(name)}" for v, name in r.names.items() if name in names}
        taken = [*r.forward.inputs, *r.forward.outputs, *r.backward.inputs, *r.gradients, *r.writes]
        taken = [v for v in dict.fromkeys(taken) if v.source == "storage" or self._is_input(v)]
        self.others = [v for v in taken if v.source == "storage" and v not in held]  # tensors that are plain attributes
        held.update({v: f"self.q{i}" for i, v in enumerate(self.others)})
        self.step = {v: f"x{i}" for i, v in enumerate(taken)}
        given = {v: f"a{v.origin}" if self._is_input(v) else held[v] for v in taken}
        count, writes = len(r.outputs), len(r.writes)
        results = "out[0]" if r.single else f"({''.join(f'out[{i}], ' for i in range(count))})"
        self.text = "\n".join([
            '"""Written by msadapter: a PyTorch module as a Cell."""',
            "import mindspore",
            "import mindspore.common.dtype as mstype",
            "from msadapter.graph.cell import ModuleCell",
            "",
            "assign, same, zeros = mindspore.ops.Assign(), mindspore.ops.Identity(), mindspore.ops.ZerosLike()",
            "",
            "",
            "class Step(mindspore.nn.Cell):",
            f"    def construct(self, {', '.join(self.step.values())}):",
            *self._construct(),
            "",
            f"    def bprop(self, {', '.join(self.step.values())}, out, dout):",
            *self._bprop(),
            "",
            "",
            "class Module(ModuleCell):",
            f"    def construct(self, {', '.join(f'a{i}' for i in range(r.count))}):",
            *(line for i, x in enumerate(examples) for line in _expect(i, x, sizes is not None)),
            f"        out = self.step({', '.join(given.values())})",
            *(f"        assign({given[v]}, out[{count + i}])" for i, v in enumerate(r.writes)),
            f"        return {results}",
            "",
        ])  # fmt: skip
        assert len(r.forward.outputs) == count + writes + len(r.saved)

    def _is_input(self, v):
        return v.source == "argument" and v.origin < self.recording.count

    def _construct(self):
        program = self.recording.forward
        call = f"        result = forward({', '.join(self.step[v] for v in program.inputs)})"
        values = []
        for v in program.outputs:
            value = self._result(program, v) or self.step[v]
            # Eagerly, MindSpore gives a gradient to one only of several results that are the same tensor.
            values.append(f"same({value})" if value in values or v not in program.computed else value)
        return [*([call] if program.computed else []), f"        return ({''.join(v + ', ' for v in values)})"]

    def _bprop(self):
        r, program = self.recording, self.recording.backward
        if r.no_gradients is not None:
            return [f"        raise RuntimeError({'This cell has no gradients: ' + r.no_gradients + '.'!r})"]
        saved = {v: f"out[{i}]" for i, v in enumerate(r.forward.outputs) if v in r.forward.computed}

        def known(v):
            return saved.get(v) or self.step.get(v) or f"dout[{v.origin - r.count}]"

        call = f"        result = backward({', '.join(map(known, program.inputs))})"
        gradients = {leaf: self._result(program, v) or known(v) for leaf, v in zip(r.gradients, program.outputs)}
        values = [gradients.get(v) or f"zeros({x})" for v, x in self.step.items()]
        return [*([call] if program.computed else []), f"        return ({''.join(v + ', ' for v in values)})"]

    def _result(self, program, v):
        if v in program.computed:
            return f"result[{program.computed.index(v)}]"
        if v.source == "constant":
            self.constants[f"k{len(self.constants)}"] = v.tensor
            return f"k{len(self.constants) - 1}"
        return None


def _expect(i, x, dynamic):
    """Lines that refuse another dtype or shape; while a graph is compiled, they cost nothing."""
    dtype, shape = str(MS_DTYPE[x.dtype]).lower(), tuple(x.shape)
    fixed = [f"a{i}.shape[{d}] != {n}" for d, n in enumerate(shape) if d or not dynamic]
    wrong = " or ".join([f"a{i}.dtype != mstype.{dtype.replace('bool', 'bool_')}", f"len(a{i}.shape) != {len(shape)}", *fixed])
    words = f"({', '.join(['any size', *map(str, shape[1:])])})" if dynamic else str(shape)
    hint = "" if dynamic else " (to_cell(..., dynamic_batch=True) takes any batch size)"
    return [f"        if {wrong}:", f"            raise ValueError({f'Expected input {i} as {dtype}{words}{hint}.'!r})"]


# MindSpore's parser reads a function's source when it compiles, which may be late: the files stay until exit.


@functools.cache
def _folder():
    folder = tempfile.mkdtemp(prefix="msadapter-cells-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return pathlib.Path(folder)


_numbers = itertools.count()


def _load(text, **names):
    """The module with source `text`, in which `names` have been set."""
    name = f"msadapter_cell_{next(_numbers)}"
    path = _folder() / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the parser looks it up there
    spec.loader.exec_module(module)
    vars(module).update(names)
    return module


# --------------------------------------------------------------------------------------------------------------- cells


class ModuleCell(ms.nn.Cell):
    """A recorded module: `construct` is written for each (see `_CellWriter`)."""

    def __init__(self, step, module, tensors):
        super().__init__()
        self.step = step
        self._source = (module,)  # in a tuple: a Cell takes a callable attribute for something else
        self._names = {name: f"p{i}" for i, name in enumerate(tensors)}
        for name, x in tensors.items():
            trained = isinstance(x, torch.nn.Parameter) and x.requires_grad
            value = from_host(x.detach().cpu().clone(memory_format=torch.contiguous_format))
            setattr(self, self._names[name], ms.Parameter(value, name=name, requires_grad=trained))

    def to_float(self, dst_type):
        """What mindspore.amp calls at levels O2 and O3, and would find casts of the recorded primitives in the way."""
        if dst_type == ms.float32:
            return self
        raise ValueError(
            f"Expected a recorded module to keep its dtypes; received to_float({dst_type}). Use the amp level 'auto', or call "
            "to_cell under torch.autocast('mindspore', dtype), which records PyTorch's casts."
        )

    def to_module(self):
        """The PyTorch module that this cell was made of, with the cell's weights and statistics."""
        module = self._source[0]
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, attribute in self._names.items():
                value = getattr(self, attribute)
                tensors[name].copy_(storage._host_flat(value).view(value.shape).clone())
        return module
