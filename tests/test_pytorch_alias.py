"""`import msadapter.pytorch as torch` is PyTorch itself, with the device as the default."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = str(Path(__file__).parent.parent / "src")
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [SRC, os.environ.get("PYTHONPATH")]))}


def python(source):
    """Run source in a process of its own: the alias changes the whole process."""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=ENV, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_form_of_import_gives_torchs_own_objects():
    python(
        "import msadapter.pytorch as torch\n"
        "import msadapter.pytorch.nn.functional as F, msadapter.pytorch.nn as nn\n"
        "import msadapter.pytorch.utils.data.distributed\n"
        "from msadapter.pytorch import nn as nn2, optim\n"
        "from msadapter.pytorch.utils.data import DataLoader\n"
        "from msadapter.pytorch.optim.lr_scheduler import StepLR\n"
        "import msadapter, sys, torch as real\n"
        "assert torch is real is msadapter.pytorch is sys.modules['msadapter.pytorch']\n"
        "assert F is real.nn.functional and nn is nn2 is real.nn and optim is real.optim\n"
        "assert DataLoader is real.utils.data.DataLoader and StepLR is real.optim.lr_scheduler.StepLR\n"
        "assert sys.modules['msadapter.pytorch.nn'] is sys.modules['torch.nn']\n"
        "assert real.nn.__name__ == real.nn.__spec__.name == 'torch.nn' and real.__spec__.name == 'torch'\n"
    )


def test_monkeypatches_and_pickles_are_torchs():
    python(
        "import pickle, torch\n"
        "import msadapter.pytorch as mt, msadapter.pytorch.nn.functional as F\n"
        "mt.answer = 42\n"
        "F.answer = 43\n"
        "assert (torch.answer, torch.nn.functional.answer) == (42, 43)\n"
        "assert b'msadapter' not in pickle.dumps(mt.nn.Linear(2, 2))\n"
        "assert pickle.loads(pickle.dumps(mt.nn.ReLU)) is torch.nn.ReLU\n"
    )


def test_default_device_and_host_tensors():
    out = python(
        "import numpy as np, torch\n"
        "print(torch.ones(1).device)\n"
        "import msadapter.pytorch as torch\n"
        "x = torch.from_numpy(np.ones((2, 3), np.float32))\n"
        "y = torch.nn.Linear(3, 4)(x)\n"
        "print(torch.ones(1).device, x.device, y.device, torch.cuda.is_available())\n"
        "print(y.detach().numpy().shape, np.asarray(torch.ones(2)).sum())\n"
    )
    assert out.splitlines() == ["cpu", "mindspore:0 cpu mindspore:0 False", "(2, 4) 2.0"]


@pytest.mark.parametrize("name", ["msadapter.pytorch.nope", "msadapter.pytorch.nn.nope", "msadapter.pytorch.nope.x"])
def test_a_module_that_does_not_exist(name):
    out = python(f"try:\n    import {name}\nexcept ModuleNotFoundError as e:\n    print(e)\n")
    assert out.startswith("No module named 'msadapter.pytorch.n")


def test_torchvision():
    pytest.importorskip("torchvision")
    python(
        "from msadapter.torchvision import datasets, transforms\n"
        "import msadapter.torchvision as tv, msadapter.torchvision.transforms.functional as TF\n"
        "import torchvision\n"
        "assert tv is torchvision and transforms is torchvision.transforms\n"
        "assert TF is torchvision.transforms.functional and datasets.MNIST is torchvision.datasets.MNIST\n"
    )


def test_without_torchvision():
    out = python(
        "import sys\n"
        "sys.modules['torchvision'] = None\n"
        "for statement in ('import msadapter.torchvision', 'from msadapter.torchvision import transforms'):\n"
        "    try:\n"
        "        exec(statement)\n"
        "    except ImportError as e:\n"
        "        print(e)\n"
    )
    assert out.count('pip install "msadapter[vision]"') == 2


def test_a_host_leaf_gets_its_gradient():
    out = python(
        "import numpy as np, threading\n"
        "import msadapter.pytorch as torch\n"
        "x = torch.ones(5, 4)\n"
        "w = torch.from_numpy(np.ones(4, np.float32)).requires_grad_()\n"
        "(x * w).sum().backward()\n"
        "print(w.grad)\n"
        "v = torch.from_numpy(np.ones(4, np.float32)).requires_grad_()\n"
        "def other_thread():\n"  # the default device is of one thread: an error there, never a silent None
        "    try:\n"
        "        (x * v).sum().backward()\n"
        "    except RuntimeError as e:\n"
        "        print('expected device cpu' in str(e))\n"
        "t = threading.Thread(target=other_thread); t.start(); t.join()\n"
        "print(v.grad)\n"
    )
    assert out.splitlines() == ["tensor([5., 5., 5., 5.])", "True", "None"]


def test_a_device_that_is_named_is_respected():
    out = python(
        "import msadapter.pytorch as torch\n"
        "with torch.device('cpu'):\n"
        "    print(torch.nn.Linear(2, 2).weight.device, torch.ones(2).device)\n"
        "m = torch.nn.Linear(2, 2)\n"
        "p = m.weight\n"
        "print(m.cpu().weight.device, m.weight is p, torch.ones(2, device='cpu').device)\n"
    )
    assert out.splitlines() == ["cpu cpu", "cpu True cpu"]


def test_a_checkpoint_written_on_cuda(tmp_path):
    out = python(
        "import torch, msadapter\n"
        f"path = {str(tmp_path / 'cuda.pt')!r}\n"
        "torch.serialization.location_tag, tag = (lambda storage: 'cuda:0'), torch.serialization.location_tag\n"
        "torch.save({'w': torch.arange(3.0)}, path)\n"
        "torch.serialization.location_tag = tag\n"
        "msadapter.enable(cuda_alias=True)\n"
        "for location in (None, 'cuda', 'cpu', {'cuda:0': 'cpu'}):\n"
        "    w = torch.load(path, map_location=location)['w']\n"
        "    print(w.device.type, w.sum().item())\n"
    )
    assert out.split() == ["mindspore", "3.0", "mindspore", "3.0", "cpu", "3.0", "cpu", "3.0"]


def test_enable_cuda_alias():
    out = python(
        "import msadapter, torch\n"
        "print(torch.cuda.is_available())\n"
        "msadapter.enable(cuda_alias=True)\n"
        "x = torch.ones(2).cuda()\n"
        "print(torch.cuda.is_available(), x.is_cuda, x.device, torch.ones(2).device)\n"
        "print(torch.zeros(2, device='cuda:0').device, torch.tensor([1], device=torch.device('cuda')).device)\n"
        "try:\n"
        "    x.to('cuda:1')\n"
        "except RuntimeError as e:\n"
        "    print('ordinal' in str(e))\n"
    )
    assert out.splitlines() == ["False", "True True mindspore:0 cpu", "mindspore:0 mindspore:0", "True"]
