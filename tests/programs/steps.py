"""The table of steps: each writes one line of Python from choices `c` and what the tensors look like at the moment."""

import torch

SIZES = ((), (1,), (3,), (4,), (2, 3), (3, 4), (4, 4), (1, 3), (2, 1, 3), (2, 3, 4), (0,), (2, 0))


# ------------------------------------------------------------------------------------------------- parts of a line


def creation(c):
    size = c.pick(SIZES)
    count = torch.Size(size).numel()
    dtype = c.pick(("float32", "float32", "int64")) if c.exact else "float32"
    line = f"(torch.arange({count}, dtype=torch.{dtype}) - {c.integer(0, 4)}).reshape({size})"
    if not c.exact:
        line = f"({line} / 7)"
    if c.chance(30) and len(size) > 1:
        line += f".transpose({c.integer(0, len(size) - 1)}, -1)"
    grad = ".requires_grad_()" if dtype == "float32" and c.chance(50) else ""
    return f"{line}.clone().to(dev){grad}"


def dim(c, x):
    return c.integer(-max(x.dim, 1), max(x.dim, 1) - 1)


def number(c):
    return c.pick((0, 1, 2, -1, 3)) if c.exact else c.pick((0.5, 1.0, -0.75, 2.0))


def _index_part(c, n):
    kind = c.pick(("all", "slice", "step", "int", "none"))
    if kind == "int" and n:
        return str(c.integer(-n, n - 1))
    if kind == "slice":
        return f"{c.integer(-n, n) or ''}:{c.integer(0, n)}"
    if kind == "step":
        return f"{c.integer(0, 1)}::{c.integer(1, 3)}"
    return "None" if kind == "none" else ":"


def basic_index(c, x):
    parts = [_index_part(c, n) for n in x.shape[: c.integer(0, x.dim)]]
    if c.chance(20):
        parts.insert(c.integer(0, len(parts)), "...")
    return ", ".join(parts) or "..."


def mask(c, x):
    """A literal mask of x's first dimensions."""
    shape = x.shape[: c.integer(min(x.dim, 1), x.dim)]
    bits = [c.chance(50) for _ in range(shape.numel())]
    return f"torch.tensor({bits}, dtype=torch.bool).reshape({tuple(shape)}).to(dev)"


def positions(c, n, unique):
    """A literal index tensor for a dimension of n elements."""
    if unique:
        chosen = [i for i in range(n) if c.chance(60)]
    else:
        chosen = [c.integer(-n, n - 1) for _ in range(c.integer(0, 4))] if n else []
    return f"torch.tensor({chosen}, dtype=torch.int64, device=dev)"


def operand(c, x):
    """Another tensor, mostly one that broadcasts to x, or a number."""
    if c.chance(30):
        return number(c)
    return c.tensor(lambda y: _broadcasts(y.shape, x.shape))


def source(c, x):
    """An operand for writing to x. What overlaps x otherwise than PyTorch can see has no defined result."""
    if c.chance(30):
        return number(c)

    def defined(y):
        return y == x or y.storage != x.storage or (x.contiguous and y.contiguous)

    return c.tensor(lambda y: _broadcasts(y.shape, x.shape) and defined(y), strict=True) or number(c)


def stranger(c, x):
    """A source that shares no memory with x."""
    return c.tensor(lambda y: _broadcasts(y.shape, x.shape) and y.storage != x.storage, strict=True) or number(c)


def _broadcasts(small, large):
    return len(small) <= len(large) and all(a in (1, b) for a, b in zip(small[::-1], large[::-1]))


# --------------------------------------------------------------------------------------------------------- views


def view(c, x):
    n = x.shape.numel()
    sizes = [s for s in ((n,), (1, n), (-1, 2), (2, -1), (n, 1), (2, 2, -1), (-1,)) if n or -1 not in s]
    return f"{x}.{c.pick(('view', 'reshape'))}({c.pick(sizes)})"


def expand(c, x):
    size = [c.integer(1, 3) if n == 1 else c.pick((n, -1)) for n in x.shape]
    lead = [c.integer(1, 2)] if c.chance(40) else []
    return f"{x}.expand({lead + size})"


def diagonal(c, x):
    return f"{x}.diagonal({c.integer(-1, 1)}, {dim(c, x)}, {dim(c, x)})"


def unfold(c, x):
    return f"{x}.unfold({dim(c, x)}, {c.integer(1, 2)}, {c.integer(1, 2)})"


def as_strided(c, x):
    """A geometry within x's memory; overlapping now and then."""
    size, stride, room = [], [], max(x.elements - x.offset - 1, 0)
    for _ in range(c.integer(0, 2)):
        size.append(c.integer(1, 3))
        stride.append(c.integer(0, 3))
        room -= (size[-1] - 1) * stride[-1]
        if room < 0:
            size[-1] = 1
            room = max(room, 0)
    offset = c.integer(0, min(x.offset, 2)) if c.chance(50) else None
    return f"{x}.as_strided({size}, {stride}" + (f", {offset})" if offset is not None else ")")


