"""Lowering: a recording as a straight-line Python function of MindSpore primitives, which `ms.jit` compiles.

    program = Program(recorder.lines, outputs)
    program.source()            the function, readable: one line a primitive, under the ATen op that it is for
    program.run(tensors)        compile at first, then run; tensors in the order of program.inputs

Lines that nothing needs are left out, equal lines are written once, and what only looks at memory in another way (a
MindSpore view) becomes the reshape, slice and transpose that a graph has.
"""

import functools
import hashlib
import importlib.util
import inspect
import math
import os
import pathlib
import sys

import mindspore.common.dtype as mstype
import numpy as np
import torch
from mindspore._c_expression import GraphExecutor_, JitExecutor_, _run_jit_pipeline
from mindspore.graph import api
from mindspore.ops.auto_generate import gen_ops_prim as prim

from ..backend.storage import ms
from . import cache
from .capture import Line, Value, values_in
from .fusion import fused, stacked

SMALL = 64
_EXECUTOR = (JitExecutor_ if _run_jit_pipeline() else GraphExecutor_).get_instance()
_ALIASES = {"Contiguous", "Identity"}


class Program:
    """What computes `outputs` (Values) from `inputs`: those Values that the lines need and do not make themselves."""

    def __init__(self, lines, outputs):
        self._same = {}  # Value -> the Value that stands for it
        self._numbers = {}
        self._lines = self._simplified(lines, outputs)
        self.outputs = [self._of(v) for v in outputs]
        made = {v for line in self._lines for v in line.outputs}
        used = dict.fromkeys(v for line in self._lines for v in values_in(line.args) if v not in made)
        self.inputs = [v for v in used if v.source != "constant" or v.varying]
        self.constants = [v for v in used if v.source == "constant" and not v.varying]
        self.computed = [v for v in dict.fromkeys(self.outputs) if v in made]
        self._function = self._kept = self._phase = None

    # ---------------------------------------------------------------------------------------------------- simplifying

    def _of(self, v):
        while v in self._same:
            v = self._same[v]
        if v.source == "constant" and not v.varying and v.origin.size <= SMALL:  # equal numbers are one
            return self._numbers.setdefault((v.dtype, v.shape, v.origin.tobytes()), v)
        return v

    def _simplified(self, lines, outputs):
        seen, kept, makers = {}, [], {}
        for line in expanded(lines):
            args = _mapped(line.args, self._of)
            out = line.outputs[0]
            line = folded(Line(line.primitive, args, line.outputs, line.single, line.node), makers)
            if isinstance(line, Value):
                self._same[out] = line
                continue
            key = (line.primitive.name, repr(sorted(line.primitive.attrs.items(), key=str)), _key(line.args))
            if key in seen:
                for v, old in zip(line.outputs, seen[key].outputs):
                    self._same[v] = old
                continue
            seen[key] = line
            makers.update(dict.fromkeys(line.outputs, line))
            kept.append(line)
        outputs = [self._of(v) for v in outputs]
        needed, alive = set(outputs), []
        for line in reversed(kept):
            if any(v in needed for v in line.outputs):
                alive.append(line)
                needed.update(values_in(line.args))
        return [part for line in stacked(fused(alive[::-1], outputs), outputs) for part in _for_bfloat16(line)]

    # --------------------------------------------------------------------------------------------------------- writing

    @functools.cached_property
    def _text(self):
        return _Writer(self).text

    def source(self):
        """The Python module: primitives, then the function `step`."""
        return self._text

    def content(self):
        """A name for the program: equal programs have equal names."""
        digest = hashlib.sha256(f"{ms.__version__}\n{self.source()}".encode())
        digest.update(repr([(v.shape, str(v.dtype)) for v in self.inputs]).encode())
        for v in self.constants:
            digest.update(np.ascontiguousarray(v.origin).tobytes())
        return digest.hexdigest()[:24]

    # --------------------------------------------------------------------------------------------------------- running

    def compile(self, folder):
        """Write the module into `folder` and let MindSpore compile its function."""
        name = f"msadapter_graph_{self.content()}"
        path = pathlib.Path(folder) / f"{name}.py"
        if not path.exists() or path.read_bytes() != self.source().encode():  # a crash may have left half of it
            temporary = path.with_suffix(f".{os.getpid()}.{id(self)}.tmp")
            try:
                temporary.write_text(self.source())
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)  # of a full disk
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # MindSpore's parser looks the source up there
        spec.loader.exec_module(module)
        for i, v in enumerate(self.constants):
            setattr(module, f"c{i}", v.tensor)
        self._function, self._kept = ms.jit(module.step), pathlib.Path(folder) / name

    def run(self, tensors):
        """The values of `computed`, as `ms.Tensor`s.

        The first run compiles. Later ones hand the tensors to MindSpore's executor by the compiled graph's name: the
        function that `ms.jit` gives looks at every argument again, 20 us each.
        """
        if self._phase is None:
            before = set(api.ms_compile_cache)
            with cache.kept(self._kept):
                result = self._function(*tensors)
            (self._phase,) = (p for p in api.ms_compile_cache - before if p.startswith(f"{self._function.__module__}.step."))
        else:
            result = _EXECUTOR(tuple(tensors), self._phase)
        return result if isinstance(result, (tuple, list)) else (result,)


