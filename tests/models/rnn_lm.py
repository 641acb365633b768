"""The recurrent language model: predicts the next token with an LSTM or a GRU."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

IGNORED = -100
VOCABULARY = 50


class RecurrentLM(nn.Module):
    """Tokens (N, T) -> logits (N, T, vocabulary).

    With `lengths` (N,), on the CPU, the padding after each sequence is skipped.
    """

    def __init__(self, cell, vocabulary=VOCABULARY, width=128, layers=2, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.rnn = cell(width, width, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, lengths=None):
        x = self.dropout(self.embedding(tokens))
        if lengths is None:
            x, _ = self.rnn(x)
        else:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            packed, _ = self.rnn(packed)
            x, _ = pad_packed_sequence(packed, batch_first=True, total_length=tokens.shape[1])
        return self.head(self.dropout(x))


def batch(generator):
    """Sequences of one length: tokens and the tokens that follow them, both (N, T)."""
    text = torch.randint(VOCABULARY, (4, 13), generator=generator)
    return text[:, :-1], text[:, 1:]


def loss(module, batch):
    tokens, following = batch
    return F.cross_entropy(module(tokens).flatten(0, 1), following.flatten())


def padded_batch(generator):
    """Sequences of several lengths, padded; the targets of the padding are ignored."""
    tokens, following = batch(generator)
    lengths = torch.tensor([12, 5, 9, 1])
    padding = torch.arange(12) >= lengths[:, None]
    return tokens.masked_fill(padding, 0), following.masked_fill(padding, IGNORED)


def padded_loss(module, batch):
    tokens, following = batch
    lengths = (following != IGNORED).sum(dim=1).cpu()
    logits = module(tokens, lengths)
    return F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=IGNORED)
