"""Runs programs line by line on both devices and compares every live tensor after each line.

A program is of one of three modes. "exact": integers, equal bit for bit. "smooth": smooth functions, close throughout.
"wide": the breadth of torch, each line within torch.testing's tolerances or about as near to float64 as the CPU is. For that
the program also runs in float64, and after each line the device and the float64 run adopt the CPU's values, so that each
line starts from the same bits: errors do not add up, and what is not continuous (a sort, a cast to int) stays comparable.
"""

import contextlib
import functools
import re
import warnings

import torch

from tests.conformance import compare

from . import steps, wide

DEVICE = "mindspore"
LIVE = 7  # tensors at a time
EXACT_LIMIT = 2**22  # integers up to here are exact in float32, sums of some of them too
SMOOTH_LIMIT = 1e4
MODES = ("smooth", "wide", "wide", "exact")


class Mismatch(AssertionError):
    """The device and the CPU disagree. The message is the program, as a script."""


class Var(str):
    """The name of a tensor, with what a step may want to know of it."""

    def __new__(cls, name, t):
        x = super().__new__(cls, name)
        x.shape, x.dim, x.dtype, x.offset = t.shape, t.dim(), t.dtype, t.storage_offset()
        x.storage = t.untyped_storage()._cdata
        leaf = _read(lambda t: t.is_leaf, t)
        x.leaf, x.history = t.requires_grad and leaf is True, t.requires_grad and leaf is False
        x.contiguous = t.is_contiguous()
        x.tangled = _tangled(t)
        x.elements = t.untyped_storage().nbytes() // t.element_size()
        x.tensor = t.detach() if x.leaf is not x.history or not t.requires_grad else None
        return x

    @functools.cached_property
    def distinct(self):
        """Whether no two elements are equal, or nearly."""
        if self.tensor is None or self.dtype.is_complex:
            return False
        values = self.tensor.to(torch.float64).flatten().sort()[0]
        return bool((values.diff() > 1e-3).all())


def _tangled(t):
    """Whether elements of t share memory in a way that PyTorch does not look for before it writes."""
    if t.numel() < 2 or any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride())):
        return False
    addresses = torch.zeros((), dtype=torch.int64)
    for n, s in zip(t.shape, t.stride()):
        addresses = addresses.unsqueeze(-1) + torch.arange(n) * s
    return len(addresses.unique()) < t.numel()


class Choices:
    """What a step chooses from. `integer(low, high)` decides everything, so that a failing program can shrink."""

    def __init__(self, integer, exact):
        self.integer, self.exact = integer, exact
        self.live = []

    def pick(self, options):
        return options[self.integer(0, len(options) - 1)]

    @contextlib.contextmanager
    def only(self, x):
        """Within it x is the only live tensor."""
        live, self.live = self.live, [x]
        yield
        self.live = live

    def chance(self, percent):
        return self.integer(0, 99) >= 100 - percent

    def tensor(self, wanted=lambda x: True, strict=False):
        """A live tensor, one that is `wanted` if there is any and, mostly, chance agrees."""
        found = [x for x in self.live if wanted(x)]
        if strict and not found:
            return None
        return self.pick(found if found and (strict or not self.chance(10)) else self.live)