def in_range(v, low, high, but):
    """Whether the whole numbers in the `ms.Tensor` v are in [low, high), or `but` (None: no exception)."""
    a = v.asnumpy()
    if but is not None:
        a = a[a != but]
    return not a.size or bool(a.min() >= low and a.max() < high)


def agree(pairs):
    """Whether a program's floats are those of its ops one by one, by the scale of the largest. pairs: (program's, ops')."""
    pairs = [(a.double(), b.double()) for a, b in pairs if b.is_floating_point() and b.numel()]
    scale = max((float(b[b.isfinite()].abs().amax()) for _, b in pairs if b.isfinite().any()), default=0.0)
    return all(torch.allclose(a, b, rtol=1e-2, atol=1e-3 * scale, equal_nan=True) for a, b in pairs)


def first_line(error):
    """The first line of MindSpore's message that says something."""
    lines = [line.strip("- \n") for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("Kernel select failed")]
    return lines[0] if lines else type(error).__name__


def _mapped(args, of):
    return tuple(
        of(a) if isinstance(a, Value) else type(a)(_mapped(a, of)) if isinstance(a, (tuple, list)) else a for a in args
    )


def _key(args):
    return tuple(
        ("v", id(a)) if isinstance(a, Value) else _key(a) if isinstance(a, (tuple, list)) else (type(a), repr(a)) for a in args
    )


