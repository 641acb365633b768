"""One rank of test_reducer.py, under msrun: writes rank<i>.json into the folder argv[1]."""

import json
import sys

import msadapter.pytorch as torch

import mindspore  # isort: skip
from mindspore import nn as ms_nn
from mindspore.communication import get_rank, init

from msadapter.pytorch import nn

torch.set_num_threads(1)
init("mccl")
rank = get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x, y = torch.randn(8, 3), torch.randn(8, 2)
mine = slice(4 * rank, 4 * rank + 4)


def forward(x, y):
    return nn.functional.mse_loss(model(x), y)


value_and_grad = mindspore.value_and_grad(forward, None, optimizer.parameters)
reducer = ms_nn.DistributedGradReducer(optimizer.parameters)
results = {}
for step in range(3):
    _, grads = value_and_grad(x[mine], y[mine])
    grads = reducer(grads)
    optimizer(grads)
results["weights"] = [p.tolist() for p in model.parameters()]

own = tuple(torch.full_like(p, rank + 1.0) for p in optimizer.parameters)
results["sum"] = ms_nn.DistributedGradReducer(optimizer.parameters, mean=False)(own)[0].flatten()[0].item()
results["degree"] = ms_nn.DistributedGradReducer(optimizer.parameters, True, 4)(own)[0].flatten()[0].item()
mixed = tuple(g.to(t) for g, t in zip(own, (torch.float16, torch.float64, torch.float32, torch.bfloat16)))
reduced = reducer(mixed)
results["dtypes"] = [str(g.dtype) for g in reduced]
results["mean"] = [g.flatten()[0].item() for g in reduced]
with open(f"{sys.argv[1]}/rank{rank}.json", "w") as file:
    json.dump(results, file)
