"""Steps of the wide programs: the breadth of torch, written so that well-conditioned inputs give well-conditioned results.

Each entry writes an expression from choices `c` and a live tensor `x`. Arguments are first brought into the function's
domain (`x.abs() + 0.5` under a logarithm), matrices are A A^T plus a diagonal of distinct numbers.
"""

import torch

from . import steps
from .steps import dim, mask, positions

SIZES = ((), (1,), (4,), (5,), (2, 3), (3, 4), (4, 4), (1, 3), (2, 1, 3), (2, 3, 4), (1, 2, 4, 4), (0,), (2, 0))
DTYPES = ("float32",) * 8 + ("float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
HALVES = (torch.float16, torch.bfloat16)


def creation(c):
    size, dtype = c.pick(SIZES), c.pick(DTYPES)
    count = torch.Size(size).numel()
    line = f"torch.arange({count}).mul({c.pick((0.7, 1.3, 2.9))}).sin().mul({c.integer(1, 3)}).reshape({size})"
    line += ".abs()" if dtype == "uint8" else ""
    line += f".to(torch.{dtype})"
    if c.chance(30) and len(size) > 1:
        line += f".transpose({c.integer(0, len(size) - 1)}, -1)"
    grad = ".requires_grad_()" if "float" in dtype and c.chance(70) else ""
    return f"{line}.clone().to(dev){grad}"


# ------------------------------------------------------------------------------------------------- parts of a line


def floating(c, x):
    """x in a floating type."""
    if x.dtype.is_complex:
        return f"torch.view_as_real({x})"
    return str(x) if x.dtype.is_floating_point else f"{x}.to({c.pick(('torch.float32', 'torch.float64'))})"


def real(c, x):
    """x as float32 or float64, with its dtype."""
    if x.dtype.is_complex:
        x.dtype = x.dtype.to_real()
        return f"{x}.real", x.dtype
    if x.dtype in (torch.float32, torch.float64):
        return str(x), x.dtype
    return f"{x}.to(torch.float32)", torch.float32


def matrix(c, x):
    """x as a matrix (or a batch) of numbers within 1, with its dtype and shape."""
    text, dtype = real(c, x)
    size = tuple(x.shape) if x.dim > 1 else (x.shape.numel(), 1)
    return f"{text}.tanh()" + ("" if x.dim > 1 else ".reshape(-1, 1)"), dtype, size


def definite(c, x):
    """A symmetric positive definite matrix whose eigenvalues differ, and how many rows it has."""
    a, dtype, size = matrix(c, x)
    n = size[-2]
    return f"({a} @ {a}.mT + torch.arange(1, {n + 1}, dtype={dtype}, device=dev).diag())", n


def constant(c, dtype, *shape):
    """A tensor of the given shape that is no live one; now and then it depends on one."""
    text = f"torch.arange({torch.Size(shape).numel()}).mul({c.pick((0.9, 1.7))}).sin().reshape({shape}).to({dtype}).to(dev)"
    y = c.tensor(lambda y: y.dtype is dtype and y.shape.numel() > 0, strict=True) if c.chance(40) else None
    return text if y is None else f"({text} * {y}.flatten()[:1])"


def image(c, x, dims=2):
    """x with a batch and channels before `dims` dimensions, its dtype and shape."""
    text, dtype = real(c, x)
    tail = [1] * dims + list(x.shape)
    size = (1, x.shape.numel() // max(torch.Size(tail[-dims:]).numel(), 1), *tail[-dims:])
    return f"{text}.reshape({size})", dtype, size


def index(c, n, *shape):
    """A literal index tensor of the given shape into n elements."""
    values = [c.integer(0, max(n - 1, 0)) for _ in range(torch.Size(shape).numel())]
    return f"torch.tensor({values}, dtype=torch.int64, device=dev).reshape({tuple(shape)})"


def along(c, x):
    """A dimension of x, its size, and an index tensor that fits x but for that dimension."""
    d = c.integer(0, max(x.dim - 1, 0))
    n = x.shape[d] if x.dim else 1
    k = c.integer(0, n)
    shape = [k if i == d else m for i, m in enumerate(x.shape)]
    return d, index(c, n, *shape), shape


def size_at(x, d):
    return x.shape[d] if x.dim else 1


def distinct(c, x):
    """A tensor without equal elements, x if it is one; where the order of equals is open."""
    return c.tensor(lambda y: not y.dtype.is_complex and y.distinct and y.shape.numel(), strict=True)


# ----------------------------------------------------------------------------------------------------------- linalg


def solve(c, x):
    a, n = definite(c, x)
    b, dtype, _ = matrix(c, x)
    return c.pick(
        (
            lambda: f"torch.linalg.solve({a}, {b})",
            lambda: f"torch.linalg.solve({a}, {constant(c, dtype, n, 2)})",
            lambda: f"torch.linalg.solve({a}, {b}.mT, left=False)",
            lambda: f"torch.linalg.solve_triangular({a}.triu(), {b}, upper=True)",
            lambda: f"torch.linalg.solve_triangular({a}.tril(), {b}.mT, upper=False, left=False)",
            lambda: f"torch.linalg.solve_triangular({a}.tril(), {constant(c, dtype, n, 1)}, upper=False)",
            lambda: f"torch.cholesky_solve({b}, torch.linalg.cholesky({a}))",
            lambda: f"torch.linalg.lstsq({a}, {b}).solution",
            lambda: f"torch.linalg.lu_solve(*torch.linalg.lu_factor({a}), {b})",
        )
    )()


def of_definite(form):
    return lambda c, x: form.replace("A", definite(c, x)[0])


def product(c, x):
    a, dtype, size = matrix(c, x)
    m, n = size[-2:]
    y = constant(c, dtype, n, c.integer(1, 3))
    v, w = constant(c, dtype, n), constant(c, dtype, m, n)
    flat = f"{a}.reshape(-1, {m}, {n})" if 0 not in size else f"torch.ones(2, {m}, {n}, dtype={dtype}, device=dev)"
    return c.pick(
        (
            f"{a} @ {y}",
            f"{a} @ {v}",
            f"{v} @ {a}.mT",
            f"{a} @ {a}.mT",
            f"{a}.mT @ {a}",
            f"torch.addmm({v}, {w}, {constant(c, dtype, n, n)}, beta=0.5)",
            f"torch.addmv({v}, {w}.t(), {constant(c, dtype, m)})",
            f"torch.baddbmm({constant(c, dtype, n)}, {flat}.mT, {flat})",
            f"torch.bmm({flat}, {flat}.mT)",
            f"torch.einsum('bij,bkj->bik', {flat}, {flat})",
            f"torch.einsum('bij,j->bi', {flat}, {v})",
            f"torch.einsum('bij,bij->j', {flat}, {flat})",
            f"torch.einsum('...ij->...ji', {a})",
            f"torch.einsum('...ij,kj->k...', {a}, {w})",
            f"torch.tensordot({a}, {w}, dims=([-1], [1]))",
            f"torch.kron({w}, {v})",
            f"torch.outer({v}, {v})",
            f"torch.dot({v}, {v}.flip(0))",
            f"torch.nn.functional.linear({a}, {w}, {constant(c, dtype, m)}).clone()",  # the CPU adds the bias in place, or not
            f"torch.nn.functional.bilinear({w}, {w}, {constant(c, dtype, 2, n, n)})",
            f"torch.linalg.multi_dot([{w}, {w}.t(), {w}])",
            f"torch.linalg.vecdot({a}, {v})",
            f"torch.addr({w}, {constant(c, dtype, m)}, {v})",
        )
    )


def norm(c, x):
    x = c.tensor(lambda y: y.distinct and y.dtype in (torch.float32, torch.float64))
    text, _ = real(c, x)
    order, d = c.pick((0, 1, 2, 3, "float('inf')", "-float('inf')")), dim(c, x)
    return c.pick(
        (
            f"torch.linalg.vector_norm({text}, {order}, {d}, keepdim={c.chance(50)})",
            f"torch.linalg.vector_norm({text}, {order})",
            f"{text}.norm()",
            f"{text}.norm(1, {d})",
            f"torch.linalg.matrix_norm({definite(c, x)[0]}, {c.pick((1, 2, -2, repr('fro'), repr('nuc')))})",
            f"torch.nn.functional.normalize({text}, dim={d}, eps=0.1)",
            f"torch.renorm({text}, 2, {d}, 0.5)",
        )
    )


LINALG = {
    "solve": solve,
    "inv": of_definite("torch.linalg.inv(A)"),
    "cholesky": of_definite("torch.linalg.cholesky(A)"),
    "cholesky upper": of_definite("torch.linalg.cholesky(A, upper=True)"),
    "cholesky_inverse": of_definite("torch.cholesky_inverse(torch.linalg.cholesky(A))"),
    "det": of_definite("(A / 4).det()"),
    "slogdet": of_definite("torch.linalg.slogdet(A)[1]"),
    "logdet": of_definite("A.logdet()"),
    "q": of_definite("torch.linalg.qr(A)[0]"),
    "r": of_definite("torch.linalg.qr(A)[1]"),
    "svdvals": of_definite("torch.linalg.svdvals(A)"),
    "eigvalsh": of_definite("torch.linalg.eigvalsh(A)"),
    "eigenvectors": of_definite("torch.linalg.eigh(A)[1].square()"),
    "singular vectors": of_definite("torch.linalg.svd(A)[2].square()"),
    "pinv": of_definite("torch.linalg.pinv(A)"),
    "lu": of_definite("torch.linalg.lu(A)[2]"),
    "matrix_power": lambda c, x: f"torch.linalg.matrix_power({definite(c, x)[0]} / 4, {c.integer(-1, 3)})",
    "matrix_exp": of_definite("torch.linalg.matrix_exp(A / 4)"),
    "tril": lambda c, x: f"{matrix(c, x)[0]}.{c.pick(('tril', 'triu'))}({c.integer(-1, 1)})",
    "trace": of_definite("A.diagonal(dim1=-2, dim2=-1).sum(-1)"),
    "norm": norm,
    "product": product,
    "product 2": product,
}

# -------------------------------------------------------------------------------------------------------------- fft


def fft(c, x):
    x = c.tensor(lambda y: y.shape.numel() and y.dim)
    norm = c.pick(("", ", norm='ortho'", ", norm='forward'"))
    d = f"{', n=' + str(c.integer(1, 5)) if c.chance(30) else ''}, dim={dim(c, x)}"
    text = str(x) if x.dtype.is_complex else real(c, x)[0]
    kinds = {"fft": d, "ifft": d, "fft2": "", "fftn": "", "ifftn": "", "hfft": d, "irfft": d, "irfftn": ""}
    if not x.dtype.is_complex:
        kinds |= {"rfft": d, "rfft2": "", "rfftn": "", "ihfft": d}
    kind = c.pick(list(kinds))
    return f"torch.fft.{kind}({text}{kinds[kind]}{norm})"


def pair(c, x):
    x = c.tensor(lambda y: y.shape.numel() and y.dim)
    text, d = real(c, x)[0], dim(c, x)
    n = size_at(x, d)
    filtered = f"torch.fft.rfft({text}, dim={d})" + c.pick(("", ".conj().resolve_conj()", " * 2j", " * (0.5 - 1j)"))
    return c.pick(
        (
            f"torch.fft.irfft({filtered}, n={n}, dim={d})",
            f"torch.fft.ifft(torch.fft.fft({text}, dim={d}) * (1 + 1j), dim={d}).imag",
            f"torch.fft.irfftn(torch.fft.rfftn({text}), s={tuple(x.shape)})",
            f"torch.view_as_real({filtered})",
            f"({filtered}).abs() ** 2",
        )
    )


def spectrogram(c, x):
    n = max(x.shape.numel(), 1)
    text = f"{real(c, x)[0]}.reshape(-1)"
    if n < 3 or not x.shape.numel():
        return f"torch.fft.fftshift({text})"
    return f"torch.stft({text}, 4, hop_length={c.integer(1, 2)}, window=torch.ones(4).to(dev), return_complex=True)"


def complex_part(c, x):
    z = c.tensor(lambda y: y.dtype.is_complex, strict=True)
    if z is None:
        text = real(c, x)[0]
        return c.pick((f"torch.complex({text}, {text} * 2)", f"torch.polar({text}.abs() + 1, {text})", f"{text} * 1j"))
    return c.pick(
        (
            f"torch.view_as_real({z})",
            f"{z}.real",
            f"{z}.imag",
            f"{z}.abs() ** 2",
            f"{z} * {z}.conj()",
            f"{z}.conj().resolve_conj()",
            f"{z} / (2 + {z}.abs() ** 2)",
            f"{z}.exp()",
            f"{z} @ {z}.mT" if z.dim > 1 else f"{z}.sum()",
            f"torch.view_as_complex(torch.view_as_real({z}) * 2)",
            f"{z}.cumsum({dim(c, z)})",
            f"{z}.sum({dim(c, z)})",
            f"{z}.mean()",
            f"torch.fft.fftshift({z})",
        )
    )


FFT = {"fft": fft, "pair": pair, "pair 2": pair, "stft": spectrogram, "complex": complex_part, "complex 2": complex_part}

# ------------------------------------------------------------------------------------------------ pointwise, special

DOMAINS = {
    "{x}": "erf erfc special.erfcx special.i0e special.i1e special.i0 special.i1 special.ndtr special.log_ndtr sinc expm1 exp2 "
    "sinh cosh asinh atan floor ceil trunc frac round sign sgn square positive deg2rad nn.functional.softplus "
    "nn.functional.gelu nn.functional.silu nn.functional.mish nn.functional.elu nn.functional.selu nn.functional.celu "
    "nn.functional.hardswish nn.functional.hardsigmoid nn.functional.hardtanh nn.functional.leaky_relu "
    "nn.functional.logsigmoid nn.functional.softsign nn.functional.tanhshrink nn.functional.softshrink "
    "nn.functional.hardshrink nn.functional.relu6 nan_to_num sigmoid",
    "{x}.abs() + 0.5": "digamma lgamma log log1p log2 log10 sqrt rsqrt reciprocal special.entr acosh_of",
    "{x}.sigmoid() * 0.8 + 0.1": "special.ndtri logit asin acos erfinv atanh tan",
}
UNARY = [(name, domain) for domain, names in DOMAINS.items() for name in names.split() if name != "acosh_of"]


def unary(c, x):
    name, domain = c.pick(UNARY)
    return f"torch.{name}({domain.format(x=floating(c, x))})"


def double_only(c, x):
    """Functions without half types, or of numbers that must not be near each other."""
    text, dtype = real(c, x)
    positive, other = f"({text}.abs() + 0.5)", constant(c, dtype, *x.shape)
    return c.pick(
        (
            f"torch.polygamma({c.integer(1, 3)}, {positive})",
            f"torch.acosh({text}.abs() + 1.5)",
            f"torch.special.bessel_j0({text})",
            f"torch.special.bessel_j1({text})",
            f"torch.special.zeta({positive} + 2, {positive})",
            f"torch.special.gammainc({positive}.detach(), {other}.abs() + 0.3)",
            f"torch.special.gammaincc({positive}.detach(), {other}.abs() + 0.3)",
            f"torch.mvlgamma({positive} + 2, 2)",
            f"torch.special.xlog1py({text}, {other}.abs())",
            f"torch.special.modified_bessel_k0({positive}.detach())",
            f"torch.special.chebyshev_polynomial_t({text}.tanh().detach(), 3)",
        )
    )


def binary(c, x):
    x = c.tensor(lambda y: y.dtype.is_floating_point)
    text = floating(c, x)
    y = c.tensor(lambda y: not y.dtype.is_complex and y.shape == x.shape)
    positive = f"({text}.abs() + 0.5)"
    return c.pick(
        (
            f"torch.atan2({text}, {y}.abs() + 0.5)",
            f"torch.hypot({positive}, {text})",
            f"torch.logaddexp({text}, {text} * 2)",
            f"torch.logaddexp2({text}, {text}.sin())",
            f"torch.xlogy({text}, {positive})",
            f"torch.xlogy({y}, {positive})",
            f"torch.copysign({text}, {y})",
            f"torch.fmax({text}, {y})",
            f"torch.minimum({text}, {y})",
            f"torch.maximum({text}, {y})",
            f"torch.fmod({text}, {c.pick((0.75, -0.5, 2))})",
            f"torch.remainder({text}, {c.pick((0.75, -0.5, 2))})",
            f"torch.floor_divide({text}, {c.pick((0.75, -0.5, 2))})",
            f"{positive} ** {c.pick((0.5, 1.5, -1, 3))}",
            f"{positive} ** {y}.to(torch.float32)",
            f"2 ** {text}",
            f"torch.float_power({positive}, {y})",
            f"{y} / {positive}",
            f"torch.true_divide({text}, {c.pick((3, 7, 0.3))})",
            f"torch.lerp({text}, {positive}, {c.pick((0.3, text))})",
            f"torch.addcdiv({text}, {text}, {positive}, value=0.5)",
            f"torch.addcmul({text}, {text}, {positive}, value=0.5)",
            f"torch.heaviside({text}, {positive}.detach())",
            f"torch.ldexp({text}, torch.tensor(2, device=dev))",
            f"torch.nextafter({text}.detach(), {positive}.detach())",
            f"torch.sub({text}, {y}, alpha=2)",
            f"torch.rsub({text}, {y})",
            f"torch.clamp({text}, {text} - 1, {positive})",
            f"torch.nn.functional.prelu({text}, torch.tensor([0.25], dtype={x.dtype}, device=dev))"
            if x.dtype.is_floating_point
            else f"torch.clamp({text}, max=0.5)",
        )
    )


def integers(c, x):
    whole = (torch.int64, torch.int32, torch.uint8)
    x = c.tensor(lambda y: y.dtype in whole)
    x = str(x) if x.dtype in whole else f"{x}.{'real.' if x.dtype.is_complex else ''}to(torch.int64)"
    n = c.integer(1, 3)
    return c.pick(
        (
            f"{x} & {n}",
            f"{x} | {n}",
            f"{x} ^ {n}",
            f"~{x}",
            f"{x} << {n}",
            f"{x} >> {n}",
            f"torch.gcd({x}, torch.tensor({n * 6}, device=dev))",
            f"torch.lcm({x} % 7, torch.tensor({n}, device=dev))",
            f"{x} // {n}",
            f"{x} % {n}",
            f"torch.fmod({x}, {n})",
            f"{x} / {n}",
            f"torch.div({x}, {n}, rounding_mode='trunc')",
            f"{x} ** {n % 3}",
            f"torch.bincount({x}.flatten().clamp(0, 9))",
            f"torch.nn.functional.one_hot({x}.to(torch.int64).clamp(0, 4), 5)",
            f"{x}.cumprod(0)" if n == 1 else f"{x}.prod()",
            f"{x}.bool().logical_not()",
        )
    )


def predicates(c, x):
    x = c.tensor(lambda y: not y.dtype.is_complex)
    y, n = c.tensor(lambda y: not y.dtype.is_complex and y.shape == x.shape), steps.number(c)
    return c.pick(
        (
            f"{x} > {n}",
            f"{x} == {y}",
            f"{x} != {y}",
            f"{x} <= {y}",
            f"torch.logical_and({x}, {y})",
            f"torch.logical_xor({x}, {y})",
            f"{x}.isfinite()",
            f"{x}.isnan()",
            f"{x}.signbit()",
            f"torch.isin({x}, torch.tensor([0, 1, 2], dtype={x.dtype}, device=dev))",
            f"{x}.any({dim(c, x)})",
            f"{x}.all({dim(c, x)})",
            f"{x}.count_nonzero()",
        )
    )


def cast(c, x):
    to = c.pick(("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64"))
    if x.dtype.is_complex:
        return f"{x}.real.to(torch.{to.replace('uint8', 'int32')})"
    safe = f"{x}.abs().clamp(max=200)" if to == "uint8" and x.dtype is not torch.bool else x
    return f"{safe}.to(torch.{to}, copy=True)"


POINTWISE = {
    "unary": unary,
    "unary 2": unary,
    "unary 3": unary,
    "double": double_only,
    "binary": binary,
    "binary 2": binary,
    "integers": integers,
    "predicates": predicates,
    "cast": cast,
    "cast 2": cast,
}

# --------------------------------------------------------------------------------------------------------- indexing


def gather(c, x):
    d, i, shape = along(c, x)
    return c.pick(
        (
            f"{x}.gather({d}, {i})",
            f"torch.take_along_dim({x}, {i}, {d})",
            f"{x}.take({index(c, x.shape.numel(), c.integer(0, 4))})" if x.shape.numel() else f"{x}.clone()",
            f"{x}.index_select({d}, {index(c, size_at(x, d), 3)})" if size_at(x, d) else f"{x}.clone()",
        )
    )


def scatter(c, x):
    d, i, shape = along(c, x)
    again = f"{x}.gather({d}, {i})"
    reduce = c.pick(("sum", "prod", "mean", "amax", "amin"))
    if reduce == "prod" or x.dtype is torch.bool:
        reduce = "sum" if not x.distinct else reduce
    return c.pick(
        (
            f"{x}.scatter({d}, {i}, {c.integer(0, 2)})",
            f"{x}.scatter_add({d}, {i}, {again})",
            f"{x}.scatter_reduce({d}, {i}, {again}, '{reduce}', include_self={c.chance(50)})",
            f"torch.zeros_like({x}).scatter_add({d}, {i}, {again})",
        )
    )


def index_rows(c, x):
    d = c.integer(0, max(x.dim - 1, 0))
    n = size_at(x, d)
    if not n:
        return f"{x}.clone()"
    i, unique = index(c, n, 2), positions(c, n, unique=True)
    rows = f"{x}.index_select({d}, {i})"
    reduce = c.pick(("mean", "amax", "amin"))
    if not x.dim:
        return f"{x}.reshape(1)[{i.replace('1', '0')}]"
    lead = ":, " * d
    return c.pick(
        (
            f"{x}.index_add({d}, {i}, {rows}, alpha=2)",
            f"{x}.index_reduce({d}, {i}, {rows}, '{reduce}', include_self={c.chance(50)})",
            f"{x}.index_copy({d}, {unique}, {x}.index_select({d}, {unique}) * 2)",
            f"{x}.index_fill({d}, {i}, {c.integer(0, 2)})",
            f"{x}.index_put(({index(c, x.shape[0], 2)},), {x}[:1], accumulate=True)" if x.shape[0] else f"{x}.clone()",
            f"{x}[{lead}{i}] * 2",
            f"{x}.roll({c.integer(-2, 2)}, {d})",
            f"{x}.repeat_interleave({c.integer(1, 3)}, {d})",
            f"{x}.select_scatter({x}.select({d}, 0) * 2, {d}, -1)",
            f"{x}.slice_scatter({x}.narrow({d}, 0, 1) * 2, {d}, {n - 1})",
            f"torch.diff({x}, dim={d})" if x.dtype is not torch.bool else f"{x}.tile(2)",
        )
    )


def sorting(c, x):
    y = distinct(c, x)
    if y is None:
        return f"{x}.clone()"
    d, part = dim(c, y), c.integer(0, 1)
    n, down = size_at(y, d), c.chance(50)
    k = c.integer(1, n)
    flat = f"{y}.detach().flatten().sort()[0]"
    return c.pick(
        (
            f"{y}.sort({d}, descending={down})[{part}]",
            f"{y}.argsort({d})",
            f"{y}.topk({k}, {d}, largest={down})[{part}]",
            f"{y}.kthvalue({k}, {d})[{part}]",
            f"{y}.msort()",
            f"{y}.median({d})[{part}]",
            f"{y}.median()",
            f"{y}.max({d})[{part}]",
            f"{y}.min({d})[{part}]",
            f"{y}.argmax({d})",
            f"{y}.argmin()",
            f"torch.aminmax({y}, dim=0)[{part}]",
            f"{y}.cummax({d})[{part}]",
            f"{y}.cummin({d})[{part}]",
            f"torch.searchsorted({flat}, {y}.detach() + 0.1, right={down})",
            f"torch.bucketize({y}, {flat})",
            f"{y}.unique(return_inverse=True, return_counts=True)[{c.integer(0, 2)}]",
            f"{y}.mode({d})[0]",
            f"torch.histc({y}.detach(), 4, -2, 2)",
        )
    )


def ties(c, x):
    """Where equal elements leave nothing open."""
    x = c.tensor(lambda y: not y.dtype.is_complex)
    d, whole = dim(c, x), f"{x}.detach().round().to(torch.int64)"
    return c.pick(
        (
            f"{x}.sort(dim={d}, stable=True, descending={c.chance(50)})[{c.integer(0, 1)}]",
            f"{whole}.unique(return_counts=True)[{c.integer(0, 1)}]",
            f"{whole}.unique_consecutive(return_inverse=True)[{c.integer(0, 1)}]",
            f"{whole}.unique(dim=0)" if x.dim and x.shape.numel() else f"{whole}.unique()",
            f"{x}.nonzero()",
            f"{x}.amax({d})",
            f"{x}.amin({d}, keepdim=True)",
            f"{whole}.argmax({d})",
            f"{whole}.sort({d})[0]",
            f"{whole}.mode({d})[0]",
            f"{x}.cummax({d})[0]",
        )
    )


def masked(c, x):
    m, y = mask(c, x), floating(c, x)
    full = f"({x}.{'real' if x.dtype.is_complex else 'detach()'} > 0)"
    return c.pick(
        (
            f"{x}[{m}]",
            f"{x}.masked_select({full})",
            f"{x}.masked_fill({full}, {c.integer(0, 2)})",
            f"{x}.masked_scatter({full}, {x}.flatten().repeat(2))",
            f"torch.where({full}, {x}, {c.pick((0, 1, str(x)))})",
            f"torch.where({full}, {x}, {x} * 2)",
            f"torch.where({full}, {c.integer(0, 2)}, {x})",
            f"{y}.clamp(-0.5, 0.75)",
            f"{y}.clamp_min(0)",
            f"torch.nn.functional.threshold({y}, 0.1, -1)",
        )
    )


def layout(c, x):
    d = dim(c, x)
    return c.pick(
        (
            f"{x}.repeat({[c.integer(1, 2) for _ in range(max(x.dim, 1))]})",
            f"{x}.rot90()" if x.dim > 1 else f"{x}.tile(2)",
            f"torch.diag_embed({x})" if x.dim else f"{x}.clone()",
            f"torch.block_diag({x}, {x})" if x.dim < 3 else f"{x}.flip(0, 1)",
            f"torch.cartesian_prod({x}, {x})" if x.dim == 1 else f"{x}.fliplr()" if x.dim > 1 else f"{x}.clone()",
            f"torch.meshgrid({x}, {x}, indexing='ij')[1]" if x.dim < 2 else f"{x}.swapaxes(0, 1).clone()",
            f"torch.hstack([{x}, {x}])",
            f"torch.column_stack([{x}, {x}])" if x.dim < 3 else f"torch.dstack([{x}, {x}])",
            f"torch.vstack([{x}, {x}])",
            f"{x}.cumsum({d})",
            f"{x}.cumsum({d}, dtype=torch.float64)",
            f"torch.trapezoid({x}, dim={d})" if x.dim else f"{x}.clone()",
            f"{x}.new_full((2, 2), 3)",
            f"torch.full_like({x}, 2)",
        )
    )


INDEXING = {
    "gather": gather,
    "scatter": scatter,
    "rows": index_rows,
    "sorting": sorting,
    "sorting 2": sorting,
    "ties": ties,
    "masked": masked,
    "layout": layout,
}

# ------------------------------------------------------------------------------------------------------- reductions


def reduction(c, x):
    x = c.tensor(lambda y: y.dtype.is_floating_point and y.distinct)
    d, keep = dim(c, x), f"keepdim={c.chance(50)}"
    text, (only, _) = floating(c, x), real(c, x)
    return c.pick(
        (
            f"{text}.var({d}, {keep})",
            f"{text}.var(correction=0)",
            f"{text}.std({d}, correction={c.integer(0, 1)})" if x.distinct and not x.tangled else f"{text}.var()",
            f"torch.var_mean({text}, {d})[{c.integer(0, 1)}]",
            f"{text}.logsumexp({d}, {keep})",
            f"{text}.logcumsumexp({d})",
            f"{text}.mean()",
            f"{text}.mean({d}, {keep})",
            f"{text}.prod({d}, {keep})",
            f"{text}.prod()",
            f"{text}.cumprod({d})",
            f"{text}.sum(dtype=torch.float64)",
            f"{text}.nansum({d})",
            f"{text}.nanmean({d})",
            f"{only}.quantile({c.pick((0.0, 0.3, 0.5, 1.0))}, {d}, {keep})",
            f"{only}.quantile(torch.tensor([0.2, 0.6], dtype=torch.float32, device=dev).to({only}.dtype), {d})",
            f"{only}.nanmedian()",
            f"{only}.nanquantile(0.4)",
            f"torch.softmax({text}, {d})",
            f"torch.log_softmax({text}, {d})",
            f"torch.nn.functional.softmin({text}, {d})",
            f"torch.softmax({text}, {d}, dtype=torch.float64)",
            f"torch.cov({matrix(c, x)[0]}.reshape({max(x.shape[0], 1) if x.dim else 1}, -1))",
        )
    )


REDUCTIONS = {"reduction": reduction}

# ---------------------------------------------------------------------------------------------------------- networks


def convolution(c, x):
    dims = c.pick((1, 2, 2, 2, 3))
    a, dtype, (_, channels, *size) = image(c, x, dims)
    kernel = [c.integer(1, min(max(n, 1), 3)) for n in size]
    room = all(2 * k - 1 <= n for k, n in zip(kernel, size))
    groups = channels if c.chance(25) and channels else 1
    out = groups * c.integer(1, 2)
    options = f"stride={c.integer(1, 2)}, padding={c.integer(0, 1)}, dilation={c.integer(1, 1 + room)}, groups={groups}"
    bias = constant(c, dtype, out) if c.chance(50) else "None"
    if c.chance(30):
        w = constant(c, dtype, channels, out // groups, *kernel)
        return f"torch.nn.functional.conv_transpose{dims}d({a}, {w}, {bias}, {options})"
    return f"torch.nn.functional.conv{dims}d({a}, {constant(c, dtype, out, channels // groups, *kernel)}, {bias}, {options})"


def pooling(c, x):
    dims = c.pick((1, 2, 2, 3))
    a, dtype, size = image(c, x, dims)
    k, out = c.integer(1, 3), [c.integer(1, 3) for _ in range(dims)]
    f, stride, pad = f"torch.nn.functional.{{}}_pool{dims}d({a}", c.integer(1, 2), c.integer(0, k // 2)
    return c.pick(
        (
            f"{f.format('max')}, {k}, {stride}, {pad}, ceil_mode={c.chance(30)}).clone()",  # a view in 1d, or none
            f"{f.format('avg')}, {k}, {stride}, {pad}, ceil_mode={c.chance(30)}, count_include_pad={c.chance(50)})",
            f"{f.format('adaptive_avg')}, {out})",
            f"{f.format('adaptive_max')}, {out})",
            f"torch.nn.functional.lp_pool{dims}d({a}.abs() + 0.5, 2, {k})" if dims < 3 else f"{f.format('avg')}, {k})",
        )
    )


def resampling(c, x):
    dims = c.pick((1, 2, 2, 2, 3))
    a, dtype, size = image(c, x, dims)
    mode = c.pick(("nearest", "nearest-exact", "area", {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]))
    mode = "bicubic" if dims == 2 and c.chance(20) else mode
    corners = f", align_corners={c.chance(50)}" if "linear" in mode or mode == "bicubic" else ""
    to = c.pick((f"size={[c.integer(1, 5) for _ in range(dims)]}", f"scale_factor={c.pick((2, 1.5, 0.5))}"))
    pads = [c.integer(0, 2) for _ in range(2 * dims)]
    grid = constant(c, dtype, 1, 2, 3, 2)
    padding, sampling = c.pick(("zeros", "border", "reflection")), c.pick(("bilinear", "nearest", "bicubic"))
    sampled = f"{image(c, x)[0]}, {grid} * 0.77, '{sampling}', '{padding}', {c.chance(50)}"
    return c.pick(
        (
            f"torch.nn.functional.interpolate({a}, mode='{mode}', {to}{corners})",
            f"torch.nn.functional.interpolate({a}, mode='{mode}', {to}{corners})",
            f"torch.nn.functional.pad({a}, {pads}, mode='{c.pick(('constant', 'reflect', 'replicate', 'circular'))}')",
            f"torch.nn.functional.pad({a}, {[n - 1 for n in pads]}, value=1.5)",
            f"torch.nn.functional.grid_sample({sampled})",
            f"torch.nn.functional.affine_grid({constant(c, dtype, 1, 2, 3)}, (1, 1, 2, 3), align_corners={c.chance(50)})",
            f"torch.nn.functional.unfold({image(c, x)[0]}, 2, padding=1)",
            f"torch.nn.functional.pixel_unshuffle({image(c, x)[0]}.repeat(1, 1, 2, 2), 2)" if 0 not in x.shape else f"{x} * 2",
        )
    )


def normalisation(c, x):
    text, dtype = real(c, x)
    a, _, (_, channels, *_) = image(c, x)
    n = x.shape[-1] if x.dim else 1
    weight, bias = (constant(c, dtype, n) for _ in "wb") if c.chance(60) else ("None", "None")
    each = f"{constant(c, dtype, channels)}, {constant(c, dtype, channels)}" if c.chance(60) else "None, None"
    text = text if x.dim else f"{text}.reshape(1)"
    nn = "torch.nn.functional"
    return c.pick(
        (
            f"{nn}.layer_norm({text}, [{n}], {weight}, {bias}, 0.1)",
            f"{nn}.rms_norm({text}, [{n}], {weight}, 0.1)",
            f"{nn}.group_norm({a}, {channels or 1}, {each}, 0.1)",
            f"{nn}.batch_norm({a}, None, None, {each}, True, 0.1, 0.1)",
            f"{nn}.batch_norm({a}, torch.zeros({channels}, dtype={dtype}, device=dev), "
            f"torch.ones({channels}, dtype={dtype}, device=dev), {each}, {c.chance(50)})",
            f"{nn}.instance_norm({a}, None, None, {each}, eps=0.1)",
            f"{nn}.local_response_norm({a}, 2)",
            f"{nn}.cosine_similarity({text}, {constant(c, dtype, n)} + 2, dim=-1, eps=0.1)",
            f"{nn}.glu({text}.repeat_interleave(2, -1), -1)",
        )
    )


def embedding(c, x):
    a, dtype, size = matrix(c, x)
    rows, width = size[-2:]
    table = f"{a}.reshape(-1, {width})" if width else f"torch.eye(3, dtype={dtype}, device=dev)"
    rows = torch.Size(size[:-1]).numel() if width else 3
    if not rows:
        return f"{x}.clone()"
    extra = f", padding_idx={c.integer(0, rows - 1)}" if c.chance(30) else ""
    bags = f"{index(c, rows, 4)}, {table}, torch.tensor([0, 2], device=dev), mode='{c.pick(('sum', 'mean', 'max'))}'"
    return c.pick(
        (
            f"torch.nn.functional.embedding({index(c, rows, 2, 2)}, {table}{extra})",
            f"torch.nn.functional.embedding({index(c, rows, 3)}, {table}{extra})",
            f"torch.nn.functional.embedding_bag({bags})",
        )
    )


def loss(c, x):
    a, dtype, size = matrix(c, x)
    m, n = size[-2:]
    if not (m and n):
        return f"{x}.sum()"
    flat = f"{a}.reshape(-1, {n})"
    rows = torch.Size(size[:-1]).numel()
    y, classes = constant(c, dtype, rows, n), index(c, n, rows)
    reduction = f"reduction='{c.pick(('mean', 'sum', 'none'))}'"
    f = "torch.nn.functional."
    return f + c.pick(
        (
            f"mse_loss({flat}, {y}, {reduction})",
            f"l1_loss({flat}, {y}, {reduction})",
            f"smooth_l1_loss({flat}, {y}, {reduction}, beta=0.5)",
            f"huber_loss({flat}, {y}, {reduction}, delta=0.5)",
            f"cross_entropy({flat}, {classes}, {reduction})",
            f"cross_entropy({flat}, {y}.softmax(-1), {reduction}, label_smoothing=0.1)",
            f"cross_entropy({flat}, {classes}, weight={constant(c, dtype, n)}.abs() + 0.5, {reduction})",
            f"nll_loss({flat}.log_softmax(-1), {classes}, {reduction})",
            f"binary_cross_entropy_with_logits({flat}, {y}.sigmoid(), {reduction})",
            f"binary_cross_entropy({flat}.sigmoid(), {y}.sigmoid().detach(), {reduction})",
            f"kl_div({flat}.log_softmax(-1), {y}.softmax(-1), {reduction})",
            f"gaussian_nll_loss({flat}, {y}, {y}.abs() + 0.5, {reduction})",
            f"poisson_nll_loss({flat}, {y}.abs(), {reduction})",
            f"soft_margin_loss({flat}, {y}.sign().detach(), {reduction})",
            f"triplet_margin_loss({flat}, {y}, {y} + 1, {reduction})",
            f"multi_margin_loss({flat}, {classes}, {reduction})",
            f"scaled_dot_product_attention({flat}, {y}, {y} * 2)",
        )
    )


def distances(c, x):
    a, dtype, size = matrix(c, x)
    n = size[-1]
    return c.pick(
        (
            f"torch.cdist({a}, {constant(c, dtype, 2, n)} + 3, p={c.pick((1.0, 2.0, 3.0))})",
            f"torch.nn.functional.pairwise_distance({a}, {constant(c, dtype, n)} + 3)",
            f"torch.cdist({a} + 2, {constant(c, dtype, 3, n)})",
        )
    )


NETWORKS = {
    "convolution": convolution,
    "convolution 2": convolution,
    "pooling": pooling,
    "resampling": resampling,
    "resampling 2": resampling,
    "normalisation": normalisation,
    "embedding": embedding,
    "loss": loss,
    "distances": distances,
}

# ------------------------------------------------------------------------------------------------------------- out=


def out(c, x):
    """A write through out= of a function of x, into an empty tensor or, where it has the shape, into one that exists."""
    text, dtype = real(c, x)
    text, d = f"{text}.detach()", dim(c, x)
    same = c.tensor(lambda z: z.shape == x.shape and z.dtype is dtype and z.storage != x.storage and not z.tangled, strict=True)
    if c.chance(60):
        call = c.pick(
            (
                f"sin({text}",
                f"special.erf({text}",
                f"digamma({text}.abs() + 0.5",
                f"softmax({text}, {d}",
                f"cumsum({text}, {d}",
                f"clamp({text}, -1, 1",
                f"where({text} > 0, {text}, 2 * {text}",
                f"exp({text}",
                f"maximum({text}, -{text}",
                f"cumprod({text}, {d}",
                f"addcmul({text}, {text}, {text}",
                f"roll({text}, 1, {d}".replace("roll", "nan_to_num").split(",")[0],
                f"gather({text}, {d}, torch.zeros_like({text}, dtype=torch.int64)" if x.shape.numel() else f"neg({text}",
            )
        )
    else:
        same, a, b = None, definite(c, x)[0], matrix(c, x)[0]
        call = c.pick(
            (
                f"linalg.inv({a}.detach()",
                f"linalg.cholesky({a}.detach()",
                f"linalg.solve({a}.detach(), {b}.detach()",
                f"matmul({b}.detach(), {b}.detach().mT",
                f"sum({text}, {d}",
                f"mean({text}, {d}",
                f"var({text}, {d}",
                f"cat([{text}, {text}], {d}" if x.dim else f"exp({text}",
                f"linalg.det({a}.detach()",
                f"logsumexp({text}, {d}",
            )
        )
    z = f"torch.empty(0, dtype={dtype}, device=dev)" if same is None or c.chance(20) else same
    # How often a batched matmul counts its write depends on what else is going on.
    return f"torch.{call}, out={z})" + (".clone()" if "matmul" in call else "")


OUT = {"out": out}

FAMILIES = {
    "linalg": LINALG,
    "fft": FFT,
    "pointwise": POINTWISE,
    "indexing": INDEXING,
    "reductions": REDUCTIONS,
    "networks": NETWORKS,
    "out": OUT,
}


def anything(c, x):
    table = c.pick(list(FAMILIES.values()))
    return c.pick(list(table.values()))(c, x)


# --------------------------------------------------------------------------------------------------------- in place


def scatter_(c, x):
    d, i, _ = along(c, x)
    again = f"{x}.detach().clone().gather({d}, {i})"
    return c.pick(
        (
            f"{x}.scatter_({d}, {i}, {c.integer(0, 2)})",
            f"{x}.scatter_add_({d}, {i}, {again})",
            f"{x}.scatter_reduce_({d}, {i}, {again}, '{c.pick(('sum', 'mean', 'amax', 'amin'))}')",
        )
    )


def rows_(c, x):
    d = c.integer(0, max(x.dim - 1, 0))
    n = size_at(x, d)
    unique = positions(c, n, unique=True)
    rows = f"{x}.detach().clone().index_select({d}, {unique})"
    first = positions(c, size_at(x, 0), unique=True)
    return c.pick(
        (
            f"{x}.index_copy_({d}, {unique}, {rows})",
            f"{x}.index_fill_({d}, {unique}, {c.integer(0, 2)})",
            f"{x}.index_add_({d}, {unique}, {rows})",
            f"{x}.index_reduce_({d}, {unique}, {rows}, 'amax')",
            f"{x}.index_put_(({first},), {x}.detach().clone()[:1], accumulate=True)" if x.dim and n else f"{x}.zero_()",
        )
    )


def pointwise_(c, x):
    names = "exp2 erf sigmoid sin cos tanh floor ceil round trunc frac abs square sgn sinc i0 nan_to_num asinh neg relu"
    return f"{x}.{c.pick(names.split())}_()"


INPLACE = {
    "pointwise_": pointwise_,
    "pointwise_ 2": pointwise_,
    "scatter_": scatter_,
    "rows_": rows_,
    "masked_scatter_": lambda c, x: f"{x}.masked_scatter_({x}.detach() != 0, {x}.detach().clone().flatten().flip(0))",
    "lerp_": lambda c, x: f"{x}.lerp_({x}.detach().clone() * 2, 0.25)",
    "div_": lambda c, x: f"{x}.div_({c.pick((3, 0.7))})",
    "pow_": lambda c, x: f"{x}.pow_(2)",
    "remainder_": lambda c, x: f"{x}.remainder_({c.pick((0.75, 2))})",
    "tril_": lambda c, x: f"{x}.{c.pick(('tril_', 'triu_'))}({c.integer(-1, 1)})",
    "cumsum_": lambda c, x: f"{x}.cumsum_({dim(c, x)})",
    "fill_diagonal_": lambda c, x: f"{x}.fill_diagonal_(0.5)",
    "copy_ cast": lambda c, x: (
        f"{x}.copy_({c.tensor(lambda y: y.shape == x.shape and y.storage != x.storage)}.detach().clone())"
    ),
    "addmm_": lambda c, x: f"{x}.addmm_({x}.detach().tanh(), torch.eye({size_at(x, -1)}, dtype={x.dtype}, device=dev))",
    "addcdiv_": lambda c, x: f"{x}.addcdiv_({x}.detach().sin(), {x}.detach().abs() + 1)",
    "clamp_": lambda c, x: f"{x}.clamp_(min=-0.5)",
    "silu_": lambda c, x: f"torch.nn.functional.{c.pick(('silu', 'elu', 'leaky_relu', 'hardtanh'))}({x}, inplace=True)",
    "through diagonal": lambda c, x: f"{x}.diagonal().mul_(0.5)",
    "through real": lambda c, x: (
        f"torch.view_as_real({x}).mul_(0.5)" if x.dtype.is_complex else f"{x}.unfold(0, 1, 2).mul_(0.5)"
    ),
}

# --------------------------------------------------------------------------------------------------------- autograd


def differentiable(c):
    return c.tensor(lambda y: (y.history or y.leaf) and y.dtype in (torch.float32, torch.float64))


def twice(c, x):
    """The gradient of a function's squares, differentiated again. Its strides are open: the CPU adds lazy zeros apart."""
    y = differentiable(c)
    table = c.pick((LINALG, POINTWISE, REDUCTIONS, NETWORKS, FFT, INDEXING))
    with c.only(y):
        f = c.pick(list(table.values()))(c, y)
    total = f"({f}).abs().square().sum()"
    gradient = f"torch.autograd.grad({total}, {y}, create_graph=True)[0]"
    return f"torch.autograd.grad({gradient}.square().sum(), {y})[0].contiguous().clone()"


def once(c, x):
    y = differentiable(c)
    return f"torch.autograd.grad({y}.abs().square().sum(), {y}, retain_graph=True)[0].clone()"


GRADIENTS = {"twice": twice, "twice 2": twice, "once": once}
