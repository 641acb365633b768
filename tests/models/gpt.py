"""A GPT-2-like decoder; the output layer shares the token embedding's weight."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class CausalSelfAttention(nn.Module):
    """(N, T, width) -> (N, T, width), by one fused call or written out with a mask."""

    def __init__(self, width, heads, context, dropout, fused):
        super().__init__()
        self.heads, self.p, self.fused = heads, dropout, fused
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        if not fused:
            self.register_buffer("mask", torch.tril(torch.ones(context, context)))

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = (
            part.view(n, t, self.heads, width // self.heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2)
        )
        if self.fused:
            p = self.p if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
            scores = scores.masked_fill(self.mask[:t, :t] == 0, float("-inf"))
            y = self.dropout(torch.softmax(scores, dim=-1)) @ v
        return self.dropout(self.proj(y.transpose(1, 2).reshape(n, t, width)))


class Block(nn.Module):
    def __init__(self, width, heads, context, dropout, fused):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads, context, dropout, fused)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens (N, T) -> logits (N, T, vocabulary)."""

    def __init__(
        self,
        vocabulary=50257,
        context=1024,
        width=768,
        heads=12,
        layers=12,
        dropout=0.1,
        fused=True,
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, context, dropout, fused) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._init)

    @staticmethod
    def _init(module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        return self.head(self.norm(self.blocks(x)))


def batch(generator):
    text = torch.randint(64, (2, 17), generator=generator)
    return text[:, :-1], text[:, 1:]


def loss(module, batch):
    tokens, following = batch
    return F.cross_entropy(module(tokens).flatten(0, 1), following.flatten())
