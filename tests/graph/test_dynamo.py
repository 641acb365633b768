"""`torch.compile(model, backend="mindspore")` against the eager device and PyTorch CPU."""

import copy
import gc
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from msadapter.config import set_config
from msadapter.graph import dynamo
from tests.models import CASES
from tests.models.compare import backward, same_gradients, same_losses, same_state

torch.ones(1, device="mindspore")
DEVICE = torch.device("mindspore")


@pytest.fixture(autouse=True)
def _strict():
    before = set_config(fallback="error")
    torch._dynamo.reset()
    gc.collect()
    dynamo.COUNTS.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
    set_config(fallback=before.fallback)


def compiled(f, **options):
    return torch.compile(f, backend="mindspore", **options)


def random(*shape):
    return torch.randn(shape).to(DEVICE)


def same(actual, expected):
    for a, e in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        if isinstance(e, torch.Tensor):
            assert (a.shape, a.stride(), a.dtype, a.device) == (e.shape, e.stride(), e.dtype, e.device)
            assert a.requires_grad == e.requires_grad
            assert_close(a.detach().cpu(), e.detach().cpu())
        else:
            assert a == e


# ---------------------------------------------------------------------------------------------------------- functions


def aliases(x):
    y = x + 1
    return y, y.t(), y[1:], x, y


def writes(x):
    y = x.clone()
    y[:, 1].add_(2)
    y.t().mul_(3)
    return y, x.new_zeros(2)


def autocast(x):
    with torch.autocast("mindspore", torch.bfloat16):
        return F.linear(x, x)


