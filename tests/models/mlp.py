"""A multilayer perceptron for 28x28 digits."""

from torch import nn


class MLP(nn.Module):
    """(N, 1, 28, 28) -> (N, classes)."""

    def __init__(self, hidden=512, classes=10, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(28 * 28, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, x):
        return self.layers(x)
