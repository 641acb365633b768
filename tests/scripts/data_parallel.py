"""nn.DataParallel with every idiom around it, and data made with .cuda()."""

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn

cudnn.benchmark = True
cudnn.deterministic = True
torch.manual_seed(0)
if torch.cuda.is_available():
    torch.cuda.manual_seed_all(0)
    print("Let's use", torch.cuda.device_count(), "GPU(s):", torch.cuda.get_device_properties(0).name)

model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.BatchNorm1d(20), nn.Linear(20, 3))
criterion = nn.CrossEntropyLoss()
if torch.cuda.is_available():
    model = nn.DataParallel(model).cuda()
    criterion = criterion.cuda()
    assert next(model.parameters()).is_cuda
else:
    model = nn.DataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)

inputs, target = torch.randn(30, 10), torch.randint(0, 3, (30,))
if torch.cuda.is_available():
    target = target.cuda(non_blocking=True)
for i in range(4):
    output = model(inputs)
    loss = criterion(output, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"result: {loss.item():.7f}")

weights = model.module.state_dict()
assert list(model.state_dict()) == ["module." + k for k in weights]
print(f"result: {sum(w.double().abs().sum().item() for w in weights.values()):.6f}")