FUNCTIONS = {
    "pointwise": lambda x: (x * 2 + 1).relu(),
    "reduce": lambda x: (x.sum(0), x.mean(), x.argmax(1), x.amax()),
    "views": lambda x: (x.t(), x[1:], x.view(-1) + 1, (x + 1).t(), (x + 1)[:, ::2], x[::2].expand(2, 2, 4)),
    "aliases": aliases,
    "writes": writes,
    "constants": lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device) + torch.arange(4, device=x.device),
    "factories": lambda x: (torch.zeros(3, device=x.device), torch.ones_like(x), torch.eye(2, device=x.device)),
    "types": lambda x: (x.double().sum(), x.to(torch.float16), x.int(), x > 0),
    "where": lambda x: torch.where(x > 0, x, torch.zeros((), device=x.device)),
    "masked": lambda x: x.masked_fill(x > 0, 0.5),
    "dropout": lambda x: F.dropout(x, 0.5, True) * 2,
    "draws": lambda x: x + torch.rand_like(x) + torch.randn(3, 1, device=x.device) + torch.bernoulli(x.sigmoid().round()),
    "softmax": lambda x: F.log_softmax(x, 1).exp() @ x.t(),
    "autocast": autocast,
    "vmap": lambda x: torch.vmap(lambda v: v.sin().sum())(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    """Each call equals the eager one: values, strides, random numbers."""
    f = FUNCTIONS[name]
    c = compiled(f, fullgraph=True)
    for k in range(4):
        x = random(3, 4)
        torch.manual_seed(k)
        expected = f(x)
        torch.manual_seed(k)
        actual = c(x)
        same(actual, expected)
    if name == "draws":  # the parameters of a draw are values: such a graph is not recorded
        assert dynamo.COUNTS["eager"] == 3
    else:
        assert dynamo.COUNTS["program"] == 2


def test_results_share_memory():
    c = compiled(aliases)
    for _ in range(4):
        x = random(3, 4)
        y, t, part, given, again = c(x)
        assert given is x and again is y
        t[0, 0] = 7
        part[0, 0] = 8
        assert (y[0, 0].item(), y[1, 0].item()) == (7, 8)


INPUTS = {
    "transposed": lambda: (random(4, 3).t(),),
    "offset": lambda: (random(5, 3)[1:],),
    "expanded": lambda: (random(1, 3).expand(4, 3),),
    "shared": lambda: (lambda b: (b[:2], b[1:3]))(random(5, 3)),
    "host scalar": lambda: (random(3, 4), torch.randn(())),
    "host tensor": lambda: (random(3, 4), torch.randn(4)),
    "scalars": lambda: (random(3), random()),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name):
    def f(x, y=None):
        return (x * 2 if y is None else x * y.to(x.device) + (y * 2).to(x.device)).relu()

    c = compiled(f)
    for _ in range(4):
        given = INPUTS[name]()
        same(c(*given), f(*given))
    assert dynamo.COUNTS["program"] == 2 and not dynamo.COUNTS["eager"]


def test_written_inputs():
    def f(x, y):
        y.mul_(2)
        x.t().copy_(y)
        return x.sum()

    c = compiled(f)
    for _ in range(4):
        x, y = random(3, 3), random(3, 3)
        a, b = x.clone(), y.clone()
        same((c(x, y), x, y), (f(a, b), a, b))
    assert dynamo.COUNTS["program"] == 2


def test_python_numbers():
    def f(x, k, p):
        return x * k + F.dropout(x, p)

    c = compiled(f)
    for k, p in ((0.5, 0.1), (0.25, 0.1), (3.0, 0.2), (4.0, 0.3), (4.0, 0.3), (5.0, 0.3)):
        x = random(3, 4)
        torch.manual_seed(0)
        expected = f(x, k, p)
        torch.manual_seed(0)
        same(c(x, k, p), expected)


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_shapes(dynamic):
    linear = nn.Linear(4, 5).to(DEVICE)

    def f(x):
        return linear(x).relu().sum(0), x.shape[0], x.view(x.shape[0], 2, -1).transpose(1, 2)

    c = compiled(f, dynamic=dynamic)
    for n in (3, 3, 3, 6, 6, 6, 2, 2, 2, 3):
        x = random(n, 4)
        same(c(x), f(x))
    assert dynamo.COUNTS["program"] >= 3 and not dynamo.COUNTS["eager"]


def test_index_errors():
    c = compiled(lambda x, i: F.embedding(i, x))
    table = random(5, 3)
    for bad in (False, False, False, True, False):
        index = torch.tensor([1, 5 if bad else 4]).to(DEVICE)
        if bad:
            with pytest.raises(IndexError):
                c(table, index)
        else:
            same(c(table, index), table[index])


# ---------------------------------------------------------------------------------------------------------- exceptions


def test_graph_breaks(capsys):
    linear = nn.Linear(4, 4).to(DEVICE)

    def f(x):
        y = linear(x)
        print("between")
        if y.sum().item() > 0:
            return y + 1
        return y - 1

    c = compiled(f)
    for _ in range(4):
        x = random(3, 4)
        same(c(x), f(x))
    assert capsys.readouterr().out == "between\n" * 8
    assert dynamo.COUNTS["program"] >= 4
    stats = torch._dynamo.utils.counters["frames"]
    assert stats["ok"] == stats["total"]


def test_kernels_are_not_traced():
    from torch._dynamo import trace_rules

    from msadapter.backend.kernels import conv
    from msadapter.graph import bound

    for fn in (conv.convolution, bound.Entry.run, dynamo.Graph.__call__):
        assert trace_rules.check_verbose(fn.__code__).skipped


def test_reason_is_told_once():
    c = compiled(lambda x: torch.bernoulli(x.sigmoid()) + x)
    x = random(3)
    c(x)
    with pytest.warns(UserWarning, match=r"runs op by op.*test_dynamo\.py:\d+, aten::bernoulli"):
        c(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c(x)


def test_random_numbers_differ():
    c = compiled(lambda x: F.dropout(x, 0.5))
    results = [c(torch.ones(100, device=DEVICE)).cpu() for _ in range(4)]
    assert all(not torch.equal(a, b) for a, b in zip(results, results[1:]))


# -------------------------------------------------------------------------------------------------------------- models

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18_small_images", "transformer", "vit", "unet")]
MODELS = ["mlp", "mlp_dropout", "lenet", "gpt", *SLOW]


@pytest.mark.parametrize("name", [*MODELS, "lstm_lm"])
def test_training(name):
    """Losses, gradients, buffers and parameters of four steps."""
    case = CASES[name]
    torch.manual_seed(0)
    host = case.build()
    models = [host, copy.deepcopy(host).to(DEVICE), copy.deepcopy(host).to(DEVICE)]
    called = [*models[:2], compiled(models[2])]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models]
    for k in range(4):
        batch = case.batch(torch.Generator().manual_seed(k))
        on_device = [b.to(DEVICE) for b in batch]
        losses = []
        for model, call, optimizer, given in zip(models, called, optimizers, (batch, on_device, on_device)):
            optimizer.zero_grad()
            losses.append(backward(case, call, given))
        for i in (0, 1):
            for a, e in zip(losses[2], losses[i]):
                assert_close(a.cpu(), e.cpu(), rtol=1e-5, atol=1e-6)
        for a, e in zip(models[2].parameters(), models[1].parameters()):
            assert_close(a.grad, e.grad, rtol=1e-5, atol=1e-5 * e.grad.abs().max().item() + 1e-7)
        if not k:
            same_losses(losses[2], losses[0], DEVICE)
            same_gradients(models[2], host, DEVICE)
        for optimizer in optimizers:
            optimizer.step()
        if not k:
            same_state(models[2], host, DEVICE)
        for a, e in zip(models[2].state_dict().values(), models[1].state_dict().values()):
            assert_close(a, e, rtol=1e-5, atol=1e-6)
    assert dynamo.COUNTS["program"] == 4 and not dynamo.COUNTS["eager"]


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images(layout, dynamic):
    """Batches of several sizes, also channels last; the input's gradient, and running statistics."""
    host = Images()
    model = copy.deepcopy(host).to(DEVICE)
    c = compiled(model, dynamic=dynamic)
    for n in (4, 4, 4, 3, 3, 3):
        x = torch.randn(n, 3, 8, 8).contiguous(memory_format=layout)
        y = x.to(DEVICE).requires_grad_()
        expected, actual = host(x.requires_grad_()), c(y)
        assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)
        for m, result in ((host, expected), (model, actual)):
            m.zero_grad()
            result.square().sum().backward()
        assert y.grad.stride() == x.grad.stride()
        assert_close(y.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
        same_gradients(model, host, DEVICE)
        same_state(model, host, DEVICE)
    assert dynamo.COUNTS["program"] == 4 and not dynamo.COUNTS["eager"]


HEADS = nn.MultiheadAttention(8, 2, batch_first=True).to(DEVICE).eval()
ATTENTION = {
    "causal": lambda q, mask: F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2),
    "bool mask": lambda q, mask: F.scaled_dot_product_attention(q, q, q, attn_mask=mask > 0).transpose(1, 2).flatten(2),
    "float mask": lambda q, mask: F.scaled_dot_product_attention(q, q, q, attn_mask=mask),
    "module": lambda q, mask: HEADS(q[:, 0], q[:, 1], q[:, 2], attn_mask=mask)[0],
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    """The mask is another in each call; queries are the transposed heads that models have."""
    c = compiled(ATTENTION[name])
    for _ in range(4):
        q = random(2, 4, 3, 8).transpose(1, 2)
        mask = random(4, 4) + torch.eye(4).to(DEVICE) * 9
        expected = ATTENTION[name](q, mask)
        actual = c(q, mask)
        assert (actual.shape, actual.stride()) == (expected.shape, expected.stride())
        assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    assert dynamo.COUNTS["program"] == 2 and not dynamo.COUNTS["eager"]


@pytest.mark.parametrize("name", MODELS)
def test_inference(name):
    case = CASES[name]
    torch.manual_seed(0)
    host = case.build().eval()
    model = copy.deepcopy(host).to(DEVICE)
    c = compiled(model, fullgraph=True)
    for k in range(4):
        x = case.batch(torch.Generator().manual_seed(k))[0]
        with torch.no_grad():
            actual, eager, expected = c(x.to(DEVICE)), model(x.to(DEVICE)), host(x)
        assert_close(actual, eager, rtol=1e-5, atol=1e-6)
        assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert dynamo.COUNTS["program"] == 2


def test_whole_step():
    """Forward, backward and optimizer in one compiled function, with the breaks that dynamo makes."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(DEVICE) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in models]

    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    c = compiled(step)
    for _ in range(4):
        x = random(5, 4)
        assert_close(c(models[0], optimizers[0], x), step(models[1], optimizers[1], x))
    for a, e in zip(models[0].parameters(), models[1].parameters()):
        assert_close(a, e, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------- torch's other ways to trace


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18_small_images", "gpt", "lstm_lm"])
def test_jit_trace(name):
    case = CASES[name]
    model = case.build().eval().to(DEVICE)
    x = case.batch(torch.Generator().manual_seed(0))[0].to(DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, (x,))
    assert_close(traced(x), model(x))


def test_export():
    model = CASES["lenet"].build().eval().to(DEVICE)
    x = random(3, 1, 28, 28)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    for given in (x, random(5, 1, 28, 28)):
        assert_close(program.module()(given), model(given))
        assert_close(program.run_decompositions().module()(given), model(given))
    c = compiled(program.module())
    for _ in range(3):
        assert_close(c(x), model(x))


def test_import_is_cheap():
    code = "import msadapter, sys; assert 'mindspore' not in sys.modules and 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_backend_is_listed():
    assert "mindspore" in torch._dynamo.list_backends()
