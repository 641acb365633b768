import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.backend.kernels.util import check

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
MODULES = [
    (lambda: nn.BatchNorm2d(6), (4, 6, 5, 5)),
    (lambda: nn.BatchNorm2d(6, affine=False, momentum=None), (4, 6, 5, 5)),
    (lambda: nn.BatchNorm2d(6, track_running_stats=False, eps=1e-3), (4, 6, 5, 5)),
    (lambda: nn.BatchNorm1d(6, momentum=0.3), (8, 6)),
    (lambda: nn.BatchNorm1d(6, momentum=0.0), (8, 6)),
    (lambda: nn.BatchNorm1d(6), (8, 6, 5)),
    (lambda: nn.BatchNorm3d(3), (2, 3, 4, 5, 6)),
    (lambda: nn.InstanceNorm2d(6), (4, 6, 5, 5)),
    (lambda: nn.InstanceNorm1d(6, affine=True, track_running_stats=True), (4, 6, 5)),
    (lambda: nn.LayerNorm(7), (3, 4, 7)),
    (lambda: nn.LayerNorm((4, 7), eps=1e-3), (3, 4, 7)),
    (lambda: nn.LayerNorm(7, bias=False), (4, 7)),
    (lambda: nn.LayerNorm(7, elementwise_affine=False), (4, 7)),
    (lambda: nn.LayerNorm(256), (512, 256)),
    (lambda: nn.LayerNorm(256, elementwise_affine=False), (512, 256)),
    (lambda: nn.LayerNorm(7), (0, 7)),
    (lambda: nn.LayerNorm(7, eps=0.0), (4, 7)),
    (lambda: nn.GroupNorm(3, 6), (2, 6, 4, 5)),
    (lambda: nn.GroupNorm(1, 6, affine=False), (2, 6, 4)),
    (lambda: nn.GroupNorm(3, 6), (4, 6)),
    (lambda: nn.GroupNorm(3, 6), (0, 6, 4)),
]


def _train_and_evaluate(make):
    """Two training steps and an evaluation: outputs, then running statistics."""

    def run(x, *parameters):
        module = make().to(x.device, x.dtype)
        named = dict(zip((n for n, _ in module.named_parameters()), parameters))
        call = lambda v: torch.func.functional_call(module, named, (v,))  # noqa: E731
        out = [call(x), call(x + x)]
        module.eval()
        out.append(call(x))
        return [*out, *(b for b in module.buffers() if b.is_floating_point())]

    return run


@pytest.mark.parametrize("make, shape", MODULES, ids=lambda v: str(v) if isinstance(v, tuple) else repr(v()))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_modules(make, shape, dtype):
    torch.manual_seed(1)
    parameters = [torch.rand_like(p, dtype=dtype) + 0.5 for p in make().parameters()]
    close = {"rtol": 3e-5, "atol": 3e-5} if len(shape) == 2 and shape[0] > 100 else CLOSE  # sums of 512 rows
    check(_train_and_evaluate(make), torch.randn(shape, dtype=dtype) * 2 + 1, *parameters, **close)


@pytest.mark.parametrize("offset", [10, 100])
@pytest.mark.parametrize("make", [lambda: nn.BatchNorm2d(4), lambda: nn.GroupNorm(2, 4), lambda: nn.LayerNorm(16)])
def test_offsets_do_not_cancel(make, offset):
    x = torch.randn(4, 4, 16, 16) + offset
    expected = make().double()(x.double()).float()
    torch.testing.assert_close(make().to("mindspore")(x.to("mindspore")).cpu(), expected, rtol=1e-5, atol=1e-6 * offset)


@pytest.mark.parametrize("fn", [
    lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: F.group_norm(x, 2),
    lambda x: F.layer_norm(x, x.shape[2:]),
])  # fmt: skip
def test_views(fn):
    x = torch.randn(3, 4, 6, 5)
    check(lambda x: fn(x.transpose(2, 3)), x, stride=False, **CLOSE)
    check(lambda x: fn(x[:, :, ::2]), x, stride=False, **CLOSE)
    check(fn, x.contiguous(memory_format=torch.channels_last), stride=False, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [lambda: nn.BatchNorm2d(4), lambda: nn.GroupNorm(2, 4), lambda: nn.LayerNorm(6)])
@pytest.mark.parametrize("mixed", [False, True])
def test_half_precision(make, dtype, mixed):
    def run(x):
        module = make().to(x.device)
        return (module if mixed else module.to(dtype))(x)

    check(run, torch.randn(4, 4, 6, 6).to(dtype), rtol=2e-2, atol=2e-2)


def test_running_statistics_change_in_place_for_every_alias():
    module = nn.BatchNorm2d(3).to("mindspore")
    view, copy = module.running_mean.view(3), module.running_mean.clone()
    module(torch.randn(2, 3, 4, 4).to("mindspore") + 5)
    assert torch.equal(view.cpu(), module.running_mean.cpu()) and view.cpu().abs().min() > 0
    assert copy.cpu().eq(0).all()


def test_statistics_returned_by_the_ops():
    x = torch.randn(4, 6, 5, 5)
    check(lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5), x, grad=False, **CLOSE)
    check(lambda x: torch.native_layer_norm(x, (5,), None, None, 1e-5), x, grad=False, **CLOSE)
    check(lambda x: torch.native_group_norm(x, None, None, 4, 6, 25, 2, 1e-5), x, grad=False, **CLOSE)


@pytest.mark.parametrize("call", [
    lambda x: F.batch_norm(x, torch.zeros(2, device=x.device), torch.ones(2, device=x.device)),
    lambda x: F.layer_norm(x, (7,)),
    lambda x: F.group_norm(x, 2),
])  # fmt: skip
def test_errors_are_torchs(call):
    with pytest.raises(RuntimeError) as expected:
        call(torch.zeros(2, 3, 4))
    with pytest.raises(RuntimeError) as received:
        call(torch.zeros(2, 3, 4, device="mindspore"))
    assert str(received.value) == str(expected.value)


@pytest.mark.parametrize("shape", [(4, 3), (1, 3), (4, 3, 5), (5, 4, 3, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weight_norm(shape, dtype):
    for dim in (0, 1, len(shape) - 1):
        v = torch.randn(shape, dtype=dtype)
        g = torch.rand_like(torch.norm_except_dim(v, 2, dim)) + 0.5
        check(lambda v, g: torch._weight_norm(v, g, dim), v, g)
