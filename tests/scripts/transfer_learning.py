"""Freeze a body, train a head, early stopping with deepcopy, everything moved with .cuda() when there is one."""

import copy

import torch
import torch.nn as nn

torch.manual_seed(0)
use_gpu = torch.cuda.is_available()


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(3, 6, 3, padding=1)
        self.features = nn.Sequential(conv, nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.fc = nn.Linear(24, 10)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


model = Body()
for param in model.parameters():
    param.requires_grad = False
model.fc = nn.Linear(model.fc.in_features, 2)
images, labels = torch.randn(24, 3, 8, 8), torch.randint(0, 2, (24,))
if use_gpu:
    model, images, labels = model.cuda(), images.cuda(), labels.cuda()

optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=0.05)
best, best_loss = copy.deepcopy(model.state_dict()), float("inf")
for epoch in range(5):
    for phase in ("train", "val"):
        model.train(phase == "train")
        with torch.set_grad_enabled(phase == "train"):
            outputs = model(images)
            _, preds = torch.max(outputs, 1)
            loss = nn.functional.cross_entropy(outputs, labels)
            if phase == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        running_corrects = torch.sum(preds == labels.data)
    if loss.item() < best_loss:
        best, best_loss = copy.deepcopy(model.state_dict()), loss.item()
    print(f"result: {loss.item():.7f} {running_corrects.double().item() / len(labels):.4f}")
model.load_state_dict(best)
assert model.features[0].weight.grad is None and model.fc.weight.grad is not None
