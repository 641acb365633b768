"""Randomized leaky ReLU: the slopes are those that a seed gives on the CPU."""

import pytest
import torch
import torch.nn.functional as F

from tests.backend.kernels.util import check


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
@pytest.mark.parametrize("training", (True, False))
def test_rrelu(dtype, training):
    x = torch.randn(4, 5).to(dtype)
    for x in (x, x.t(), x[:0], torch.tensor(-1.0).to(dtype)):
        check(lambda x: F.rrelu(x, 0.1, 0.4, training), x)
        check(lambda x: F.rrelu(x.clone(), 0.1, 0.4, training, inplace=True), x, stride=False)
