"""Attention and transformer layers equal PyTorch CPU, in training and on the inference fast path."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msadapter.config import set_config
from tests.backend.kernels.util import check

TOL = dict(rtol=1e-5, atol=1e-5)
LOWER = torch.ones(5, 7, dtype=torch.bool).tril()


def qkv(batch=2, heads=4, length=5, keys=7, features=8, dtype=torch.float32):
    torch.manual_seed(0)
    shapes = [(batch, heads, n, features) for n in (length, keys, keys)]
    return [torch.randn(s, dtype=dtype) for s in shapes]


@pytest.mark.parametrize(
    "options",
    [
        {}, {"is_causal": True}, {"scale": 0.3}, {"dropout_p": 0.4}, {"dropout_p": 0.4, "is_causal": True},
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sdpa(options, dtype):
    check(lambda *x: F.scaled_dot_product_attention(*x, **options), *qkv(dtype=dtype), stride=False, **TOL)
    x = [t[0] for t in qkv(dtype=dtype)]
    check(lambda *x: F.scaled_dot_product_attention(*x, **options), *x, stride=False, **TOL)
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv(dtype=dtype)]
    check(lambda *x: F.scaled_dot_product_attention(*x, **options), *swapped, stride=False, **TOL)


@pytest.mark.parametrize(
    "mask",
    [
        LOWER, LOWER[None, None], torch.rand(2, 1, 1, 7) > 0.2, torch.rand(2, 4, 5, 7) > 0.6, torch.randn(5, 7),
        torch.randn(2, 1, 5, 7), torch.zeros(5, 7, dtype=torch.bool), LOWER & (torch.arange(5) != 2)[:, None],
        torch.zeros(5, 7).masked_fill(~LOWER, -math.inf),
        torch.zeros(5, 7).masked_fill((torch.arange(5) == 2)[:, None], -math.inf),
    ],
)  # fmt: skip
def test_sdpa_mask(mask):
    check(lambda *x: F.scaled_dot_product_attention(*x[:3], x[3].detach()), *qkv(), mask, stride=False, **TOL)
    check(lambda *x: F.scaled_dot_product_attention(*x), *qkv(), mask, stride=False, **TOL)


def test_sdpa_grouped_queries():
    q, k, v = qkv()
    check(lambda *x: F.scaled_dot_product_attention(*x, enable_gqa=True), q, k[:, :2], v[:, :2], stride=False, **TOL)


def test_sdpa_errors_are_torchs():
    q, k, v = (x.to("mindspore") for x in qkv())
    with pytest.raises(RuntimeError, match="Explicit attn_mask should not be set when is_causal=True"):
        F.scaled_dot_product_attention(q, k, v, LOWER.to("mindspore"), is_causal=True)


def compare(module, *inputs, training, **kwargs):
    before = set_config(fallback="error")
    try:
        module = module.train(training)
        device = copy.deepcopy(module).to("mindspore")
        move = lambda x: x.to("mindspore") if isinstance(x, torch.Tensor) else x
        xs = [x.clone().requires_grad_(training) for x in inputs]
        ds = [move(x.detach()).requires_grad_(training) for x in inputs]
        with torch.set_grad_enabled(training):
            torch.manual_seed(1)
            expected = module(*xs, **kwargs)
            torch.manual_seed(1)
            received = device(*ds, **{k: move(v) for k, v in kwargs.items()})
        expected, received = ([y] if isinstance(y, torch.Tensor) else list(y) for y in (expected, received))
        pairs = list(zip(received, expected, strict=True))
        if training:
            seed = torch.randn_like(expected[0])
            expected[0].backward(seed)
            received[0].backward(seed.to("mindspore"))
            leaves = [*xs, *module.parameters()], [*ds, *device.parameters()]
            pairs += [(d.grad, x.grad) for x, d in zip(*leaves) if x.grad is not None]
        for r, e in pairs:
            if e is None:
                assert r is None
            else:
                torch.testing.assert_close(r.detach().cpu(), e.detach(), rtol=1e-4, atol=1e-5)
    finally:
        set_config(fallback=before.fallback)


PADDING = torch.tensor([[0] * 6, [0] * 4 + [1] * 2, [0] * 3 + [1] * 3]).bool()
CAUSAL = torch.triu(torch.ones(6, 6), 1).bool()


def layer(**options):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 4, 32, **{"batch_first": True, "dropout": 0.1, **options})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "kwargs",
    [
        {}, {"need_weights": False}, {"average_attn_weights": False}, {"key_padding_mask": PADDING},
        {"attn_mask": CAUSAL}, {"attn_mask": CAUSAL, "key_padding_mask": PADDING, "need_weights": False},
        {"attn_mask": CAUSAL, "need_weights": False, "is_causal": True},
    ],
)  # fmt: skip
@pytest.mark.parametrize("same", [True, False])
def test_multi_head_attention(training, kwargs, same):
    torch.manual_seed(0)
    x = torch.randn(3, 6, 16)
    inputs = [x] if same else [x, torch.randn(3, 6, 16), torch.randn(3, 6, 16)]

    class Attention(nn.MultiheadAttention):
        def forward(self, *xs, **kwargs):
            return super().forward(*(xs * 3 if len(xs) == 1 else xs), **kwargs)

    compare(Attention(16, 4, batch_first=True), *inputs, training=training, **kwargs)


@pytest.mark.parametrize("training", [True, False])
def test_multi_head_attention_options(training):
    torch.manual_seed(0)
    m = nn.MultiheadAttention(16, 4, kdim=8, vdim=12, add_bias_kv=True, add_zero_attn=True, dropout=0.2)
    compare(m, torch.randn(5, 3, 16), torch.randn(6, 3, 8), torch.randn(6, 3, 12), training=training)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}, {"bias": False}])
@pytest.mark.parametrize(
    "kwargs",
    [
        {}, {"src_key_padding_mask": PADDING}, {"src_mask": CAUSAL},
        {"src_mask": CAUSAL, "src_key_padding_mask": PADDING},
        {"src_mask": nn.Transformer.generate_square_subsequent_mask(6), "is_causal": True},
    ],
)  # fmt: skip
def test_encoder_layer(training, options, kwargs):
    compare(layer(**options), torch.randn(3, 6, 16), training=training, **kwargs)


@pytest.mark.parametrize("training", [True, False])
def test_stacks(training):
    x, y = torch.randn(3, 6, 16), torch.randn(3, 4, 16)
    compare(nn.TransformerEncoder(layer(), 2), x, training=training)
    compare(nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2), x, y, training=training)
    compare(nn.Transformer(16, 4, 1, 1, 32, batch_first=True), x, y, training=training)


def test_encoder_with_padding_in_inference():
    """torch CPU makes a nested tensor here and pads its result with zeros; the positions that are not padded agree."""
    m = nn.TransformerEncoder(layer(), 2).eval()
    d, x = copy.deepcopy(m).to("mindspore"), torch.randn(3, 6, 16)
    with torch.no_grad():
        expected = m(x, src_key_padding_mask=PADDING)
        received = d(x.to("mindspore"), src_key_padding_mask=PADDING.to("mindspore")).cpu()
    torch.testing.assert_close(received[~PADDING], expected[~PADDING], rtol=1e-4, atol=1e-5)
