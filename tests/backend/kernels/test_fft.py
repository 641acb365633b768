import itertools

import pytest
import torch

from tests.backend.kernels.util import check, name

aten = torch.ops.aten
BASES = [
    torch.randn(2, 3, 4, 5),
    torch.randn(2, 1, 4, 5),
    torch.randn(2, 3, 5, 4).transpose(-1, -2),
    torch.randn(4, 3, 2, 5).permute(2, 1, 0, 3),
    torch.randn(2, 3, 8, 5)[:, :, ::2],
    torch.randn(1, 3, 1, 5).expand(2, 3, 4, 5),
]
DIMS = [d for r in (1, 2, 3) for d in itertools.permutations(range(4), r)][::5] + [(0, 1, 2, 3), (3, 1)]


@pytest.mark.parametrize("base", range(len(BASES)))
def test_dimensions_and_strides(base):
    x = BASES[base]
    z = torch.complex(x, x + 1)
    for dims, flag in itertools.product(DIMS, (True, False)):
        check(lambda t: aten._fft_c2c(t, dims, 0, flag), z, grad=False)
        check(lambda t: aten._fft_r2c(t, dims, 1, flag), x, grad=False)
        size = 2 * (x.shape[dims[-1]] - 1) + flag
        if size:
            check(lambda t: aten._fft_c2r(t, dims, 2, size), z, grad=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 97, 500])
@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
def test_sizes(n, dtype, norm):
    x = torch.randn(3, n, dtype=dtype)
    close = {"rtol": 2e-6, "atol": 3e-5} if dtype is torch.float32 else {}
    for f in (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.ihfft):
        check(lambda t: torch.stack([(y := f(t, norm=norm)).real, y.imag]), x, **close)
    check(lambda t: torch.fft.irfft(torch.complex(t, t.flip(-1)), n=n, norm=norm), x[:, : n // 2 + 1], **close)
    check(lambda t: torch.fft.hfft(torch.complex(t, t.flip(-1)), n=n, norm=norm), x[:, : n // 2 + 1], rtol=1e-5, atol=1e-4)


FUNCTIONS = [
    lambda x: torch.fft.rfftn(x).abs(),
    lambda x: torch.fft.fft2(x, s=(6, 3)).real,
    lambda x: torch.fft.irfft2(torch.fft.rfft2(x)),
    lambda x: torch.fft.fftshift(torch.fft.fftn(x, dim=(0, -1))).imag,
    lambda x: torch.stft(x.reshape(-1), 8, window=torch.ones_like(x).flatten()[:8], return_complex=True).abs(),
]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=name)
def test_functions(fn):
    check(fn, torch.randn(3, 4, 5), rtol=1e-5, atol=1e-5)


def test_out():
    z = torch.randn(3, 4, dtype=torch.complex64)
    check(lambda t: torch.fft.fft(t, dim=0, out=torch.empty_like(t)), z, grad=False)
    check(lambda t: torch.fft.fft(t, dim=0, out=torch.empty(0, dtype=t.dtype, device=t.device)), z, grad=False)


def test_errors_are_torchs():
    for call in (
        lambda x: torch.fft.fft(x[:, :0]),
        lambda x: torch.fft.rfft(x[:0]),
        lambda x: torch.fft.fft(x.half()),
        lambda x: torch.fft.fftn(x, dim=(0, 0)),
    ):
        with pytest.raises(RuntimeError) as expected:
            call(torch.zeros(2, 3))
        with pytest.raises(RuntimeError) as received:
            call(torch.zeros(2, 3, device="mindspore"))
        assert str(received.value) == str(expected.value)
