"""Matrices for the tests of dense linear algebra, and how near a result must be."""

import torch

from tests.backend.kernels.util import check

SHAPES = [(4, 4), (2, 3, 4, 4), (1, 1), (0, 0), (2, 0, 0), (0, 3, 3)]
RECTANGULAR = [(5, 3), (3, 5), (2, 5, 3), (2, 3, 5), (0, 3), (3, 0), (2, 1, 5, 1)]
TYPES = [torch.float32, torch.float64, torch.complex64]
TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.complex64: (1e-4, 1e-5), torch.float64: (1e-7, 1e-7)}


def check_linalg(fn, *args, **kwargs):
    rtol, atol = TOLERANCE[args[0].dtype]
    check(fn, *args, rtol=rtol, atol=atol, **kwargs)


def regular(shape, dtype, scale=1.0):
    """Matrices far from singular."""
    n = shape[-1]
    return scale * torch.randn(shape, dtype=dtype) / max(n, 1) ** 0.5 + 3 * torch.eye(n, dtype=dtype)


def definite(shape, dtype):
    x = torch.randn(shape, dtype=dtype) / max(shape[-1], 1) ** 0.5
    return x @ x.mH + torch.eye(shape[-1], dtype=dtype)


def spread(shape, dtype):
    """Matrices whose singular values differ: gradients of vectors divide by the differences."""
    k = min(shape[-2:])
    u, v = (torch.linalg.qr(torch.randn(*shape[:-2], n, n, dtype=dtype)).Q for n in shape[-2:])
    return (u[..., :k] * torch.linspace(1, 2, k, dtype=dtype)) @ v[..., :k, :]
