import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.util import check

SHAPES = {1: ((2, 3, 6), (1, 2)), 2: ((2, 3, 5, 6), (1, 2, 2, 0)), 3: ((2, 3, 5, 4, 5), (1, 2, 2, 1, 0, 1))}


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_modes(mode, rank, dtype):
    shape, pad = SHAPES[rank]
    if dtype is torch.bfloat16 and mode == "circular":
        pytest.skip("made of copies into slices")
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    check(lambda x: F.pad(x, pad, mode=mode), torch.randn(shape, dtype=dtype), **close)
    if mode != "circular":
        check(lambda x: F.pad(x[0], pad, mode=mode), torch.randn(shape, dtype=dtype), **close)


@pytest.mark.parametrize(
    "pad, value", [((-1, 2, 1, -2), 2.5), ((0, 0), 1), ((-2, -1), 0), ((1,) * 6, -1), ((3, -3), 7)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_constant(pad, value, dtype):
    x = (torch.randn(3, 4, 5) * 9).to(dtype)
    check(lambda x: F.pad(x, pad, value=value), x)
    check(lambda x: F.pad(x.transpose(0, 2), pad, value=value), x)


def test_constant_of_special_operands():
    check(lambda x: F.pad(x, (1, 2), value=True), torch.tensor([True, False]))
    check(lambda x: F.pad(x, (1, 2, 1, 1), value=3.0), torch.randn(0, 4))
    check(lambda x: F.pad(x, (1, 2), value=float("-inf")), torch.randn(2, 4))


@pytest.mark.parametrize("pad, mode", [((7, 0), "reflect"), ((-7, 0), "constant"), ((-4, -4), "replicate")])
def test_errors_are_torchs(pad, mode):
    with pytest.raises(RuntimeError) as expected:
        F.pad(torch.zeros(2, 3, 6), pad, mode=mode)
    with pytest.raises(RuntimeError) as received:
        F.pad(torch.zeros(2, 3, 6, device="mindspore"), pad, mode=mode)
    assert str(received.value) == str(expected.value)


def test_gradient_of_complex_padding():
    for mode in ("reflect", "replicate"):
        check(lambda x: F.pad(torch.complex(x, x * x), (2, 1), mode=mode).abs(), torch.randn(2, 3, 5))
        check(lambda x: F.pad(torch.complex(x, x * x), (2, 1, 1, 1), mode=mode).abs(), torch.randn(2, 3, 5, 4))
