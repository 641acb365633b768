"""One program for all batch sizes, from the texts of two that were recorded with different ones.

The texts are compared line by line. A whole number that differs is taken for a linear function of the batch size n, and
written so. Whatever else differs means that the module does something else for another batch size: CannotCapture.
"""

import re

import numpy as np

from ..backend.storage import ms
from ..backend.tracing import CannotCapture

_INTEGER = re.compile(r"(?<![\w.\-])-?\d+(?![\w.])")
_OPS = "mindspore.ops.auto_generate.gen_ops_prim"
_INLINE = f"{_OPS}.BroadcastTo("  # what can be made anew in a graph, for each n
_LONGEST = 2**31 - 1


def merged(programs, sizes):
    """(text, constants) of a function `step` that does what both programs do, which have batches of the two sizes."""
    first, second = (program.source().splitlines() for program in programs)
    lines, inline = [], {}
    for a, b in zip(first, second):
        a, b = a.split("  # ")[0], b.split("  # ")[0]
        both = _line(a, b, sizes)
        if both is None:
            raise _differ(_parting(first, second))
        if a != b and not a.startswith("    "):  # a primitive whose attributes differ
            name, _, text = both.partition(" = ")
            if not text.startswith(_INLINE):
                raise _differ(_op(first, f"{name}("))
            inline[name] = text
            continue
        lines.append(both)
    if len(first) != len(second):
        raise _differ(_parting(first, second))
    body = "\n".join(lines)
    for name, text in inline.items():
        body = re.sub(rf"\b{name}\(", lambda _, text=text: f"{text}(", body)
    head, constants = _constants(programs, sizes)
    head = [_size(programs, sizes), *head] if head or re.search(r"\bn\b", body.split("def step")[1]) else []
    before, signature, after = re.split(r"(def step\(.*\):\n)", body)
    imports = "import mindspore.ops.auto_generate.gen_ops_prim\n" if head else ""
    return before.replace("\n", "\n" + imports, 1) + signature + "".join(f"    {x}\n" for x in head) + after + "\n", constants


def _line(a, b, sizes):
    if a == b:
        return a
    if _INTEGER.sub("0", a) != _INTEGER.sub("0", b):
        return None
    numbers = [_linear(int(x), int(y), sizes) for x, y in zip(_INTEGER.findall(a), _INTEGER.findall(b))]
    if None in numbers:
        return None
    following = iter(numbers)
    return _INTEGER.sub(lambda _: next(following), a)


def _linear(x, y, sizes):
    """The text of the function of n that is x and y for the two sizes."""
    if x == y:
        return str(x)
    slope, rest = divmod(y - x, sizes[1] - sizes[0])
    start = x - slope * sizes[0]
    if rest:
        return None
    text = "n" if slope == 1 else f"n * {slope}"
    return text if not start else f"({text} + {start})" if start > 0 else f"({text} - {-start})"


def _size(programs, sizes):
    """The line that finds n: from the first input that has a dimension of that size."""
    for factor in (1, None):
        for i, (v, w) in enumerate(zip(programs[0].inputs, programs[1].inputs)):
            for d, (a, b) in enumerate(zip(v.shape, w.shape)):
                times = a // sizes[0]
                if a != b and (a, b) == tuple(n * times for n in sizes) and factor in (times, None):
                    return f"n = x{i}.shape[{d}]" + (f" // {times}" if times > 1 else "")
    raise CannotCapture("dynamic_batch: no value has the batch as a dimension")


def _constants(programs, sizes):
    """Lines that make constants whose shape has n, and the constants, by name."""
    lines, constants = [], {}
    if len(programs[0].constants) != len(programs[1].constants):
        raise _differ("a constant")
    for i, (v, w) in enumerate(zip(programs[0].constants, programs[1].constants)):
        a, b = np.asarray(v.origin), np.asarray(w.origin)
        at = f"aten::{v.node.name}  {v.node.where}" if v.node else "a constant"
        if v.shape == w.shape and a.tobytes() == b.tobytes():
            constants[f"c{i}"] = v.tensor
            continue
        shape = _line(repr(v.shape), repr(w.shape), sizes)
        if v.shape == w.shape or shape is None:
            raise _differ(at)
        if len(np.unique(a)) == 1 and np.array_equal(np.unique(a), np.unique(b), equal_nan=a.dtype.kind in "fc"):
            constants[f"u{i}"] = ms.Tensor.from_numpy(np.array(v.tensor.asnumpy().reshape(-1)[:1]))
            lines.append(f"c{i} = {_INLINE}{shape})(u{i})")
            continue
        step = _step(a, b)
        constants[f"u{i}"] = ms.Tensor.from_numpy(np.array(v.tensor.asnumpy()[:1])) if step is not None else None
        if step == 0:
            lines.append(f"c{i} = {_INLINE}{shape})(u{i})")
        elif step is not None:
            rows = _linear(len(a), len(b), sizes)
            counted = f"{_OPS}.Range({_LONGEST})(0, ({rows}) * {step}, {step})"
            counted = f"{_OPS}.Reshape()({counted}, ({rows}, {', '.join('1' * (a.ndim - 1))}))"
            lines.append(f"c{i} = {_OPS}.Add()({counted}, u{i})")
        else:
            raise _differ(at)
    return lines, constants


def _step(a, b):
    """The number by which each row of a and b is larger than the one before, as in the offsets of samples; else None."""
    if a.ndim == 0 or a.shape[1:] != b.shape[1:] or not np.array_equal(a, b[: len(a)]):
        return None
    steps = np.unique(b[1:] ^ b[:-1] if b.dtype == bool else b[1:] - b[:-1])
    if len(steps) != 1 or not (steps[0] == 0 or (steps[0] > 0 and b.dtype == np.int64)):
        return None
    return int(steps[0])


def _parting(first, second):
    """The op at which the two programs part."""
    bodies = [lines[next(i for i, line in enumerate(lines) if line.startswith("def step")) + 1 :] for lines in (first, second)]
    for a, b in zip(*bodies):
        if _INTEGER.sub("0", a.split("  # ")[0]) != _INTEGER.sub("0", b.split("  # ")[0]):
            return _op(bodies[0], a)
    return _op(bodies[0], bodies[0][-1])


def _op(lines, text):
    """The op for which there is a line with `text`."""
    at = "the module"
    for line in lines:
        if line.startswith("    #"):
            at = "aten::" + line.strip(" #")
        if line.startswith("    ") and text in line:
            break
    return at


def _differ(at):
    return CannotCapture(
        f"dynamic_batch: expected a module that does the same for every batch size, but for sizes of tensors; {at} differs. "
        "Without dynamic_batch, a cell takes batches of the example's size."
    )
