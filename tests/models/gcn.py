"""A graph convolutional network (Kipf and Welling, 2017) on an edge list."""

import torch
import torch.nn.functional as F
from torch import nn


class GraphConv(nn.Module):
    """Node features (V, inputs), edges (2, E), edge weights (E,) -> (V, outputs)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x, edges, weights):
        source, target = edges
        x = self.linear(x)
        messages = x.index_select(0, source) * weights[:, None]
        return torch.zeros_like(x).index_add(0, target, messages) + self.bias


class GCN(nn.Module):
    """Node features (V, inputs), edges (2, E) -> the classes of the nodes (V, classes)."""

    def __init__(self, inputs=16, hidden=32, classes=4, dropout=0.5):
        super().__init__()
        self.conv1 = GraphConv(inputs, hidden)
        self.conv2 = GraphConv(hidden, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, edges):
        loops = torch.arange(len(x), device=x.device).expand(2, -1)
        edges = torch.cat([edges, loops], dim=1)
        weights = symmetric_norm(edges, len(x), x.dtype)
        x = F.relu(self.conv1(x, edges, weights))
        return self.conv2(self.dropout(x), edges, weights)


def symmetric_norm(edges, nodes, dtype):
    """The weight 1 / sqrt(degree(source) * degree(target)) of each edge, (E,)."""
    source, target = edges
    ones = torch.ones(edges.shape[1], dtype=dtype, device=edges.device)
    degree = torch.zeros(nodes, dtype=dtype, device=edges.device).scatter_add(0, target, ones)
    scale = degree.rsqrt()
    return scale[source] * scale[target]


def batch(generator):
    """A graph whose nodes are labelled for one half of them only."""
    nodes = 24
    x = torch.randn(nodes, 16, generator=generator)
    edges = torch.randint(nodes, (2, 80), generator=generator)
    labels = torch.randint(4, (nodes,), generator=generator)
    known = torch.rand(nodes, generator=generator) < 0.5
    return x, edges, labels, known


def loss(module, batch):
    x, edges, labels, known = batch
    return F.cross_entropy(module(x, edges)[known], labels[known])
