"""Runs programs line by line on both devices and compares every live tensor after each line."""

import warnings

import torch

from . import steps

DEVICE = "mindspore"
LIVE = 7  # tensors at a time
EXACT_LIMIT = 2**22  # integers up to here are exact in float32, sums of some of them too
SMOOTH_LIMIT = 1e4


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
        return x


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
        self.exact = integer(0, 2) > 0  # integers only, compared bit for bit; else smooth functions, compared closely
        self.choices = Choices(integer, self.exact)
        self.sides = [{"torch": torch, "dev": torch.device(d)} for d in ("cpu", DEVICE)]
        self.lines = []
        self.names = []
        self.scale = 1.0
        self.made = 0

    def run(self, length):
        for _ in range(2):
            self._new(steps.creation(self.choices))
        for _ in range(length):
            if not self._step():
                return

    def _step(self):
        """Write and run one more line; False when the numbers have grown too large to go on."""
        c = self.choices
        c.live = [Var(name, self.sides[0][name]) for name in self.names]
        kinds = [kind for kind, (weight, _, _) in steps.KINDS.items() for _ in range(weight // 5)]
        _, table, makes = steps.KINDS[c.pick(kinds)]
        if makes and c.chance(5):
            self._new(steps.creation(c))
        else:
            no_grad = c.chance(10 if makes else 25)
            target = self._target(table, no_grad)
            if target is None:
                return True
            line = c.pick(list(table.values()))(c, target)
            self._new(line, no_grad) if makes else self._execute(line, no_grad)
        if len(self.names) > LIVE:
            self._execute(f"del {self.names.pop(c.integer(0, LIVE - 1))}")
        return self.scale < (EXACT_LIMIT if self.exact else SMOOTH_LIMIT)

    def _target(self, table, no_grad):
        """What a step works on. A leaf that requires a gradient is seldom written to where that is forbidden."""
        c = self.choices
        if table is not steps.INPLACE:
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
            self._compare_tensors(name, cpu[name], device[name])
            if _read(FACTS["is_leaf"], cpu[name]) is True:
                self._compare_grads(f"{name}.grad", cpu[name].grad, device[name].grad)
            first = [s.setdefault(side[name].untyped_storage()._cdata, name) for s, side in zip(storages, self.sides)]
            if first[0] != first[1]:
                self._fail(f"{name} shares its memory with {first[1]}, expected with {first[0]}")

    def _compare_grads(self, name, expected, actual):
        if (expected is None) != (actual is None):
            self._fail(f"{name}: {actual}, expected {expected}")
        if expected is not None:
            self._compare_tensors(name, expected, actual)

    def _compare_tensors(self, name, expected, actual):
        if actual.device.type != DEVICE:
            self._fail(f"{name}: on {actual.device}")
        for what, fact in FACTS.items():
            if what == "_version" and name.endswith(".grad"):
                continue  # autograd sums gradients in place or not, as it finds them
            wanted, found = _read(fact, expected), _read(fact, actual)
            if wanted != found:
                self._fail(f"{name}: {what} {found}, expected {wanted}")
        e, a = expected.detach(), actual.detach().cpu()
        if e.numel() and e.dtype is not torch.bool:
            self.scale = max(self.scale, float(e.abs().nan_to_num(torch.inf).max()))
        if self.scale >= (EXACT_LIMIT if self.exact else SMOOTH_LIMIT):
            return
        tolerance = 0 if self.exact else 1e-5 * self.scale
        if not torch.allclose(a, e, rtol=0, atol=tolerance, equal_nan=True):
            self._fail(f"{name}: {a.tolist()}, expected {e.tolist()}")

    def _fail(self, text):
        header = "import torch, msadapter; dev = torch.device('mindspore')"
        raise Mismatch(
            "\n".join(["the device and the CPU disagree after the last line:", header, *self.lines, f"# {text}"])
        )


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
