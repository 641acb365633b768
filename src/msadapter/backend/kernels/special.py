"""Special functions, computed in float64."""

import math

import numpy as np
import torch

from .. import elementary as E
from ..double import Double, both, either, ms, polynomial, where
from ..registry import Decline, kernel
from ..storage import broadcast, cast, constant
from .pointwise import operand, promoted, to_float

P = ms.ops
NAN, INF = math.nan, math.inf
HALF = {torch.float16, torch.bfloat16}

_NDTRI = {
    "p0": (
    -59.96335010141079, 98.00107541859997, -56.67628574690703, 13.931260938727968, -1.2391658386738125,
),
    "q0": (
    1.0, 1.9544885833814176, 4.676279128988815, 86.36024213908905, -225.46268785411937, 200.26021238006066,
    -82.03722561683334, 15.90562251262117, -1.1833162112133,
),
    "p1": (
    4.0554489230596245, 31.525109459989388, 57.16281922464213, 44.08050738932008, 14.684956192885803, 2.1866330685079025,
    -0.1402560791713545, -0.03504246268278482, -0.0008574567851546854,
),
    "q1": (
    1.0, 15.779988325646675, 45.39076351288792, 41.3172038254672, 15.04253856929075, 2.504649462083094,
    -0.14218292285478779, -0.03808064076915783, -0.0009332594808954574,
),
    "p2": (
    3.2377489177694603, 6.915228890689842, 3.9388102529247444, 1.3330346081580755, 0.20148538954917908,
    0.012371663481782003, 0.00030158155350823543, 2.6580697468673755e-06, 6.239745391849833e-09,
),
    "q2": (
    1.0, 6.02427039364742, 3.6798356385616087, 1.3770209948908132, 0.21623699359449663, 0.013420400608854318,
    0.00032801446468212774, 2.8924786474538068e-06, 6.790194080099813e-09,
),
}  # fmt: skip


def special(*names, half=False):
    """Register a function of Doubles of one shape under ATen names. Integers become float; `half`: it has small floats."""

    def register(fn):
        for name in names:
            kernel(name, layout=True)(lambda *xs: in_double(fn, xs, half))
        return fn

    return register


def in_double(fn, xs, half=False):
    """fn over the operands xs, broadcast, in float64; the result in torch's dtype for them."""
    dtype = to_float(promoted(*xs))
    if dtype.is_complex or dtype in HALF and not half:
        raise Decline("a dtype that torch does not have here")
    shape = tuple(torch.broadcast_shapes(*(x.shape for x in xs if isinstance(x, torch.Tensor))))
    if 0 in shape:
        return constant(0, dtype, shape)
    y = fn(*(Double(_widened(x, dtype, shape)) for x in xs)).v
    if dtype is torch.float64:
        return y
    return E.narrow(y, ms.float16) if dtype is torch.float16 else cast(E.narrow(y, ms.float32), dtype)


def _widened(x, dtype, shape):
    v = operand(x, dtype)
    if dtype is not torch.float64:
        v = E.widen(cast(v, torch.float32) if dtype is torch.bfloat16 else v)
    return v if v.shape == shape else broadcast(v, shape)


# ------------------------------------------------------------------------------------------------- the normal law


@special("special_erfcx")
def erfcx(x):
    """exp(x^2) erfc(x); far to the right, its asymptotic series."""
    z = 0.5 / (x * x)
    far = polynomial(z, [math.prod(range(2 * k - 1, 0, -2)) * (-1) ** k for k in range(7, -1, -1)])
    return where(x > 20, far / (math.sqrt(math.pi) * x), (x * x).exp() * x.erfc())


@special("special_log_ndtr")
def log_ndtr(x):
    t = x / math.sqrt(2)
    return where(x < -1, (erfcx(-t) / 2).log() - t * t, (t.erfc() / -2).log1p())


@special("special_ndtri")
def ndtri(p):
    tail = math.exp(-2)
    upper = p > 1 - tail
    y = where(upper, 1 - p, p)
    z = y - 0.5
    middle = z + z * (z * z * _ratio(z * z, "p0", "q0"))
    x = (-2 * y.log()).sqrt()
    w = 1 / x
    end = x - x.log() / x - w * where(x < 8, _ratio(w, "p1", "q1"), _ratio(w, "p2", "q2"))
    y = where(y > tail, math.sqrt(2 * math.pi) * middle, where(upper, end, -end))
    return where(p == 0, -INF, where(p == 1, INF, where(either(p < 0, p > 1), NAN, y)))


def _ratio(z, p, q):
    return polynomial(z, _NDTRI[p]) / polynomial(z, _NDTRI[q])


# ----------------------------------------------------------------------------------- zeta and the derivatives of digamma

_ZETA = P.Zeta()


def zeta(x, q):
    """MindSpore's, with torch's order of what is asked first, and torch's NaN at infinity."""
    y = where(either(both(x == INF, q > 1), q == INF), NAN, Double(_ZETA(x.v, q.v)))
    y = where(both(q <= 0, q == q.floor()), INF, where(both(q <= 0, x != x.floor()), NAN, y))
    return where(x == 1, INF, where(x < 1, NAN, y))


special("special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar")(zeta)


@kernel("polygamma", layout=True)
def polygamma(n, x):
    if n < 0:
        raise Decline("torch has none")
    if n == 0:
        return in_double(lambda v: Double(E.digamma(v.v)), (x,), half=True)
    if n == 1:
        coarse = to_float(x.dtype) is not torch.float64
        return in_double(lambda v: trigamma(v, coarse), (x,), half=True)
    factor = math.factorial(n) * (1 if n % 2 else -1)
    return in_double(lambda v: factor * zeta(0 * v.floor() + (n + 1), v), (x,), half=True)


def trigamma(x, coarse):
    """Six steps of recurrence and a series; below 1/2 by reflection, where torch's float32 rounds pi x to float32."""
    low = x < 0.5
    turn = np.float32(math.pi) * x.host().astype(np.float32) if coarse else None
    turn = x * math.pi if turn is None else Double(ms.Tensor.from_numpy(np.asarray(turn, np.float64)))
    reflected = (math.pi / turn.sin()).square()
    y, result = where(low, 1 - x, x), 0
    for _ in range(6):
        result, y = (1 / (y * y)) + result, y + 1
    w = 1 / (y * y)
    result = result + (1 + 0.5 / y + w * (1 / 6 - w * (1 / 30 - w * (1 / 42)))) / y
    return where(low, reflected - result, result)