def permute(c, x):
    order = list(range(x.dim))
    for i in range(x.dim - 1):
        j = c.integer(i, x.dim - 1)
        order[i], order[j] = order[j], order[i]
    return f"{x}.permute({order})"


def narrow(c, x):
    d = dim(c, x)
    n = x.shape[d] if x.dim else 0
    start = c.integer(0, n)
    return f"{x}.narrow({d}, {start}, {c.integer(0, n - start)})"


def select(c, x):
    d = dim(c, x)
    n = x.shape[d] if x.dim else 0
    return f"{x}.select({d}, {c.integer(-n, max(n - 1, 0))})"


VIEWS = {
    "index": lambda c, x: f"{x}[{basic_index(c, x)}]",
    "transpose": lambda c, x: f"{x}.transpose({dim(c, x)}, {dim(c, x)})",
    "permute": permute,
    "movedim": lambda c, x: f"{x}.movedim({dim(c, x)}, {dim(c, x)})",
    "t": lambda c, x: f"{x}.t()",
    "mT": lambda c, x: f"{x}.mT",
    "view": view,
    "expand": expand,
    "select": select,
    "narrow": narrow,
    "diagonal": diagonal,
    "unfold": unfold,
    "as_strided": as_strided,
    "squeeze": lambda c, x: f"{x}.squeeze({c.pick(('', dim(c, x)))})",
    "unsqueeze": lambda c, x: f"{x}.unsqueeze({c.integer(0, x.dim)})",
    "chunk": lambda c, x: f"{x}.chunk({c.integer(1, 3)}, {dim(c, x)})[0]",
    "split": lambda c, x: f"{x}.split({c.integer(1, 2)}, {dim(c, x)})[-1]",
    "unbind": lambda c, x: f"{x}.unbind({dim(c, x)})[0]",
    "flatten": lambda c, x: f"{x}.flatten()",
    "detach": lambda c, x: f"{x}.detach()",
    "data": lambda c, x: f"{x}.data",
    "view_as": lambda c, x: f"{x}.view_as({x})",
    "contiguous": lambda c, x: f"{x}.contiguous()",
}


# ------------------------------------------------------------------------------------------------------- in place


def assign(c, x):
    kind = c.pick(("basic", "mask", "positions", "both"))
    if kind == "mask":
        return f"{x}[{mask(c, x)}] = {number(c)}"
    if kind in ("positions", "both") and x.dim:
        d = x.dim - 1 if kind == "both" else 0
        rest = x.shape[d + 1 :]
        y = c.tensor(lambda y: _broadcasts(y.shape, rest) and y.storage != x.storage, strict=True)
        lead = ":, " * d if kind == "both" else ""
        return f"{x}[{lead}{positions(c, x.shape[d], unique=True)}] = {number(c) if y is None or c.chance(40) else y}"
    return f"{x}[{basic_index(c, x)}] = {stranger(c, x) if c.chance(50) else number(c)}"


def index_add_(c, x):
    d = c.integer(0, max(x.dim - 1, 0))
    n = x.shape[d] if x.dim else 1
    return f"{x}.index_add_({d}, torch.arange({n}, device=dev).flip(0), {x}.detach().clone())"


INPLACE = {
    "add_": lambda c, x: f"{x}.add_({source(c, x)}, alpha={c.integer(1, 2)})",
    "sub_": lambda c, x: f"{x}.sub_({source(c, x)})",
    "mul_": lambda c, x: f"{x}.mul_({source(c, x)})",
    "fill_": lambda c, x: f"{x}.fill_({number(c)})",
    "copy_": lambda c, x: f"{x}.copy_({y})" if isinstance(y := stranger(c, x), str) else f"{x}.fill_({y})",
    "zero_": lambda c, x: f"{x}.zero_()",
    "clamp_": lambda c, x: f"{x}.clamp_({c.integer(-2, 0)}, {c.integer(1, 3)})",
    "neg_": lambda c, x: f"{x}.neg_()",
    "relu_": lambda c, x: f"{x}.relu_()" if c.exact else f"{x}.tanh_()",
    "masked_fill_": lambda c, x: f"{x}.masked_fill_({mask(c, x)}, {number(c)})",
    "assign": assign,
    "index_add_": index_add_,
    "iadd": lambda c, x: f"{x} += {source(c, x)}",
    "imul": lambda c, x: f"{x} *= {source(c, x)}",
    "addcmul_": lambda c, x: f"{x}.addcmul_({x}.detach().clone(), {x})",
    "resize_": lambda c, x: f"{x}.resize_({[n - (n > 1 and x.contiguous and c.chance(30)) for n in x.shape]})",
    "set_": lambda c, x: f"{x}.set_({c.tensor(lambda y: y.dtype == x.dtype)}.detach())",
    "as_strided_": lambda c, x: as_strided(c, x).replace("as_strided", "as_strided_"),
    "t_": lambda c, x: f"{x}.t_()",
    "transpose_": lambda c, x: f"{x}.transpose_({dim(c, x)}, {dim(c, x)})",
    "squeeze_": lambda c, x: f"{x}.squeeze_()",
    "unsqueeze_": lambda c, x: f"{x}.unsqueeze_({c.integer(0, x.dim)})",
    "set data": lambda c, x: f"{x}.data = {c.tensor(lambda y: y.dtype == x.dtype)}.detach()",
    "foreach": lambda c, x: f"torch._foreach_add_([{x}, {c.tensor(lambda y: not y.tangled)}], {number(c)})",
}