class _Writer:
    """Names for everything, and the text."""

    def __init__(self, program):
        self.program, self.names, self.primitives, self.body = program, {}, {}, []
        self.constructors = {}  # id(primitive) -> its text; the program's lines keep the primitives
        for i, v in enumerate(program.inputs):
            self.names[v] = f"x{i}"
        for i, v in enumerate(program.constants):
            self.names[v] = f"c{i}"
        node = None
        for line in program._lines:
            if line.node is not node and line.node is not None:
                node = line.node
                self.body.append(f"# {node.name}  {node.where}")
            self._line(line)
        results = ", ".join(self.names[v] for v in program.computed)
        self.body.append(f"return ({results},)")
        self.text = self._module()

    def _module(self):
        lines = [
            '"""Written by msadapter: one recorded call, in MindSpore primitives."""',
            "import mindspore.common.dtype as mstype",
        ]
        made = [f"{name} = {text}" for text, name in self.primitives.items()]
        modules = sorted({text.split("(")[0].rsplit(".", 1)[0] for text in self.primitives})
        lines += [f"import {module}" for module in modules]
        parameters = ", ".join(self.names[v] for v in self.program.inputs)
        return "\n".join([*lines, "", *made, "", "", f"def step({parameters}):", *("    " + line for line in self.body), ""])

    def _line(self, line):
        call = f"{self._primitive(line.primitive)}({', '.join(self._arg(a) for a in line.args)})"
        if line.single:
            self._assign(line.outputs[0], call)
            return
        names = []
        for v in line.outputs:
            self.names[v] = f"t{len(self.names)}"
            names.append(self.names[v])
        self.body.append(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {call}")

    def _assign(self, v, call):
        self.names[v] = f"t{len(self.names)}"
        self.body.append(f"{self.names[v]} = {call}  # {_dtype_name(v)}{list(v.shape)}")

    def _arg(self, a):
        if isinstance(a, Value):
            return self.names[a]
        if isinstance(a, (tuple, list)):
            inner = ", ".join(self._arg(x) for x in a)
            return f"[{inner}]" if isinstance(a, list) else f"({inner}{',' if len(a) == 1 else ''})"
        return _literal(a)

    def _primitive(self, p):
        if id(p) not in self.constructors:
            self.constructors[id(p)] = _constructor(p)
        text = self.constructors[id(p)]
        if text not in self.primitives:
            kind = text.split("(")[0].rsplit(".", 1)[1]
            self.primitives[text] = f"{kind}_{len(self.primitives)}"
        return self.primitives[text]


# ------------------------------------------------------------------------------------------- views, as a graph has them

_MOVES = {"Reshape", "Transpose", "BroadcastTo", "Gather", "ExpandDims", "Select"}
_CAST = ms.ops.Cast()
_SPLITS = {"Chunk", "SplitWithSize", "SplitTensor"}
_RESHAPE, _TRANSPOSE, _SLICE, _GATHER = prim.Reshape(), prim.Transpose(), prim.Slice(), prim.Gather()
_DIVIDE = ms.ops.RealDiv()


def expanded(lines):
    """The lines with every MindSpore view, which has no kernel in a graph, written as what moves or copies."""
    for line in lines:
        if line.primitive.name == "AsStrided":
            yield from _view(line)
        elif line.primitive.name in _SPLITS:
            v, _, dim = line.args
            begin = [0] * len(v.shape)
            for part in line.outputs:
                yield Line(_SLICE, (v, tuple(begin), part.shape), [part], True, line.node)
                begin[dim] += part.shape[dim]
        else:
            yield line


def _for_bfloat16(line):
    """The line; as float32 if it moves bfloat16, for which a graph on CPU has no such kernel."""
    if line.primitive.name not in _MOVES or line.outputs[0].dtype != ms.bfloat16:
        return [line]
    (out,) = line.outputs
    narrow = dict.fromkeys([v for v in values_in(line.args) if v.dtype == ms.bfloat16] + [out])
    wide = {v: Value("primitive", None, None, v.node, v.shape, ms.float32) for v in narrow}
    before = [Line(_CAST, (v, ms.float32), [wide[v]], True, line.node) for v in narrow if v is not out]
    moved = Line(line.primitive, _mapped(line.args, lambda v: wide.get(v, v)), [wide[out]], True, line.node)
    return [*before, moved, Line(_CAST, (wide[out], ms.bfloat16), [out], True, line.node)]


def folded(line, makers):
    """The line, or a shorter one, or the Value that it gives. makers: {Value: the line that makes it}."""
    name, args, out = line.primitive.name, line.args, line.outputs[0]
    if name in _ALIASES:
        return args[0]
    if name == "Cast" and args[0].dtype == out.dtype:
        return args[0]
    if name == "Reshape":
        v = args[0]
        while v in makers and makers[v].primitive.name == "Reshape":
            v = makers[v].args[0]
        return v if v.shape == out.shape else Line(_RESHAPE, (v, out.shape), line.outputs, True, line.node)
    if name == "Transpose":
        v, order = args[0], tuple(args[1])
        if v in makers and makers[v].primitive.name == "Transpose":
            order = tuple(makers[v].args[1][d] for d in order)
            v = makers[v].args[0]
        if order == tuple(sorted(order)):
            return v
        return Line(_TRANSPOSE, (v, order), line.outputs, True, line.node)
    if name == "Cast" and (parts := _softmax_parts(args[0], makers)) and parts[0].dtype == out.dtype:
        return Line(_DIVIDE, parts, line.outputs, True, line.node)
    return line


def _softmax_parts(v, makers):
    """(e, sum of e), if v is exp(a - log(sum of e)), e = exp(a), all but the first exp made by log-softmax, which sees to it
    that no sum is infinite or zero."""

    def operand(v, *names):
        for name in names:
            line = makers.get(v)
            if line is None or line.primitive.name != name:
                return None
            v = line.args[0]
        return v

    difference = makers.get(operand(v, "Exp", "Cast"))
    if difference is None or difference.primitive.name != "Sub" or difference.node.name != "_log_softmax":
        return None
    a, log = difference.args
    total = operand(log, "Cast", "Log", "Cast")
    e = operand(total, "SumExt")
    if e is None or operand(e, "Cast", "Exp", "Cast") is not a or makers[e].node is not difference.node:
        return None
    return (e, total) if e.dtype == total.dtype else None


def _view(line):
    v, size, stride, offset = line.args
    try:
        steps = view_steps(v.shape, tuple(size), tuple(stride), offset)
    except ValueError:  # no box of a grid: element by element
        index = np.full(tuple(size), offset, np.int64)
        for d, (n, s) in enumerate(zip(size, stride)):
            index += (np.arange(n) * s).reshape([-1 if k == d else 1 for k in range(len(size))])
        where = Value("constant", index, ms.Tensor.from_numpy(index), line.node, index.shape, ms.int64)
        flat = Value("primitive", None, None, line.node, (math.prod(v.shape),), v.dtype)
        yield Line(_RESHAPE, (v, flat.shape), [flat], True, line.node)
        yield Line(_GATHER, (flat, where, 0), line.outputs, True, line.node)
        return
    if not steps:
        yield Line(_RESHAPE, (v, tuple(size)), line.outputs, True, line.node)
    for i, (kind, *args) in enumerate(steps):
        shape = args[0] if kind in ("reshape", "broadcast") else args[1] if kind == "slice" else _permuted(v.shape, args[0])
        out = line.outputs[0] if i == len(steps) - 1 else Value("primitive", None, None, line.node, shape, v.dtype)
        primitive = prim.BroadcastTo(args[0]) if kind == "broadcast" else _KINDS[kind]
        yield Line(primitive, (v,) if kind == "broadcast" else (v, *args), [out], True, line.node)
        v = out


_KINDS = {"reshape": _RESHAPE, "transpose": _TRANSPOSE, "slice": _SLICE}


def _permuted(shape, order):
    return tuple(shape[d] for d in order)


def view_steps(shape, size, stride, offset):
    """How to make the view (size, stride, offset) of a buffer of `shape` by reshape, slice, transpose and broadcast.

    The view's dimensions, from large strides to small, are joined where they lie without gaps. Each stride that is left
    must be a multiple of the next: then they split the memory into a grid with one dimension for each, of which the view
    is a box, its dimensions in another order. ValueError where it is none.
    """
    moving = sorted((d for d in range(len(size)) if size[d] > 1 and stride[d]), key=lambda d: -stride[d])
    if 0 in size or any(stride[d] < 0 for d in moving):
        raise ValueError("a view of nothing, or one that goes backwards")
    joined = []  # [stride, length]
    for d in moving:
        if joined and joined[-1][0] == stride[d] * size[d]:
            joined[-1] = [stride[d], joined[-1][1] * size[d]]
        else:
            joined.append([stride[d], size[d]])
    if not joined or joined[-1][0] != 1:
        joined.append([1, 1])
    steps, count = [s for s, _ in joined], math.prod(shape)
    if count % steps[0] or any(a % b or a == b for a, b in zip(steps, steps[1:])):
        raise ValueError("strides that do not divide each other")
    grid = [count // steps[0], *(a // b for a, b in zip(steps, steps[1:]))]
    begin, length = [], [n for _, n in joined]
    for s in steps:
        begin.append(offset // s)
        offset %= s
    if any(b + n > g for b, n, g in zip(begin, length, grid)):
        raise ValueError("a box that leaves the grid")
    found, at = [], tuple(shape)

    def reshape(to):
        nonlocal at
        if at != tuple(to):
            found.append(("reshape", tuple(to)))
            at = tuple(to)

    if length != grid:
        reshape(grid)
        found.append(("slice", tuple(begin), tuple(length)))
        at = tuple(length)
    reshape([size[d] for d in moving])
    order = sorted(range(len(moving)), key=lambda i: moving[i])
    if order != sorted(order):
        found.append(("transpose", tuple(order)))
        at = tuple(at[i] for i in order)
    reshape([n if d in moving else 1 for d, n in enumerate(size)])
    if at != tuple(size):
        found.append(("broadcast", tuple(size)))
    return found


# ------------------------------------------------------------------------------------------------------------- literals


def _dtype_name(v):
    return str(v.dtype).lower()


def _literal(a):
    if isinstance(a, mstype.Type if hasattr(mstype, "Type") else ()) or type(a).__module__.startswith("mindspore"):
        name = next((n for n, t in vars(mstype).items() if t is a or (not callable(t) and _equal(t, a))), None)
        if name is None:
            raise ValueError(f"no text for {a!r}")
        return f"mstype.{name}"
    if a is None or isinstance(a, (bool, int, str)):
        return repr(a)
    if isinstance(a, float):
        return repr(a) if math.isfinite(a) else f"float('{a}')"
    if isinstance(a, (tuple, list)):
        inner = ", ".join(map(_literal, a))
        return f"[{inner}]" if isinstance(a, list) else f"({inner}{',' if len(a) == 1 else ''})"
    raise ValueError(f"no text for {a!r}")


def _equal(a, b):
    try:
        return type(a) is type(b) and a == b
    except Exception:
        return False


def _constructor(p):
    """The text that makes a primitive like p."""
    cls, given = type(p), dict(p.init_attrs)
    names = [n for n in inspect.signature(getattr(cls.__init__, "__wrapped__", cls.__init__)).parameters if n != "self"]
    for wrong in [k for k in given if k not in names]:  # MindSpore keeps some arguments under another name
        right = [n for n in names if n not in given]
        if len(right) != 1:
            raise ValueError(f"no text for {p!r}")
        given[right[0]] = given.pop(wrong)
    attributes = ", ".join(f"{k}={_literal(v)}" for k, v in given.items())
    text = f"{cls.__module__}.{cls.__qualname__}({attributes})"
    plain = _attributes(cls(**given))
    for k, v in _attributes(p).items():  # what add_prim_attr gave it afterwards
        if plain.get(k) != v:
            text += f".add_prim_attr({k!r}, {v})"
    return text


def _attributes(p):
    """The attributes of a primitive that are numbers or words, as text."""
    return {k: _literal(v) for k, v in p.attrs.items() if isinstance(v, (bool, int, float, str))}
