"""A language model with two GRU layers."""

from torch import nn

from .rnn_lm import RecurrentLM


class GRULM(RecurrentLM):
    def __init__(self, **options):
        super().__init__(nn.GRU, **options)
