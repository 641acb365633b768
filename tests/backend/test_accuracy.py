"""Errors against float64, measured beside those of torch's CPU kernels in float32.

An elementwise function may be off by BOUND of its value, or by ten times what torch is off. A reduced or normalized
value, and each of its gradients, may be off by ten times what torch is off, both relative to the largest element.
"""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from msadapter.config import set_config
from tests.backend.kernels.util import name

DEVICE = "mindspore"
BOUND = 2.5e-7  # two units in the last place of float32
SIZES = [7, 5000, 200_000]


@pytest.fixture(autouse=True)
def native():
    before = set_config(fallback="error")
    yield
    set_config(**dataclasses.asdict(before))


def uniform(low, high):
    return lambda n: torch.rand(n) * (high - low) + low


def powers(low, high, signs=True):
    """Numbers of all sizes from 10^low to 10^high."""

    def draw(n):
        x = 10 ** uniform(low, high)(n)
        return x * torch.randn(n).sign() if signs else x

    return draw


SMALL, REAL, WIDE = powers(-20, 0), uniform(-8, 8), uniform(-80, 80)
POSITIVE, NEAR_ONE, UNIT = powers(-30, 30, False), uniform(0.99, 1.01), uniform(-1, 1)
FUNCTIONS = {
    "exp": (torch.exp, SMALL, REAL, WIDE),
    "exp2": (torch.exp2, SMALL, REAL, WIDE),
    "expm1": (torch.expm1, SMALL, REAL, WIDE),
    "log": (torch.log, POSITIVE, NEAR_ONE),
    "log2": (torch.log2, POSITIVE, NEAR_ONE),
    "log10": (torch.log10, POSITIVE, NEAR_ONE),
    "log1p": (torch.log1p, powers(-30, -1), POSITIVE, uniform(-0.999, 1)),
    "logit": (torch.logit, powers(-30, -1, False), uniform(0.6, 1)),
    "sqrt": (torch.sqrt, POSITIVE),
    "rsqrt": (torch.rsqrt, POSITIVE),
    "sin": (torch.sin, SMALL, uniform(-3, 3)),
    "cos": (torch.cos, SMALL, uniform(-1.5, 1.5)),
    "tan": (torch.tan, SMALL, uniform(-1.5, 1.5)),
    "asin": (torch.asin, SMALL, UNIT),
    "acos": (torch.acos, UNIT),
    "atan": (torch.atan, SMALL, REAL, POSITIVE),
    "sinh": (torch.sinh, SMALL, REAL, WIDE),
    "cosh": (torch.cosh, SMALL, REAL, WIDE),
    "tanh": (torch.tanh, SMALL, REAL, WIDE),
    "asinh": (torch.asinh, SMALL, REAL, powers(0, 18)),
    "acosh": (torch.acosh, uniform(1.01, 9), powers(1, 18, False)),
    "atanh": (torch.atanh, SMALL, UNIT),
    "sigmoid": (torch.sigmoid, SMALL, REAL, WIDE),
    "erf": (torch.erf, SMALL, REAL),
    "erfc": (torch.erfc, SMALL, uniform(-9, 9)),
    "erfinv": (torch.erfinv, SMALL, UNIT),
    "lgamma": (torch.lgamma, uniform(0.1, 0.9), uniform(3, 90)),
    "digamma": (torch.digamma, uniform(0.1, 1), uniform(2, 90)),
    "sinc": (torch.sinc, SMALL, uniform(-0.9, 0.9)),
    "power": (lambda x: x**2.5, powers(-12, 12, False)),
    "xlogy": (lambda x: torch.xlogy(x, x), POSITIVE, NEAR_ONE),
    "div": (lambda x: x / (x + 3), POSITIVE),
    "softplus": (F.softplus, SMALL, REAL, WIDE),
    "softplus_beta": (lambda x: F.softplus(x, 2, 15), REAL),
    "logsigmoid": (F.logsigmoid, SMALL, REAL, WIDE),
    "silu": (F.silu, SMALL, REAL, WIDE),
    "mish": (F.mish, SMALL, REAL, WIDE),
    "elu": (F.elu, SMALL, REAL, WIDE),
    "celu": (lambda x: F.celu(x, 0.7), SMALL, REAL),
    "selu": (F.selu, SMALL, REAL, WIDE),
    "gelu": (F.gelu, SMALL, uniform(-2, 8)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), SMALL, uniform(-2, 8)),
    "tanhshrink": (F.tanhshrink, uniform(1, 8)),
    "softsign": (F.softsign, SMALL, REAL, WIDE),
}


