"""A Transformer encoder that classifies padded sequences."""

import math

import torch
import torch.nn.functional as F
from torch import nn

PADDING = 0


def sinusoids(length, width):
    """The position encodings (length, width) of "Attention Is All You Need"."""
    position = torch.arange(length)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    encoding = torch.zeros(length, width)
    encoding[:, 0::2] = torch.sin(position * frequency)
    encoding[:, 1::2] = torch.cos(position * frequency)
    return encoding


class TransformerClassifier(nn.Module):
    """Tokens (N, T), 0 where padded -> (N, classes)."""

    def __init__(self, vocabulary=1000, classes=4, width=128, heads=4, layers=2, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.register_buffer("positions", sinusoids(512, width))
        layer = nn.TransformerEncoderLayer(width, heads, dim_feedforward=4 * width, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        padded = tokens == PADDING
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        x = self.encoder(x, src_key_padding_mask=padded)
        kept = (~padded).unsqueeze(-1).to(x.dtype)
        return self.head((x * kept).sum(dim=1) / kept.sum(dim=1))


def batch(generator):
    tokens = torch.randint(1, 100, (4, 10), generator=generator)
    lengths = torch.tensor([10, 4, 7, 1])
    tokens = tokens.masked_fill(torch.arange(10) >= lengths[:, None], PADDING)
    return tokens, torch.randint(4, (4,), generator=generator)


def loss(module, batch):
    tokens, labels = batch
    return F.cross_entropy(module(tokens), labels)
