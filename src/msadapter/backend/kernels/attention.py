"""Attention: the fused scaled dot product, and the inference paths of nn.MultiheadAttention and encoders."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from ..registry import LIB, Decline, aten, kernel, raw
from ..storage import constant, ms, read, read_fresh, wrap, wrap_strided
from ..tracing import traced
from .linalg import add_bias, multiply
from .reduction import sum_along
from .softmax import softmax_of

_MUL, _SUB, _FILL, _TILE = ms.ops.Mul(), ms.ops.Sub(), ms.ops.MaskedFill(), ms.ops.Tile()
_NOT, _EQUAL, _ANY, _ALL = ms.ops.LogicalNot(), ms.ops.Equal(), ms.ops.ReduceAny(True), ms.ops.ReduceAll(True)

# --------------------------------------------------------------------------------------- scaled dot product attention


def _fill(scores, hidden, dtype, value=-math.inf):
    """scores with `value` where the bool host array `hidden` (broadcast to scores) is true."""
    padded = (1,) * (scores.ndim - hidden.ndim) + hidden.shape
    repeats = tuple(n // m for n, m in zip(scores.shape, padded))
    return _FILL(scores, _TILE(ms.Tensor.from_numpy(hidden.reshape(padded)), repeats), constant(value, dtype))


@raw("_scaled_dot_product_fused_attention_overrideable")
def fused(query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """(output, probabilities, ...): the slot that CUDA uses for the log-sum-exp holds what our backward needs."""
    dtype, shape = query.dtype, (*query.shape[:-1], key.shape[-2])
    scores = multiply(_MUL(read(query), constant(_scale(query, scale), dtype)), read(key), False, True)
    dead = None
    if is_causal:
        scores = _fill(scores, np.triu(np.ones(shape[-2:], bool), 1), dtype)
    elif attn_bias is not None and traced(read(attn_bias)):
        return _masked_in_graph(query, key, value, scores, attn_bias)
    elif attn_bias is not None:
        mask = read(attn_bias).asnumpy()
        alive = mask if attn_bias.dtype is torch.bool else mask != -math.inf
        dead = ~alive.any(-1, keepdims=True)
        if attn_bias.dtype is torch.bool:
            scores = _fill(scores, ~(mask | dead), dtype)
        else:
            scores = add_bias(scores, ms.Tensor.from_numpy(np.where(dead, 0, mask)) if dead.any() else read(attn_bias))
    p = softmax_of(scores, -1)
    if dead is not None and dead.any():
        p = _fill(p, dead, dtype, 0)  # a row that may look at nothing gives zeros
    return _laid_out(multiply(p, read(value)), query), wrap(p), None, None, shape[-2], shape[-1], None, None, None


def _masked_in_graph(query, key, value, scores, mask):
    """The same for a mask whose values are not known: a row that may look at nothing comes out NaN and is set to zero."""
    v, low = read(mask), constant(-math.inf, query.dtype)
    if mask.dtype is torch.bool:
        dead = _NOT(_ANY(v, (-1,)))
        scores = _FILL(scores, _NOT(v), low)
    else:
        dead = _ALL(_EQUAL(v, low), (-1,))
        scores = add_bias(scores, v)
    p = _FILL(softmax_of(scores, -1), dead, constant(0, query.dtype))
    out = _laid_out(multiply(p, read(value)), query)
    return out, wrap(p), None, None, scores.shape[-2], scores.shape[-1], None, None, None


def _laid_out(v, x):
    """v with its dimensions in memory in the order of x's, as torch's Meta kernels say."""
    if x.is_contiguous():
        return wrap(v)
    strides, step = [0] * x.dim(), 1
    for d in sorted(range(x.dim()), key=x.stride().__getitem__, reverse=True)[::-1]:
        strides[d] = step
        step *= v.shape[d]
    return wrap_strided(v, tuple(strides))


def _scale(query, scale):
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


@raw("_scaled_dot_product_fused_attention_overrideable_backward")
def fused_backward(grad, query, key, value, attn_bias, wanted, out, probabilities, *args, scale=None):
    dtype = query.dtype
    g, p, q, k = read(grad), read(probabilities), read(query), read(key)
    dv = multiply(p, g, True)
    dp = _MUL(p, multiply(g, read(value), False, True))
    rows = sum_along(dp, dp.ndim - 1)
    ds = _MUL(_SUB(dp, _MUL(p, _TILE(rows, (1, 1, 1, p.shape[-1])))), constant(_scale(query, scale), dtype))
    return _laid_out(multiply(ds, k), query), _laid_out(multiply(ds, q, True), key), _laid_out(dv, value), None


_SDPA = aten.scaled_dot_product_attention.default


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """torch's composite, with the fused kernel in place of its math where that covers the call."""
    fusible = _fusible(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    traced = attn_mask is not None and type(query) is not torch.Tensor  # by torch.compile, for masks of other values
    if fusible and not traced:
        return aten._scaled_dot_product_fused_attention_overrideable(
            query, key, value, attn_mask, 0.0, is_causal, False, scale=scale
        )[0]
    result = _SDPA.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if fusible:  # with the strides that the fused kernel gives
        order = sorted(range(4), key=query.stride().__getitem__, reverse=True)
        result = result.permute(order).contiguous().permute([order.index(d) for d in range(4)])
    return result


def _fusible(q, k, v, mask, dropout_p, is_causal, enable_gqa):
    if q.dim() != 4 or dropout_p or enable_gqa or q.dtype not in (torch.float32, torch.float64):
        return False
    if not (q.dtype is k.dtype is v.dtype) or not (q.shape[:2] == k.shape[:2] == v.shape[:2]) or not q.numel():
        return False
    if k.shape[2] != v.shape[2] or q.shape[3] != k.shape[3] or not k.numel():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:  # its transforms know the composite only
        return False
    if mask is None:
        return True
    if is_causal or mask.requires_grad or mask.dtype not in (torch.bool, q.dtype) or mask.dim() > 4 or mask.dim() < 2:
        return False
    full = (*q.shape[:3], k.shape[2])
    return all(m in (1, n) for m, n in zip(mask.shape[::-1], full[::-1]))


for _key in ("PrivateUse1", "AutogradPrivateUse1"):
    LIB.impl("scaled_dot_product_attention", _attention, _key)


# -------------------------------------------------------------------------------- the inference path of nn.Transformer


def _heads(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _self_attention(query, key, value, embed_dim, num_heads, qkv_weight, qkv_bias, mask, mask_type):
    """(heads' outputs side by side, attention weights per head). A true mask element hides a position."""
    if query is key is value:
        q, k, v = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3))
        q, k, v = (F.linear(x, w, b) for x, w, b in parts)
    q, k, v = (_heads(x, num_heads) for x in (q, k, v))
    scores = torch.matmul(q * (embed_dim / num_heads) ** -0.5, k.transpose(-2, -1))
    if mask is not None:
        if mask_type not in (0, 1, 2):
            raise Decline("expected a mask type")
        hidden = mask.bool()
        scores = scores.masked_fill(hidden[:, None, None] if mask_type == 1 else hidden, -math.inf)
    weights = torch.softmax(scores, -1)
    return torch.matmul(weights, v).transpose(1, 2).flatten(2), weights


