"""ResNet-18 (He et al., 2015)."""

import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """(N, channels, H, W) -> (N, classes).

    `small_images` replaces the 7x7 stride-2 stem and its pooling by a 3x3 convolution.
    """

    def __init__(self, classes=1000, channels=3, width=64, small_images=False):
        super().__init__()
        if small_images:
            stem = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        else:
            stem = [nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)]
        stem += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if not small_images:
            stem += [nn.MaxPool2d(3, stride=2, padding=1)]
        self.stem = nn.Sequential(*stem)

        blocks, inputs = [], width
        for stage in range(4):
            outputs = width * 2**stage
            stride = 1 if stage == 0 else 2
            blocks += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.blocks(self.stem(x))
        return self.fc(self.pool(x).flatten(1))
