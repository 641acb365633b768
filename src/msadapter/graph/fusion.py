"""Fusing the lines of a program: the same values by fewer kernels, in fewer passes over the memory."""

import collections
import itertools
import math

from mindspore.ops.auto_generate import gen_ops_prim as prim

from ..backend.storage import ms
from .capture import Line, Value, values_in

LARGE = 1 << 15  # elements from which one pass over the memory less pays for an argument more
SMALL = 4096  # elements up to which a kernel's own time is what it costs
MANY = 4  # tensors from which stacking them pays

_MULTIPLY, _RECIPROCAL, _STACK = ms.ops.Mul(), ms.ops.Reciprocal(), ms.ops.Stack(0)
_SCALED = {"Add": prim.AddExt(), "Sub": prim.SubExt()}
_POINTWISE = set("Add AddExt Div Maximum Mul Neg RealDiv Reciprocal Rsqrt Sqrt Square Sub SubExt".split())


def fused(lines, outputs):
    """The lines, with x + s y (s a number) of large float32 tensors in one primitive, and their division by a number that
    an optimizer computed as a product: MindSpore divides seven times as slowly as it multiplies."""
    uses = collections.Counter(v for line in lines for v in values_in(line.args)) + collections.Counter(outputs)
    makers = {line.outputs[0]: line for line in lines}
    found, inverse, merged = [], {}, set()
    for line in lines:
        out, name = line.outputs[0], line.primitive.name
        if out.dtype == ms.float32 and math.prod(out.shape) >= LARGE and name in ("Add", "Sub", "RealDiv"):
            a, b = line.args
            if name == "RealDiv":
                if line.node is not None and line.node.region is not None and _is_number(b):
                    if b not in inverse:
                        inverse[b] = Value("primitive", None, None, line.node, (), ms.float32)
                        found.append(Line(_RECIPROCAL, (b,), [inverse[b]], True, line.node))
                    line = Line(_MULTIPLY, (a, inverse[b]), line.outputs, True, line.node)
            else:
                for x, product in ((a, b), (b, a))[: 1 + (name == "Add")]:
                    y, s = _scaled(product, makers)
                    if y is not None and uses[product] == 1 and x.shape == y.shape == out.shape:
                        line = Line(_SCALED[name], (x, y, s), line.outputs, True, line.node)
                        merged.add(product)
                        break
        found.append(line)
    return [line for line in found if line.outputs[0] not in merged]


def _scaled(product, makers):
    """(y, s) if the value is y times the number s; else (None, None)."""
    line = makers.get(product)
    if line is not None and line.primitive.name == "Mul":
        for y, s in (line.args, line.args[::-1]):
            if isinstance(y, Value) and _is_number(s):
                return y, s
    return None, None


def _is_number(v):
    return isinstance(v, Value) and v.shape == () and v.dtype == ms.float32


def stacked(lines, outputs):
    """The lines, with the equal arithmetic of a `_foreach_` op on many small tensors of one shape done on all, stacked.

    A kernel on 128 elements takes 10 to 20 us whatever it does, and an optimizer has ten for each parameter.
    """
    return _Stacking(outputs).run(lines)


class _Stacking:
    def __init__(self, outputs):
        self._outputs, self._lines = outputs, []
        self._row = {}  # Value -> (the stacked Value that it is a row of, its number)
        self._rows = {}  # stacked Value -> its rows
        self._of = {}  # tuple of Values -> them, stacked
        self._apart = set()  # stacked Values whose rows have lines of their own

    def run(self, lines):
        for node, run in itertools.groupby(lines, key=lambda line: line.node):
            if node is not None and node.name.startswith("_foreach_"):
                for same in _alike(list(run)):
                    self._together(same) if len(same) >= MANY else self._add(*same)
            else:
                self._add(*run)
        self._need(self._outputs)
        return self._lines

    def _add(self, *lines):
        for line in lines:
            self._need(values_in(line.args))
            self._lines.append(line)

    def _need(self, values):
        """Take apart the stacks of which these are rows."""
        for v in values:
            whole, _ = self._row.get(v, (None, 0))
            if whole is not None and whole not in self._apart:
                self._apart.add(whole)
                rows = self._rows[whole]
                self._lines.append(Line(ms.ops.Unstack(0, len(rows)), (whole,), rows, False, whole.node))

    def _together(self, lines):
        first = lines[0]
        columns = zip(first.args, zip(*(line.args for line in lines)))
        args = [self._whole(column) if _is_row(a, first) else a for a, column in columns]
        out = self._stack([line.outputs[0] for line in lines], first.node)
        self._lines.append(Line(first.primitive, tuple(args), [out], True, first.node))
        for i, line in enumerate(lines):
            self._row[line.outputs[0]] = out, i

    def _whole(self, rows):
        """The Values `rows`, stacked."""
        whole, _ = self._row.get(rows[0], (None, 0))
        if whole is not None and self._rows[whole] == list(rows):
            return whole
        if rows not in self._of:
            self._need(rows)
            self._of[rows] = self._stack(rows, rows[0].node)
            self._lines.append(Line(_STACK, (rows,), [self._of[rows]], True, rows[0].node))
        return self._of[rows]

    def _stack(self, rows, node):
        whole = Value("primitive", None, None, node, (len(rows), *rows[0].shape), rows[0].dtype)
        self._rows[whole] = list(rows)
        return whole


def _is_row(a, line):
    return isinstance(a, Value) and a.shape == line.outputs[0].shape


def _alike(lines):
    """The lines of one op in groups that can be done together, each after those that it needs."""
    level, groups = {}, {}
    for line in lines:
        out = line.outputs[0]
        depth = 1 + max((level.get(v, 0) for v in values_in(line.args)), default=0)
        level.update(dict.fromkeys(line.outputs, depth))
        small = line.single and out.dtype == ms.float32 and out.shape and math.prod(out.shape) <= SMALL
        rows = [a for a in line.args if _is_row(a, line)]
        rest = [a for a in line.args if not _is_row(a, line)]
        fit = small and rows and line.primitive.name in _POINTWISE
        fit = fit and all(v.dtype == ms.float32 for v in rows) and all(not isinstance(a, Value) or a.shape == () for a in rest)
        places = tuple("row" if _is_row(a, line) else id(a) if isinstance(a, Value) else repr(a) for a in line.args)
        key = (line.primitive.name, out.shape, places) if fit else id(line)
        groups.setdefault((depth, key), []).append(line)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]
