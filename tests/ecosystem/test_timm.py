"""Architectures of timm, narrow and shallow, train on the device as on the CPU, natively."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

timm = pytest.importorskip("timm", exc_type=ImportError)

from timm.data import Mixup  # noqa: E402
from timm.loss import SoftTargetCrossEntropy  # noqa: E402
from timm.models import byobnet, hrnet, metaformer, mlp_mixer, xception_aligned  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.utils import ModelEmaV3  # noqa: E402

from .step import Case, check  # noqa: E402

CLASSES = 10
VIT = dict(img_size=32, patch_size=8, depth=2, embed_dim=48, num_heads=3)
XCEPTION = [
    dict(in_chs=64, out_chs=24, stride=2),
    dict(in_chs=24, out_chs=32, stride=2),
    dict(in_chs=32, out_chs=32, stride=1),
    dict(in_chs=32, out_chs=(40, 40, 48), stride=1, no_skip=True, start_with_relu=False),
]


def high_resolution_stage(modules, branches):
    return dict(
        num_modules=modules, num_branches=branches, block_type="BASIC", num_blocks=(1,) * branches,
        num_channels=(8, 16, 32, 64)[:branches], fuse_method="SUM",
    )  # fmt: skip


HRNET = dict(
    stem_width=16,
    stage1=dict(num_modules=1, num_branches=1, block_type="BOTTLENECK", num_blocks=(1,), num_channels=(8,), fuse_method="SUM"),
    stage2=high_resolution_stage(1, 2),
    stage3=high_resolution_stage(1, 3),
    stage4=high_resolution_stage(1, 4),
)

# name: (image size, arguments that make timm's model small, or a function that builds a small one)
MODELS = {
    "resnet18": (64, dict(layers=(1, 1, 1, 1), channels=(16, 32, 64, 128))),
    "resnext50_32x4d": (64, dict(layers=(1, 1, 1, 1))),
    "resnetv2_50": (64, dict(layers=(1, 1, 1, 1), channels=(32, 64, 128, 256), stem_chs=16)),
    "res2net50_26w_4s": (64, dict(layers=(1, 1, 1, 1))),
    "test_efficientnet": (64, {}),
    "mobilenetv3_small_050": (64, {}),
    "ghostnet_050": (64, {}),
    "regnety_002": (64, {}),
    "densenet121": (64, dict(growth_rate=8, block_config=(2, 2, 2, 2))),
    "vgg11_bn": (64, dict(mlp_ratio=1 / 64)),
    "dla34": (64, dict(levels=(1, 1, 1, 1, 1, 1), channels=(8, 8, 16, 32, 64, 64))),
    "cspresnet50": (64, {}),
    "test_nfnet": (64, {}),
    "xception": (
        64,
        lambda: xception_aligned.XceptionAligned([dict(c) for c in XCEPTION], num_classes=CLASSES),
    ),
    "hrnet": (64, lambda: hrnet.HighResolutionNet(HRNET, num_classes=CLASSES, head="classification")),
    "repvgg": (
        64,
        lambda: byobnet.ByobNet(
            byobnet.ByoModelCfg(
                blocks=byobnet._rep_vgg_bcfg(d=(1, 1, 2, 1), wf=(0.25,) * 4), stem_type="rep", stem_chs=16
            ),
            num_classes=CLASSES,
        ),
    ),
    "convnext_atto": (64, dict(depths=(1, 1, 2, 1), drop_path_rate=0.1)),
    "vit_tiny_patch16_224": (32, VIT),
    "deit_tiny_distilled_patch16_224": (32, VIT),
    "beit_base_patch16_224": (32, VIT),
    "swin_tiny_patch4_window7_224": (32, dict(img_size=32, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(2, 4))),
    "mixer": (
        32,
        lambda: mlp_mixer.MlpMixer(img_size=32, patch_size=8, num_blocks=2, embed_dim=48, num_classes=CLASSES),
    ),
    "coatnet_nano_rw_224": (64, dict(img_size=64, embed_dim=(16, 32, 64, 64), depths=(1, 1, 1, 1), stem_width=(8, 16))),
    "maxvit_pico_rw_256": (64, dict(img_size=64, embed_dim=(32, 32, 64, 64), depths=(1, 1, 1, 1))),
    "poolformer": (
        64,
        lambda: metaformer.MetaFormer(
            depths=(1, 1, 1, 1), dims=(16, 32, 64, 64), downsample_norm=None, mlp_act=torch.nn.GELU, mlp_bias=True,
            norm_layers=metaformer.GroupNorm1, layer_scale_init_values=1e-5, res_scale_init_values=None,
            use_mlp_head=False, num_classes=CLASSES,
        ),
    ),
}  # fmt: skip

# A ReLU whose input is zero but for rounding passes its gradient on one side only. These draws have none that shows.
SEEDS = {"ghostnet_050": 1, "vgg11_bn": 3}


def case(name):
    size, small = MODELS[name]
    return Case(
        build=small if callable(small) else lambda: timm.create_model(name, num_classes=CLASSES, **small),
        batch=lambda: (torch.randn(4, 3, size, size), torch.randint(CLASSES, (4,))),
        loss=lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]),
        optimizer="adamw" if size == 32 else "sgd",
        seed=SEEDS.get(name, 0),
    )


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name, device):
    check(case(name), device)


@pytest.mark.parametrize("optimizer", ["lamb", "adamp", "lion", "adopt", "nadamw", "sgdp", "madgrad"])
def test_optimizer_mixup_and_average(optimizer, device, native):
    """timm's own optimizers, its mixing of images and labels, its moving average; images in channels last."""
    torch.manual_seed(0)
    small = dict(layers=(1, 1, 1, 1), channels=(8, 8, 16, 16), act_layer=torch.nn.SiLU)  # ReLU: a rounding may flip a zero
    host = timm.create_model("resnet18", num_classes=CLASSES, **small).to(memory_format=torch.channels_last)
    module = copy.deepcopy(host).to(device)
    images, labels = torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last), torch.randint(CLASSES, (4,))

    def step(module, gradients=None):
        place = next(module.parameters()).device
        np.random.seed(0)  # Mixup draws from NumPy
        x, y = Mixup(num_classes=CLASSES, cutmix_alpha=1.0)(images.clone().to(place), labels.to(place))
        average = ModelEmaV3(module, decay=0.9)
        updates = create_optimizer_v2(module, opt=optimizer, lr=1e-2, weight_decay=0.01)
        SoftTargetCrossEntropy()(module(x), y).backward()
        own = [p.grad.cpu() for p in module.parameters()]
        for p, g in zip(module.parameters(), gradients or own):  # a step may be a gradient's sign: see step.py
            p.grad.copy_(g)
        updates.step()
        average.update(module)
        return own, [*module.parameters(), *average.module.parameters()]

    expected, state = step(host)
    with native():
        gradients, moved = step(module, expected)
    for a, e in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)
    for a, e in zip(moved, state, strict=True):
        assert a.device.type == device.type
        torch.testing.assert_close(a.cpu(), e, rtol=1e-5, atol=1e-6)
