"""A language model with two LSTM layers."""

from torch import nn

from .rnn_lm import RecurrentLM


class LSTMLM(RecurrentLM):
    def __init__(self, **options):
        super().__init__(nn.LSTM, **options)