# ----------------------------------------------------------------------------------------------------- arithmetic


def matmul(c, x):
    def fits(y):
        return x.dim and y.dim and y.dtype == x.dtype and x.shape[-1] == y.shape[max(y.dim - 2, 0)]

    return f"{x} @ {c.tensor(fits)}"


def out(c, x):
    """A write through out=, into an empty tensor or one that exists."""
    z = c.tensor(lambda z: z.shape == x.shape and z.storage != x.storage and not z.tangled, strict=True)
    if z is None or c.chance(30):
        z = f"torch.empty(0, dtype={x.dtype}, device=dev)"
        return f"torch.{c.pick(('add', 'mul'))}({x}, {operand(c, x)}, out={z})"
    return f"torch.{c.pick(('add', 'mul'))}({x}, {stranger(c, z)}, out={z})"


def cat(c, x):
    y = c.tensor(lambda y: y.shape == x.shape)
    return f"torch.{c.pick(('cat', 'stack'))}([{x}, {y}], {dim(c, x)})"


def take(c, x):
    if c.chance(30) and x.dim:
        d = c.integer(0, x.dim - 1)
        return f"{x}.index_select({d}, {positions(c, x.shape[d], unique=True)})"
    if c.chance(50) or not x.dim:
        return f"{x}[{mask(c, x)}]"
    return f"{x}[{positions(c, x.shape[0], unique=False)}]"


ARITHMETIC = {
    "add": lambda c, x: f"{x} + {operand(c, x)}",
    "sub": lambda c, x: f"{x} - {operand(c, x)}",
    "rsub": lambda c, x: f"{number(c)} - {x}",
    "mul": lambda c, x: f"{x} * {operand(c, x)}",
    "neg": lambda c, x: f"-{x}",
    "abs": lambda c, x: f"{x}.abs()" if c.exact else f"{x}.sigmoid()",
    "relu": lambda c, x: f"{x}.relu()" if c.exact else f"{x}.tanh()",
    "square": lambda c, x: f"{x} ** 2",
    "compare": lambda c, x: f"({x} > {number(c)})" if c.exact else f"{x}.sin()",
    "maximum": lambda c, x: f"torch.maximum({x}, {c.tensor(lambda y: y.shape == x.shape)})" if c.exact else f"{x}.exp()",
    "where": lambda c, x: f"torch.where({mask(c, x) if x.dim < 2 else 'torch.tensor(True, device=dev)'}, {x}, {operand(c, x)})",
    "to": lambda c, x: f"{x}.to(torch.{c.pick(('int64', 'float32') if c.exact else ('float64', 'float32'))})",
    "sum": lambda c, x: f"{x}.sum({c.pick(('', dim(c, x)))})",
    "sum keepdim": lambda c, x: f"{x}.sum({dim(c, x)}, keepdim=True)",
    "amax": lambda c, x: f"{x}.amax({dim(c, x)})" if c.exact else f"{x}.mean({dim(c, x)})",
    "cumsum": lambda c, x: f"{x}.cumsum({dim(c, x)})",
    "matmul": matmul,
    "cat": cat,
    "flip": lambda c, x: f"{x}.flip({dim(c, x)})",
    "clone": lambda c, x: f"{x}.clone()",
    "take": take,
    "out": out,
    "like": lambda c, x: f"torch.{c.pick(('zeros_like', 'ones_like'))}({x})",
}


# -------------------------------------------------------------------------------------------------------- autograd


def result(c):
    """A tensor to differentiate: one with a history, if there is any."""
    return c.tensor(lambda y: y.history)


AUTOGRAD = {
    "backward": lambda c, x: f"{result(c)}.sum().backward()",
    "backward retained": lambda c, x: f"{result(c)}.sum().backward(retain_graph=True)",
    "backward of squares": lambda c, x: f"({(y := result(c))} * {y}).sum().backward(retain_graph=True)",
    "backward given": lambda c, x: f"{(y := result(c))}.backward(torch.ones_like({y}), retain_graph=True)",
    "double backward": lambda c, x: (
        f"torch.autograd.grad(({(y := result(c))} ** 3).sum(), {y}, create_graph=True)[0].sum().backward()"
    ),
    "requires_grad_": lambda c, x: f"{x}.requires_grad_()",
    "detach_": lambda c, x: f"{x}.detach_()",
    "zero grad": lambda c, x: f"{x}.grad = None",
}

# kind -> (weight, table, whether the line makes a new tensor)
KINDS = {
    "view": (35, VIEWS, True),
    "inplace": (30, INPLACE, False),
    "arithmetic": (25, ARITHMETIC, True),
    "autograd": (10, AUTOGRAD, False),
}
