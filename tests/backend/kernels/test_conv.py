import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.util import check

# fn, input shape, weight shape, options; output channels give the bias
PLAIN = [
    (F.conv2d, (2, 3, 8, 8), (4, 3, 3, 3), {}),
    (F.conv2d, (2, 3, 9, 8), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    (F.conv2d, (2, 3, 9, 8), (4, 3, 3, 2), {"stride": (2, 1), "padding": (0, 1), "dilation": (2, 3)}),
    (F.conv2d, (2, 4, 9, 8), (6, 2, 3, 3), {"groups": 2, "dilation": 2, "padding": 2, "stride": 2}),
    (F.conv2d, (2, 4, 7, 7), (8, 1, 3, 3), {"groups": 4, "padding": 1}),
    (F.conv2d, (2, 4, 7, 7), (8, 4, 1, 1), {"stride": 2}),
    (F.conv2d, (4, 7, 7), (5, 4, 3, 3), {"padding": "same"}),
    (F.conv2d, (2, 4, 7, 7), (5, 4, 4, 3), {"padding": "same"}),
    (F.conv2d, (2, 4, 7, 7), (5, 4, 3, 3), {"padding": "valid"}),
    (F.conv2d, (0, 4, 7, 7), (5, 4, 3, 3), {}),
    (F.conv1d, (2, 3, 10), (4, 3, 3), {"stride": 2, "padding": 1, "dilation": 2}),
    (F.conv1d, (4, 10), (4, 2, 3), {"groups": 2, "padding": "same"}),
    (
        F.conv3d,
        (2, 4, 5, 6, 7),
        (4, 2, 3, 2, 3),
        {"groups": 2, "stride": (1, 2, 1), "padding": 1, "dilation": (1, 1, 2)},
    ),
]
TRANSPOSED = [
    (F.conv_transpose2d, (2, 3, 4, 4), (3, 4, 2, 2), {"stride": 2}),
    (F.conv_transpose2d, (2, 3, 4, 5), (3, 4, 4, 4), {"stride": 2, "padding": 1}),
    (F.conv_transpose2d, (2, 3, 1, 1), (3, 4, 4, 4), {}),
    (F.conv_transpose2d, (2, 4, 4, 5), (4, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
    (F.conv_transpose2d, (2, 4, 4, 5), (4, 3, 3, 3), {"stride": (3, 2), "output_padding": (2, 0), "dilation": 2}),
    (F.conv_transpose2d, (4, 4, 5), (4, 3, 3, 3), {}),
    (F.conv_transpose2d, (0, 4, 4, 5), (4, 3, 3, 3), {}),
    (F.conv_transpose2d, (2, 4, 4, 5), (4, 3, 3, 2), {"output_padding": 2, "padding": (2, 1), "dilation": 3}),
    (F.conv_transpose3d, (2, 4, 3, 4, 2), (4, 2, 2, 3, 3), {"output_padding": (0, 1, 1), "dilation": 2, "groups": 2}),
    (F.conv_transpose1d, (2, 4, 5), (4, 2, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
    (F.conv_transpose3d, (2, 4, 3, 4, 5), (4, 3, 3, 2, 3), {"stride": 2, "padding": 1, "output_padding": (1, 0, 1)}),
]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("case", PLAIN + TRANSPOSED, ids=lambda c: f"{c[0].__name__}{c[1:]}")
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
def test_values_and_gradients(case, bias):
    fn, x, w, options = case
    transposed = fn in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    channels = w[1] * options.get("groups", 1) if transposed else w[0]
    b = [torch.randn(channels)] if bias else []
    check(lambda *a: fn(*a, **options), torch.randn(x), torch.randn(w), *b, **CLOSE)
    double = torch.float64
    check(lambda *a: fn(*a, **options), torch.randn(*x, dtype=double), torch.randn(*w, dtype=double), *(v.double() for v in b))


def test_integers_and_complex_numbers():
    x, w = torch.randn(2, 3, 8, 8, dtype=torch.complex128), torch.randn(4, 3, 3, 2, dtype=torch.complex128)
    check(lambda x, w: F.conv2d(x, w, padding=1), x, w, grad=False)
    x, w = torch.randint(-9, 9, (2, 3, 8, 8)), torch.randint(-9, 9, (4, 3, 3, 2))
    check(lambda x, w: F.conv2d(x, w, padding=1, stride=2), x, w)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    x, w, b = torch.randn(2, 4, 6, 6), torch.randn(4, 2, 3, 3), torch.randn(4)
    check(lambda *a: F.conv2d(*a, groups=2, padding=1), x.to(dtype), w.to(dtype), b.to(dtype), rtol=2e-2, atol=3e-2)


@pytest.mark.parametrize("fn", [F.conv2d, F.conv_transpose2d])
def test_memory_formats_and_views(fn):
    x, w = torch.randn(2, 4, 6, 5), torch.randn(4, 4, 3, 3)
    channels_last = {"memory_format": torch.channels_last}
    check(fn, x.contiguous(**channels_last), w.contiguous(**channels_last), stride=False, **CLOSE)
    check(fn, x.contiguous(**channels_last), w, stride=False, **CLOSE)
    check(lambda x, w: fn(x.transpose(2, 3), w.transpose(0, 1)), x, w, **CLOSE)
    check(lambda x, w: fn(x[:, :1].expand(2, 4, 6, 5), w), x, w, **CLOSE)


@pytest.mark.parametrize("options", [{"stride": 2, "padding": 1}, {"groups": 2, "dilation": 2}], ids=str)
@pytest.mark.parametrize("fn", [F.conv2d, F.conv_transpose2d])
def test_double_backward(fn, options):
    def penalty(x, w):
        y = fn(x, w, **options)
        (g,) = torch.autograd.grad(y, x, y, create_graph=True)
        return g

    channels = 4 // options.get("groups", 1)
    check(penalty, torch.randn(2, 4, 6, 5), torch.randn(4, channels, 3, 3), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "x, w, options",
    [
        ((2, 3, 8, 8), (4, 2, 3, 3), {}),
        ((2, 3, 8, 8), (4, 3, 9, 9), {}),
        ((2, 3, 8, 8), (4, 3, 3, 3), {"padding": -1}),
        ((2, 3, 8, 8), (4, 3, 3, 3), {"stride": 0}),
        ((2, 3, 8, 8), (4, 3, 3, 3), {"bias": (3,)}),
        ((2, 3, 8, 8), (4, 1, 3, 3), {"groups": 3}),
    ],
    ids=str,
)
def test_errors_are_torchs(x, w, options):
    def call(device):
        kwargs = {k: torch.zeros(v, device=device) if k == "bias" else v for k, v in options.items()}
        F.conv2d(torch.zeros(x, device=device), torch.zeros(w, device=device), **kwargs)

    with pytest.raises(RuntimeError) as expected:
        call("cpu")
    with pytest.raises(RuntimeError) as received:
        call("mindspore")
    assert str(received.value) == str(expected.value)


def test_operands_on_two_devices_are_refused():
    with pytest.raises(RuntimeError, match="same device"):
        F.conv2d(torch.zeros(1, 1, 3, 3), torch.zeros(1, 1, 3, 3, device="mindspore"))


WINDOWS = [((3, 2), (1, 2), (1, 0), (2, 1)), ((2, 3), (2, 1), (0, 1), (1, 2)), ((2, 2), (1, 1), (0, 0), (2, 2))]


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sliding_windows(case, dtype):
    x = torch.randn(2, 3, 6, 8, dtype=dtype)
    check(lambda x: F.unfold(x, *case), x, **CLOSE)
    check(lambda x: F.unfold(x[0], *case), x, **CLOSE)
    check(lambda x: F.unfold(x, *case), x[:0])
    check(lambda x: F.fold(x, (6, 8), *case), F.unfold(x, *case), **CLOSE)
