"""A small network of depthwise-separable convolutions, after MobileNet."""

from torch import nn


def conv_bn(inputs, outputs, kernel, stride=1, groups=1):
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    ]


def separable(inputs, outputs, stride):
    """A 3x3 convolution of each channel alone, then a 1x1 convolution that mixes them."""
    return conv_bn(inputs, inputs, 3, stride, groups=inputs) + conv_bn(inputs, outputs, 1)


class MobileNet(nn.Module):
    """(N, 3, H, W) -> (N, classes)."""

    def __init__(self, classes=10, width=32):
        super().__init__()
        self.features = nn.Sequential(
            *conv_bn(3, width, 3, stride=2),
            *separable(width, width * 2, stride=1),
            *separable(width * 2, width * 4, stride=2),
            *separable(width * 4, width * 4, stride=1),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(width * 4, classes))

    def forward(self, x):
        return self.head(self.pool(self.features(x)).flatten(1))