def relative(x, truth):
    return ((x.cpu().double() - truth).abs() / truth.abs().clamp_min(1.2e-38)).max().item()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise(name, size):
    fn, *ranges = FUNCTIONS[name]
    for seed, draw in enumerate(ranges):
        torch.manual_seed(seed)
        x = draw(size)
        truth = fn(x.double())
        ours, host = relative(fn(x.to(DEVICE)), truth), relative(fn(x), truth)
        assert ours <= max(BOUND, 10 * host), f"range {seed}: {ours:.1e}, on the host {host:.1e}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient(name):
    """Of every element: what may be off is the formula of the gradient, which torch has too."""
    fn, *ranges = FUNCTIONS[name]
    for seed, draw in enumerate(ranges):
        torch.manual_seed(seed)
        x = draw(5000)
        values = []
        for leaf in (x.double(), x.to(DEVICE), x.clone()):
            leaf.requires_grad_()
            values.append(torch.autograd.grad(fn(leaf).sum(), leaf)[0])
        finite = values[0].isfinite() & (values[0].abs() < 1e38) & (values[0].abs() > 1e-37)
        truth, device, host = (v.cpu().double()[finite] for v in values)
        ours, theirs = relative(device, truth), relative(host, truth)
        assert ours <= max(2 * BOUND, 10 * theirs), f"range {seed}: {ours:.1e}, on the host {theirs:.1e}"


def r(*shape):
    return torch.randn(shape)


def labels(x):
    return (torch.arange(x.shape[0]) * 7 % x.shape[1]).to(x.device)


def probabilities(x):
    n = torch.arange(x.numel(), dtype=torch.float64).view(x.shape)
    return ((n * 0.618) % 1).to(x)


def ctc(x):
    frames, counts = torch.full((8,), 20), torch.tensor([4, 3, 2, 1, 4, 0, 2, 3])
    targets = (torch.arange(32).view(8, 4) % 5 + 1).to(x.device)
    return F.ctc_loss(x.log_softmax(2), targets, frames, counts)


SHAPES = [(8, 10), (64, 33), (256, 1000)]
ROWS = {
    "softmax": lambda x: F.softmax(x, 1),
    "softmax_columns": lambda x: F.softmax(x, 0),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "cross_entropy": lambda x: F.cross_entropy(x, labels(x)),
    "cross_entropy_smooth": lambda x: F.cross_entropy(x, labels(x), label_smoothing=0.1),
    "cross_entropy_probabilities": lambda x: F.cross_entropy(x, probabilities(x).softmax(1)),
    "nll_each": lambda x: F.nll_loss(F.log_softmax(x, 1), labels(x), reduction="none"),
    "bce": lambda x: F.binary_cross_entropy(torch.sigmoid(x), probabilities(x), reduction="none"),
    "bce_logits": lambda x: F.binary_cross_entropy_with_logits(x, probabilities(x), reduction="none"),
    "bce_logits_mean": lambda x: F.binary_cross_entropy_with_logits(x, probabilities(x)),
    "bce_weighted": lambda x: F.binary_cross_entropy_with_logits(x, probabilities(x), pos_weight=x.new_tensor(3.0)),
    "kl_div": lambda x: F.kl_div(F.log_softmax(x, 1), probabilities(x).softmax(1), reduction="batchmean"),
    "poisson": lambda x: F.poisson_nll_loss(x, probabilities(x), full=True),
    "gaussian": lambda x: F.gaussian_nll_loss(x, probabilities(x), x.abs() + 0.1, reduction="none"),
    "soft_margin": lambda x: F.soft_margin_loss(x, probabilities(x).sub(0.5).sign(), reduction="none"),
    "multilabel_soft_margin": lambda x: F.multilabel_soft_margin_loss(x, probabilities(x).round()),
    "mse": lambda x: F.mse_loss(x, probabilities(x)),
    "huber": lambda x: F.huber_loss(x, probabilities(x)),
    "cosine": lambda x: F.cosine_similarity(x, probabilities(x)),
    "std": lambda x: x.std(1),
    "norm": lambda x: x.norm(dim=1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "layer_norm_small": lambda x: F.layer_norm(x * 0.003, x.shape[1:]),
    "layer_norm_tiny_eps": lambda x: F.layer_norm(x * 1e-4, x.shape[1:], eps=1e-12),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm_small": lambda x: F.batch_norm(x * 0.003, None, None, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(*(x[None, None, :64, :32],) * 3),
}
IMAGES = {
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    "batch_norm_eval": lambda x, w, b: F.batch_norm(x, w.detach() * 0, w.detach() ** 2 + 0.1, w, b, False),
    "group_norm": lambda x, w, b: F.group_norm(x, 4, w, b),
    "instance_norm": lambda x, w, b: F.instance_norm(x, None, None, w, b),
    "layer_norm": lambda x, w, b: F.layer_norm(x.movedim(1, -1), w.shape, w, b),
}


def compare(fn, *leaves):
    """Value and gradients: on the device no worse than ten times the host's error, in units of the largest element."""
    results, seed = [], None
    for move in (torch.Tensor.double, torch.clone, lambda x: x.to(DEVICE)):
        xs = [move(x).requires_grad_() for x in leaves]
        y = fn(*xs)
        seed = r(*y.shape) if seed is None else seed
        results.append([y.detach(), *torch.autograd.grad(y, xs, move(seed))])
    for what, (truth, host, device) in enumerate(zip(*results)):
        scale = truth.abs().max().clamp_min(1e-30)
        theirs, ours = (((v.cpu().double() - truth).abs().max() / scale).item() for v in (host, device))
        assert ours <= 10 * max(theirs, 6e-8), f"result {what}: {ours:.1e}, on the host {theirs:.1e}"


@pytest.mark.parametrize("shape", SHAPES, ids=name)
@pytest.mark.parametrize("name", ROWS)
def test_rows(name, shape):
    torch.manual_seed(0)
    compare(ROWS[name], r(*shape) * 3)


@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize("shape", [(8, 16, 8, 8), (4, 64, 24, 24)], ids=name)
@pytest.mark.parametrize("name", IMAGES)
def test_images(name, shape, offset):
    torch.manual_seed(0)
    compare(IMAGES[name], r(*shape) + offset, r(shape[1]), r(shape[1]))


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent(layer):
    torch.manual_seed(0)
    module = layer(8, 24, 2, bidirectional=True)
    names, parameters = zip(*module.named_parameters())

    def run(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values)), (x,))[0]

    compare(run, r(12, 5, 8) * 2, *(p.detach() * 3 for p in parameters))


