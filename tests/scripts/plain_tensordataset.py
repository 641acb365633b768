"""Never mentions a device: DataLoader over a TensorDataset, workers, an MLP."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    X = torch.randn(96, 10)
    y = (X[:, 0] * X[:, 1] > 0).long()
    loader = DataLoader(TensorDataset(X, y), batch_size=16, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        total = 0.0
        for xb, yb in loader:
            loss = loss_fn(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(xb)
        print(f"result: epoch {epoch} {total / len(X):.7f}")
    model.eval()
    with torch.no_grad():
        print(f"result: {(model(X).argmax(1) == y).float().mean():.4f}")


if __name__ == "__main__":
    main()
