import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.util import DEVICE, check, name

NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e30, 1e-30, 2.5])
FINITE = torch.tensor([0.0, 1.0, -1.0, 1e10, 1e-10, 2.5])
UNARY = [
    torch.abs,
    torch.sgn,
    torch.angle,
    lambda z: z.conj_physical(),
    lambda z: z.clone().conj_physical_(),
    lambda z: torch.conj_physical(z, out=torch.empty_like(z)),
    lambda z: F.pad(z, (1, -2, 1, 0)),
    lambda z: F.pad(z, (1, 2), value=2),
]


def grid(edges, dtype):
    return torch.meshgrid(edges.to(dtype), edges.to(dtype), indexing="ij")


@pytest.mark.parametrize("fn", UNARY, ids=name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unary(fn, dtype):
    z = torch.complex(*grid(EDGES, dtype))
    check(fn, z)
    check(fn, z.t())
    check(fn, z[:0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts(dtype):
    a, b = grid(FINITE, dtype)
    for fn in (torch.complex, torch.polar):
        check(fn, a, b)
        check(fn, a.t(), b[0])
    check(lambda a, b: torch.complex(a, b).abs(), a, b)
    check(lambda a, b: torch.view_as_real(torch.complex(a, b).sgn()), a, b)
    check(lambda a, b: torch.complex(a, b).angle(), a, b)


def test_angle_of_reals():
    check(torch.angle, EDGES)
    check(torch.angle, torch.arange(-3, 3).reshape(2, 3).t())


def test_no_abs_in_place():
    x = torch.randn(3, dtype=torch.complex64)
    with pytest.raises(RuntimeError) as expected:
        x.abs_()
    with pytest.raises(RuntimeError) as received:
        x.to(DEVICE).abs_()
    assert str(received.value) == str(expected.value)
    check(lambda x: x.clone().abs_(), torch.randn(3))


def test_equal():
    x = torch.randn(2, 3, device=DEVICE)
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool):
        y = x.to(dtype)
        assert torch.equal(y, y.clone())
        assert not torch.equal(y, y[:1])
        assert not torch.equal(y, ~y if dtype is torch.bool else y + 1)
    assert not torch.equal(x / 0 * 0, x / 0 * 0)
    assert torch.equal(x.t(), x.t().contiguous())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_accumulation(dtype):
    z, i = torch.randn(4, 3, dtype=dtype), torch.tensor([0, 2, 2])
    check(lambda z, i: z.index_put((i,), z[1:] * 2, accumulate=True), z, i)
    check(lambda z, i: z.put(i, z[0], accumulate=True), z, i)
    check(lambda z, i: z.index_add(0, i, z[1:] * 2), z, i)
    check(lambda z, i: z.t().index_add(1, i, z[1:].t(), alpha=2), z, i)
    check(lambda z: torch.stack([z.real, z.imag]).unfold(1, 2, 1), z)


def test_istft():
    x = torch.randn(2, 64)
    check(lambda x: torch.istft(torch.stft(x, 16, return_complex=True, window=x[0, :16] * 0 + 1), 16), x, rtol=1e-5, atol=1e-5)
    z = torch.randn(16, 9, dtype=torch.complex64)
    check(lambda z: torch.istft(z, 16, onesided=False, return_complex=True), z, rtol=1e-5, atol=1e-5)
