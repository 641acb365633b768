"""A vision Transformer (Dosovitskiy et al., 2020)."""

import torch
from torch import nn


class ViT(nn.Module):
    """(N, channels, size, size) -> (N, classes)."""

    def __init__(self, size=224, patch=16, channels=3, classes=1000, width=768, heads=12, layers=12, dropout=0.1):
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, (size // patch) ** 2 + 1, width))
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)
        x = self.encoder(self.dropout(x + self.positions))
        return self.head(self.norm(x[:, 0]))
