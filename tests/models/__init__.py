"""Models written in plain PyTorch, each in its file, and the table of cases that train them."""

from . import classify, dcgan, gcn, gpt, rnn_lm, siamese, transformer, unet, vae
from .case import Case
from .classify import image_batch
from .dcgan import DCGAN
from .gcn import GCN
from .gpt import GPT
from .gru_lm import GRULM
from .lenet import LeNet5
from .lstm_lm import LSTMLM
from .mlp import MLP
from .mobilenet import MobileNet
from .resnet import ResNet18
from .siamese import Siamese
from .transformer import TransformerClassifier
from .unet import UNet
from .vae import VAE
from .vit import ViT


def small_gpt(fused):
    return GPT(vocabulary=64, context=32, width=32, heads=4, layers=2, fused=fused)


CASES = {
    "mlp": Case(MLP, image_batch(8, 1, 28), classify.loss),
    "mlp_dropout": Case(lambda: MLP(dropout=0.2), image_batch(8, 1, 28), classify.loss),
    "lenet": Case(LeNet5, image_batch(4, 1, 28), classify.loss),
    "resnet18": Case(lambda: ResNet18(10, width=8), image_batch(8, 3, 64), classify.loss),
    "resnet18_small_images": Case(
        lambda: ResNet18(10, width=8, small_images=True), image_batch(4, 3, 16), classify.loss
    ),
    "mobilenet": Case(lambda: MobileNet(width=8), image_batch(4, 3, 16), classify.loss),
    "unet": Case(lambda: UNet(width=8, depth=2), unet.batch, unet.loss),
    "dcgan": Case(lambda: DCGAN(latent=16, width=8), dcgan.batch, dcgan.loss),
    "vae": Case(lambda: VAE(hidden=64, latent=8), vae.batch, vae.loss),
    "lstm_lm": Case(lambda: LSTMLM(width=32), rnn_lm.batch, rnn_lm.loss),
    "gru_lm": Case(lambda: GRULM(width=32), rnn_lm.batch, rnn_lm.loss),
    "gru_lm_packed": Case(lambda: GRULM(width=32), rnn_lm.padded_batch, rnn_lm.padded_loss),
    "transformer": Case(
        lambda: TransformerClassifier(vocabulary=100, width=32),
        transformer.batch,
        transformer.loss,
    ),
    "vit": Case(
        lambda: ViT(size=16, patch=4, classes=10, width=32, heads=4, layers=2),
        image_batch(2, 3, 16),
        classify.loss,
    ),
    "gpt": Case(lambda: small_gpt(fused=True), gpt.batch, gpt.loss),
    "gpt_manual": Case(lambda: small_gpt(fused=False), gpt.batch, gpt.loss),
    "gcn": Case(GCN, gcn.batch, gcn.loss),
    "siamese": Case(Siamese, siamese.batch, siamese.loss),
}
