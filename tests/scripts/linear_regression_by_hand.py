"""Linear regression with nothing but autograd: weights from NumPy and from torch, .data updates, .grad.zero_()."""

import numpy as np
import torch
from torch.autograd import Variable

rng = np.random.RandomState(0)
X = rng.rand(50, 3).astype(np.float32)
true_w = np.array([[2.0], [-1.0], [0.5]], dtype=np.float32)
Y = X @ true_w + 0.3

x, y = torch.from_numpy(X), torch.from_numpy(Y)
torch.manual_seed(0)
w = torch.randn(3, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for i in range(60):
    loss = torch.mean((x.mm(w) + b - y) ** 2)
    loss.backward()
    w.data -= 0.3 * w.grad.data
    b.data.sub_(0.3 * b.grad)
    w.grad.zero_()
    b.grad.zero_()
    if i % 20 == 0:
        print(f"result: {loss.item():.7f}")
print("result:", " ".join(f"{v:.6f}" for v in [*w.flatten().tolist(), b.item()]))

# the same with weights that start in NumPy: their gradients come back to them
v = torch.from_numpy(np.zeros((3, 1), np.float32)).requires_grad_()
c = Variable(torch.Tensor([0.0]), requires_grad=True)
data = torch.tensor(X)
for _ in range(20):
    loss = torch.mean((data.mm(v) + c - torch.tensor(Y)) ** 2)
    loss.backward()
    assert v.grad is not None and c.grad is not None
    with torch.no_grad():
        v -= 0.3 * v.grad
        c -= 0.3 * c.grad
    v.grad = c.grad = None
print("result:", " ".join(f"{t:.6f}" for t in [*v.detach().numpy().ravel(), c.item()]))