@kernel("_native_multi_head_attention", variants=False)
def multi_head_attention(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias,
                         mask=None, need_weights=True, average_attn_weights=True, mask_type=None):  # fmt: skip
    out, weights = _self_attention(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, mask, mask_type)
    out = F.linear(out, proj_weight, proj_bias)
    if not need_weights:
        return read_fresh(out), None
    return read_fresh(out), read_fresh(weights.mean(1) if average_attn_weights else weights)


@kernel("_transformer_encoder_layer_fwd", variants=False)
def encoder_layer(src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps,
                  norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2,
                  ffn_bias_2, mask=None, mask_type=None):  # fmt: skip
    def attend(x):
        y, _ = _self_attention(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, mask, mask_type)
        return F.linear(y, proj_weight, proj_bias)

    def feed(x):
        x = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(x) if use_gelu else F.relu(x), ffn_weight_2, ffn_bias_2)

    def norm(x, weight, bias):
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = attend(norm(src, norm_weight_1, norm_bias_1)).add_(src)
        return read_fresh(feed(norm(x, norm_weight_2, norm_bias_2)).add_(x))
    x = norm(attend(src).add_(src), norm_weight_1, norm_bias_1)
    return read_fresh(norm(feed(x).add_(x), norm_weight_2, norm_bias_2))


@raw("_nested_tensor_from_mask_left_aligned")
def nested_tensor_from_mask_left_aligned(x, mask):
    """nn.TransformerEncoder asks this before it makes a nested tensor, which this device does not have: no."""
    return False
