import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.util import check

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
IMAGES = {1: (2, 3, 8), 2: (2, 3, 6, 8), 3: (2, 2, 4, 3, 5)}
MODES = [
    ("nearest", None, 1), ("nearest", None, 2), ("nearest", None, 3), ("nearest-exact", None, 1),
    ("nearest-exact", None, 2), ("nearest-exact", None, 3), ("linear", False, 1), ("linear", True, 1),
    ("bilinear", False, 2), ("bilinear", True, 2), ("trilinear", False, 3), ("trilinear", True, 3),
    ("bicubic", False, 2), ("bicubic", True, 2), ("area", None, 2),
]  # fmt: skip
SIZES = [
    {"scale_factor": 2}, {"scale_factor": 1.7}, {"scale_factor": 0.6},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
    {"size": 7},
]  # fmt: skip


@pytest.mark.parametrize("mode, align_corners, rank", MODES)
@pytest.mark.parametrize("options", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_interpolate(mode, align_corners, rank, options, dtype):
    x = torch.randn(IMAGES[rank], dtype=dtype)
    check(lambda x: F.interpolate(x, mode=mode, align_corners=align_corners, **options), x, **CLOSE)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("options", SIZES, ids=str)
def test_antialias(mode, options):
    check(lambda x: F.interpolate(x, mode=mode, antialias=True, **options), torch.randn(2, 3, 6, 8), **CLOSE)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_other_dtypes_and_layouts(mode):
    x = torch.randn(2, 3, 6, 8)
    check(lambda x: F.interpolate(x, scale_factor=2, mode=mode), x.bfloat16(), rtol=2e-2, atol=2e-2)
    check(lambda x: F.interpolate(x, scale_factor=2, mode=mode), x[:0])
    check(lambda x: F.interpolate(x.transpose(2, 3), scale_factor=2, mode=mode), x, **CLOSE)
    last = x.contiguous(memory_format=torch.channels_last)
    check(lambda x: F.interpolate(x, scale_factor=2, mode=mode), last, stride=False, **CLOSE)
    if mode == "nearest":
        check(lambda x: F.interpolate(x, scale_factor=2, mode=mode), (x * 9).byte())


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_special_values_stay_where_they_are(mode):
    x = torch.randn(1, 1, 8, 8)
    x[0, 0, 2, 2] = float("nan")
    if mode == "nearest":
        x[0, 0, 6, 6] = float("inf")
    check(lambda x: F.interpolate(x, scale_factor=2, mode=mode), x, grad=False, **CLOSE)


def test_composites():
    check(lambda t: F.affine_grid(t, (2, 3, 4, 5), False), torch.randn(2, 2, 3), **CLOSE)
    check(lambda x: F.pixel_shuffle(x, 2), torch.randn(2, 8, 3, 4))
    check(lambda x: F.pixel_unshuffle(x, 2), torch.randn(2, 8, 4, 4))


@pytest.mark.parametrize("options", [{"size": (0, 4)}, {"size": (4,)}], ids=str)
def test_errors_are_torchs(options):
    with pytest.raises((RuntimeError, ValueError)) as expected:
        F.interpolate(torch.zeros(1, 1, 4, 4), **options)
    with pytest.raises((RuntimeError, ValueError)) as received:
        F.interpolate(torch.zeros(1, 1, 4, 4, device="mindspore"), **options)
    assert str(received.value) == str(expected.value)