def test_ctc():
    torch.manual_seed(0)
    compare(ctc, r(20, 8, 6) * 3)


SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 2.0, 1e-30, -1e-30, 1000.0, -1000.0]
AT_INFINITY = {"gelu", "gelu_tanh"}  # torch's answer there depends on the size of the tensor
AT_ZERO = {"gelu"}  # gelu(-0.0) is 0.0 or -0.0, by the processor's instruction set


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name):
    fn = FUNCTIONS[name][0]
    x = torch.tensor([v for v in SPECIAL if name not in AT_INFINITY or abs(v) != float("inf")])
    for x in (x, x.double(), x[:0]):
        device, host = fn(x.to(DEVICE)).cpu(), fn(x)
        torch.testing.assert_close(device, host, equal_nan=True, rtol=1e-6, atol=1e-30)
        if name not in AT_ZERO:
            assert torch.equal((1 / device).isneginf(), (1 / host).isneginf())  # the signs of zeros


@pytest.mark.parametrize("fn", [torch.softmax, torch.log_softmax], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=name)
def test_rows_with_infinities(fn, dtype):
    inf, nan = float("inf"), float("nan")
    rows = [[1, 2, 3], [-inf] * 3, [1, 2, 4], [nan, 1, 2], [1, 2, 5], [inf, 1, 2], [1, 2, 6], [-inf, 1, 2], [5, 5, 5]]
    x = torch.tensor(rows, dtype=dtype)
    for x in (x, x.t().contiguous(), x.t()):
        for dim in (0, 1):
            # torch's own error in float16 is 4e-4
            tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype is torch.float16 else {}
            torch.testing.assert_close(fn(x.to(DEVICE), dim).cpu(), fn(x, dim), equal_nan=True, **tolerance)


@pytest.mark.parametrize("fn", [F.relu, F.relu6, F.hardtanh, F.leaky_relu, F.elu, F.selu, F.hardswish], ids=name)
def test_gradient_at_nan(fn):
    x = torch.tensor([float("nan"), 1.0, -1.0, 0.0, 7.0])
    grads = []
    for leaf in (x.clone(), x.to(DEVICE)):
        leaf.requires_grad_()
        grads.append(torch.autograd.grad(fn(leaf).sum(), leaf)[0].cpu())
    torch.testing.assert_close(*grads, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=name)
@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_of_special_values(mode, dtype):
    values = torch.tensor([v for v in SPECIAL if abs(v) != 1e-30], dtype=dtype)
    x, y = values[:, None].expand(-1, len(values)), values[None].expand(len(values), -1)
    device = torch.div(x.to(DEVICE), y.to(DEVICE), rounding_mode=mode).cpu()
    expected = torch.div(x, y, rounding_mode=mode)
    torch.testing.assert_close(device, expected, equal_nan=True)
    assert torch.equal(device.signbit() & ~device.isnan(), expected.signbit() & ~expected.isnan())


MANY = [((16384, 3), 0), ((64, 256, 7), (0, 1)), ((1 << 18, 2), 0), ((8, 40, 1024), (1, 2)), ((3, 7, 1001), (1, 2))]


@pytest.mark.parametrize("shape, dims", MANY)
@pytest.mark.parametrize("fn", [torch.sum, torch.mean, torch.var])
def test_reductions_of_many(fn, shape, dims):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 10
    expected = fn(x.double(), dims)
    received = fn(x.to(DEVICE), dims).cpu()
    assert ((received - expected) / expected).abs().max() < 2e-6  # in sequence it would be 1e-5 to 2e-3


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_many_rows(reduction, weighted):
    g = torch.Generator().manual_seed(0)
    x, y, w = torch.randn(40000, 10, generator=g), torch.randint(10, (40000,), generator=g), torch.rand(10, generator=g)
    w = w if weighted else None
    expected = F.cross_entropy(x.double(), y, None if w is None else w.double(), reduction=reduction)
    received = F.cross_entropy(x.to(DEVICE), y.to(DEVICE), None if w is None else w.to(DEVICE), reduction=reduction)
    assert abs(received.item() / expected.item() - 1) < 5e-7
