"""`import msadapter.pytorch as torch`: PyTorch itself, computing on the `mindspore` device without being told.

The default device is `mindspore`, and a host tensor that meets a device tensor is moved (backend/implicit.py). The
module that this import gives is torch: `msadapter.pytorch.nn.Linear is torch.nn.Linear`. It also lets MindSpore's
training functions take torch objects (compat/).
"""

import torch  # noqa: F401

from .. import compat
from ..alias import make_alias
from ..backend import implicit

implicit.enable()
compat.install()
make_alias(__name__, "torch")
