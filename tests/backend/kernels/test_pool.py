import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.util import check, name

MAX = [
    (F.max_pool2d, (2, 3, 8, 9), {"kernel_size": 2}),
    (F.max_pool2d, (2, 3, 8, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (F.max_pool2d, (2, 3, 8, 9), {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "ceil_mode": True}),
    (F.max_pool2d, (2, 3, 8, 9), {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2}),
    (F.max_pool2d, (3, 7, 7), {"kernel_size": 2, "ceil_mode": True}),
    (F.max_pool2d, (0, 3, 8, 9), {"kernel_size": 2}),
    (F.max_pool1d, (2, 3, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (F.max_pool1d, (3, 9), {"kernel_size": 2}),
    (F.max_pool3d, (2, 3, 6, 7, 8), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (F.max_pool3d, (3, 6, 7, 8), {"kernel_size": (1, 2, 2), "ceil_mode": True}),
    (F.adaptive_max_pool2d, (2, 3, 7, 9), {"output_size": (3, 5)}),
    (F.adaptive_max_pool2d, (3, 7, 9), {"output_size": 1}),
    (F.adaptive_max_pool1d, (2, 3, 9), {"output_size": 4}),
    (F.adaptive_max_pool3d, (2, 3, 6, 7, 8), {"output_size": (2, 3, 5)}),
    (F.adaptive_max_pool3d, (3, 4, 4, 3), {"output_size": (1, 6, 2)}),
]
AVERAGE = [
    (F.avg_pool2d, (2, 3, 8, 9), {"kernel_size": 2}),
    (F.avg_pool2d, (2, 3, 7, 8), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (F.avg_pool2d, (2, 3, 7, 8), {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    (F.avg_pool2d, (2, 3, 7, 8), {"kernel_size": (2, 3), "stride": 3, "padding": 1, "ceil_mode": True}),
    (F.avg_pool2d, (3, 7, 8), {"kernel_size": 3, "padding": (1, 0), "divisor_override": 5}),
    (F.avg_pool2d, (3, 7, 8), {"kernel_size": 3, "padding": 1, "divisor_override": 2, "count_include_pad": False}),
    (F.avg_pool2d, (0, 3, 7, 8), {"kernel_size": 3}),
    (F.avg_pool2d, (2, 3, 7, 8), {"kernel_size": 2, "divisor_override": -2}),
    (F.avg_pool3d, (3, 5, 4, 4), {"kernel_size": (1, 2, 3), "divisor_override": -3, "ceil_mode": True}),
    (F.avg_pool1d, (2, 3, 9), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    (F.avg_pool1d, (3, 9), {"kernel_size": 3}),
    (F.avg_pool3d, (2, 3, 6, 7, 8), {"kernel_size": 2, "stride": (1, 2, 3), "padding": 1}),
    (F.avg_pool3d, (3, 6, 7, 8), {"kernel_size": 3, "count_include_pad": False, "padding": 1}),
    (F.adaptive_avg_pool2d, (2, 3, 7, 9), {"output_size": (3, 5)}),
    (F.adaptive_avg_pool2d, (2, 3, 4, 4), {"output_size": (7, 6)}),
    (F.adaptive_avg_pool2d, (3, 7, 9), {"output_size": (2, None)}),
    (F.adaptive_avg_pool2d, (0, 3, 7, 9), {"output_size": 2}),
    (F.adaptive_avg_pool1d, (2, 3, 9), {"output_size": 4}),
    (F.adaptive_avg_pool3d, (2, 3, 6, 7, 8), {"output_size": (2, 3, 4)}),
]


@pytest.mark.parametrize("case", MAX, ids=name)
def test_maximum(case):
    fn, shape, options = case
    ties = torch.randint(-3, 3, shape).float()
    check(lambda x: fn(x, **options), ties)
    check(lambda x: fn(x, **options, return_indices=True)[::-1], ties, grad=False)
    check(lambda x: fn(x, **options), torch.randn(*shape, dtype=torch.float64))


@pytest.mark.parametrize("case", AVERAGE, ids=name)
def test_average(case):
    fn, shape, options = case
    check(lambda x: fn(x, **options), torch.randn(shape))
    check(lambda x: fn(x, **options), torch.randn(*shape, dtype=torch.float64))


@pytest.mark.parametrize("fn", [F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(fn, dtype):
    check(lambda x: fn(x, 2), torch.randn(2, 3, 8, 8).to(dtype))


@pytest.mark.parametrize("fn", [F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d], ids=lambda f: f.__name__)
def test_views(fn):
    x = torch.randn(2, 3, 8, 6)
    check(lambda x: fn(x.transpose(2, 3), 2), x)
    check(lambda x: fn(x[:, 1:, ::2], 2), x)
    check(lambda x: fn(x, 2), x.contiguous(memory_format=torch.channels_last), stride=False)


@pytest.mark.parametrize("padding", [0, 1])
def test_maximum_of_special_values(padding):
    x = torch.randn(2, 3, 9, 9)
    x[0, 0, 2, 2], x[0, 1, 4:8, 4:8], x[1, 2, 3, 3], x[1, 0, 0, 0] = float("nan"), -float("inf"), float("inf"), 3e38
    check(lambda x: F.max_pool2d(x, 3, 2, padding, return_indices=True)[::-1], x, grad=False)
    check(lambda x: F.max_pool2d(x, 3, 2, padding), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("out", [1, 2, 4])
def test_fractional_maximum(out, dtype):
    for fn, shape in ((F.fractional_max_pool2d, (2, 3, 7, 8)), (F.fractional_max_pool3d, (2, 3, 7, 8, 6))):
        rank, x = len(shape) - 2, torch.randn(shape).to(dtype)
        samples, grad = torch.rand(2, 3, rank).to(dtype), dtype is not torch.bfloat16
        check(lambda x: fn(x, 2, out, return_indices=True, _random_samples=samples.to(x.device)), x, grad=grad)
        one, size = samples[:1], (3, 2, 2)[:rank]
        check(lambda x: fn(x[0], size, out, return_indices=True, _random_samples=one.to(x.device)), x, grad=grad)
        check(lambda x: fn(x, 2, output_ratio=(0.5,) * rank), x, grad=grad)


def test_adaptive_maximum_of_special_values():
    x = torch.randn(2, 3, 5, 6, 7)
    x[0, 0, 1, 1, 1], x[1, 2], x[0, 1, 2, 2, 2] = float("nan"), -float("inf"), float("inf")
    check(lambda x: F.adaptive_max_pool3d(x, (2, 3, 2), return_indices=True)[::-1], x, grad=False)


def test_maximum_of_overlapping_windows_adds_gradients_up():
    check(lambda x: F.max_pool2d(x, 5, 1, 2), torch.randn(8, 8, 32, 32))


@pytest.mark.parametrize(
    "fn, options",
    [
        (F.max_pool2d, {"kernel_size": 2, "padding": 2}),
        (F.max_pool2d, {"kernel_size": 9}),
        (F.max_pool2d, {"kernel_size": 2, "stride": 0}),
        (F.avg_pool2d, {"kernel_size": 2, "padding": 2}),
        (F.avg_pool2d, {"kernel_size": 2, "divisor_override": 0}),
        (F.adaptive_avg_pool2d, {"output_size": (-1, 2)}),
    ],
    ids=name,
)
def test_errors_are_torchs(fn, options):
    with pytest.raises(RuntimeError) as expected:
        fn(torch.zeros(1, 1, 4, 4), **options)
    with pytest.raises(RuntimeError) as received:
        fn(torch.zeros(1, 1, 4, 4, device="mindspore"), **options)
    assert str(received.value) == str(expected.value)