class Machine:
    """One program and its two runs."""

    def __init__(self, integer):
        self.mode = MODES[integer(0, len(MODES) - 1)]
        self.exact, self.wide = self.mode == "exact", self.mode == "wide"
        self.choices = Choices(integer, self.exact)
        self.creation, self.kinds = (wide.creation, WIDE_KINDS) if self.wide else (steps.creation, steps.KINDS)
        self.sides = [{"torch": torch, "dev": torch.device(d)} for d in ("cpu", DEVICE)]
        self.float64 = {"torch": torch, "dev": torch.device("cpu")}
        self.lines = []
        self.names = []
        self.scale = 1.0
        self.going = True
        self.made = 0

    def run(self, length):
        for _ in range(2):
            self._new(self.creation(self.choices))
        for _ in range(length):
            if not self._step():
                return

    def _step(self):
        """Write and run one more line; False when the numbers have grown too large to go on."""
        c = self.choices
        c.live = [Var(name, self.sides[0][name]) for name in self.names]
        kinds = [kind for kind, (weight, _, _) in self.kinds.items() for _ in range(weight // 5)]
        _, table, makes = self.kinds[c.pick(kinds)]
        if makes and c.chance(5):
            self._new(self.creation(c))
        else:
            no_grad = c.chance(10 if makes else 25)
            target = self._target(table, no_grad)
            if target is None:
                return True
            line = c.pick(list(table.values()))(c, target)
            self._new(line, no_grad) if makes else self._execute(line, no_grad)
        if len(self.names) > LIVE:
            self._execute(f"del {self.names.pop(c.integer(0, LIVE - 1))}")
        if self.wide and makes and self.scale >= SMOOTH_LIMIT:  # the others are as they were
            self._execute(f"del {self.names.pop()}")
            self.scale = 1.0
        return self.going and self.scale < (EXACT_LIMIT if self.exact else SMOOTH_LIMIT)

    def _target(self, table, no_grad):
        """What a step works on. A leaf that requires a gradient is seldom written to where that is forbidden."""
        c = self.choices
        if table not in (steps.INPLACE, wide.INPLACE):
            return c.tensor()
        daring = no_grad or c.chance(15)
        return c.tensor(lambda x: not x.tangled and (daring or not x.leaf), strict=True)

    def _new(self, expression, no_grad=False):
        name = f"t{self.made}"
        self.made += 1
        if self._execute(f"{name} = {expression}", no_grad) is None:
            self.names.append(name)

    def _execute(self, line, no_grad=False):
        """Run a line on both sides and compare; returns the exception that both raised."""
        line = f"with torch.no_grad(): {line}" if no_grad else line
        self.lines.append(line)
        errors = [_attempt(line, side) for side in self.sides]
        kinds = [type(e).__name__ if e else "no error" for e in errors]
        if self.wide:
            _attempt(_in_float64(line), self.float64)
        if "not implemented for" in str(errors[0]):
            self.going = False  # a dtype that the CPU has no kernel for; the device may have one
            return errors[0]
        if kinds[0] != kinds[1]:
            self._fail(f"{kinds[1]} ({errors[1]}), expected {kinds[0]} ({errors[0]})")
        if errors[0] is not None:
            self.lines[-1] += f"  # raises {kinds[0]}"
        self._compare([*self.names, f"t{self.made - 1}"] if errors[0] is None else self.names)
        return errors[0]

    def _compare(self, names):
        cpu, device = self.sides
        storages = [{}, {}]
        for name in names:
            if name not in cpu or not isinstance(cpu[name], torch.Tensor):
                continue
            float64 = self._in_float64(name, cpu[name]) if self.wide else None
            self._compare_tensors(name, cpu[name], device[name], float64)
            if _read(FACTS["is_leaf"], cpu[name]) is True:
                float64 = float64.grad if float64 is not None and float64.is_leaf else None
                self._compare_grads(f"{name}.grad", cpu[name].grad, device[name].grad, float64)
            first = [s.setdefault(side[name].untyped_storage()._cdata, name) for s, side in zip(storages, self.sides)]
            if first[0] != first[1]:
                self._fail(f"{name} shares its memory with {first[1]}, expected with {first[0]}")

    def _in_float64(self, name, expected):
        """The tensor in the float64 run; a copy of the CPU's where that run went another way (shapes that follow values)."""
        x = self.float64.get(name)
        if not isinstance(x, torch.Tensor) or x.shape != expected.shape or _double(expected.dtype) is not x.dtype:
            x = self.float64[name] = expected.detach().to(_double(expected.dtype), copy=True)
        shared = [side[name].untyped_storage()._cdata for side in (self.sides[0], self.float64)]
        for other in self.names:
            if other != name and other in self.float64:
                there = [side[other].untyped_storage()._cdata for side in (self.sides[0], self.float64)]
                if there[1] == shared[1] and there[0] != shared[0]:  # a cast to what float64 already is
                    x = self.float64[name] = x.clone()
                    break
        return x

    def _compare_grads(self, name, expected, actual, float64=None):
        if (expected is None) != (actual is None):
            self._fail(f"{name}: {actual}, expected {expected}")
        if expected is not None:
            self._compare_tensors(name, expected, actual, float64)

    def _compare_tensors(self, name, expected, actual, float64=None):
        if actual.device.type != DEVICE:
            self._fail(f"{name}: on {actual.device}")
        for what, fact in FACTS.items():
            if what == "_version" and name.endswith(".grad"):
                continue  # autograd sums gradients in place or not, as it finds them
            wanted, found = _read(fact, expected), _read(fact, actual)
            if wanted != found:
                self._fail(f"{name}: {what} {found}, expected {wanted}")
        e, a = expected.detach(), actual.detach().cpu()
        if self.wide:
            self._compare_values(name, e, a, float64)
            for x in (actual, float64):
                if x is not None:
                    _adopt(x, expected)
            if name.endswith(".grad"):
                return
        if e.numel() and e.dtype is not torch.bool:
            self.scale = max(self.scale, float(e.abs().nan_to_num(torch.inf).max()))
        if self.wide or self.scale >= (EXACT_LIMIT if self.exact else SMOOTH_LIMIT):
            return
        tolerance = 0 if self.exact else 1e-5 * self.scale
        if not torch.allclose(a, e, rtol=0, atol=tolerance, equal_nan=True):
            self._fail(f"{name}: {a.tolist()}, expected {e.tolist()}")

    def _compare_values(self, name, expected, actual, float64):
        exact = None if float64 is None else float64.detach()
        text = compare.difference(expected, actual, compare.Rules(device=None), exact)
        if text:
            exact = "" if exact is None else f", in float64 {exact.tolist()}"
            self._fail(f"{name}: {text}: {actual.tolist()}, expected {expected.tolist()}{exact}")

    def _fail(self, text):
        header = "import torch, msadapter; dev = torch.device('mindspore')"
        raise Mismatch("\n".join(["the device and the CPU disagree after the last line:", header, *self.lines, f"# {text}"]))


WIDE_KINDS = {
    "view": (20, steps.VIEWS, True),
    "inplace": (10, steps.INPLACE, False),
    "wide inplace": (10, wide.INPLACE, False),
    "arithmetic": (10, steps.ARITHMETIC, True),
    **{family: (10, table, True) for family, table in wide.FAMILIES.items()},
    "autograd": (10, steps.AUTOGRAD, False),
    "gradients": (10, wide.GRADIENTS, True),
}

FACTS = {
    "dtype": lambda x: x.dtype,
    "shape": lambda x: tuple(x.shape),
    "stride": lambda x: _significant(x),
    "storage_offset": lambda x: x.storage_offset(),
    "requires_grad": lambda x: x.requires_grad,
    "is_leaf": lambda x: x.is_leaf,
    "_version": lambda x: x._version,
    "_is_view": lambda x: x._is_view(),
    "shape of _base": lambda x: None if x._base is None else tuple(x._base.shape),
}


def _significant(x):
    """x's strides without those that address nothing: of dimensions of size 1, and of empty tensors."""
    return tuple(s if n > 1 else "any" for n, s in zip(x.shape, x.stride())) if x.numel() else "any"


def _read(fact, x):
    """The fact, or the exception that asking for it raises (a view whose base was changed in a forbidden way)."""
    try:
        return fact(x)
    except RuntimeError as error:
        return type(error).__name__


def _attempt(line, side):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(line, side)
    except Exception as error:
        return error
    return None


def _in_float64(line):
    line = re.sub(r"torch\.(float|bfloat)(16|32)\b", "torch.float64", line)
    return line.replace("torch.complex64", "torch.complex128")


def _double(dtype):
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


def _adopt(x, source):
    """Give x's whole memory the values of source's, unseen by autograd."""
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(x):
        to, values = _memory(x), _memory(source)
        n = min(len(to), len(values))
        if not torch.equal(to[:n].cpu(), values[:n].to(to.dtype)):
            to[:n].copy_(values[:n])


def _memory(x):
    return x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
