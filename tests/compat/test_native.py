"""MindSpore's own calls are what they were, and nothing is wrapped without `msadapter.pytorch`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SRC = str(HERE.parents[1] / "src")
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [SRC, os.environ.get("PYTHONPATH")])), "GLOG_v": "4"}


def python(*arguments, cwd):
    """Standard output of Python in a process of its own: compat changes the whole process."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=ENV, cwd=cwd, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_native_calls_give_the_same_results(tmp_path):
    plain, compat = (
        json.loads(python(str(HERE / "native_calls.py"), kind, cwd=tmp_path).splitlines()[-1])
        for kind in ("plain", "compat")
    )
    assert plain == compat
    refused = {name for name, result in compat.items() if isinstance(result, str)}
    assert len(compat) == 38 and len(refused) <= 2, refused


ORDERS = {
    "mindspore first": "import mindspore\nimport msadapter.pytorch as torch\n",
    "msadapter first": "import msadapter.pytorch as torch\nimport mindspore\n",
    "module object before": "from mindspore import ops, nn, amp\nimport msadapter.pytorch as torch\nimport mindspore\n",
    "device before": "import msadapter.pytorch as torch\ntorch.ones(1)\nimport mindspore\n",
    "spec before": (
        "import msadapter.pytorch as torch, importlib.util\n"
        "assert importlib.util.find_spec('mindspore')\n"
        "import mindspore\n"
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_both_orders_of_import(order, tmp_path):
    out = python(
        "-c",
        ORDERS[order] + "from mindspore import ops\n"
        "x = torch.tensor([1.0, 2.0])\n"
        "f = lambda x: (x ** 3).sum()\n"
        "print(mindspore.grad(f)(x).tolist(), ops.value_and_grad(f)(x)[1].tolist())\n"
        "print(mindspore.value_and_grad is ops.value_and_grad, len(ops.clip_by_global_norm((x, x), 1.0)))\n",
        cwd=tmp_path,
    )
    assert out.splitlines()[-2:] == ["[3.0, 12.0] [3.0, 12.0]", "True 2"]


def test_nothing_is_wrapped_without_the_import(tmp_path):
    python(
        "-c",
        "import mindspore, torch, msadapter\n"
        "x = torch.ones(2, device='mindspore')\n"
        "from mindspore import ops, amp, nn\n"
        "for f in (mindspore.value_and_grad, mindspore.grad, ops.grad, ops.clip_by_norm, amp.all_finite,\n"
        "          ops.zeros_like, ops.GradOperation.__call__, amp.DynamicLossScaler.scale):\n"
        "    assert not hasattr(f, '__wrapped__'), f\n"
        "assert not hasattr(torch.Tensor, 'asnumpy') and not hasattr(torch.nn.Module, 'set_train')\n"
        "assert not hasattr(torch.optim.Optimizer, 'parameters')\n"
        "assert 'msadapter.compat' not in __import__('sys').modules\n",
        cwd=tmp_path,
    )


def test_the_table_is_what_is_wrapped(tmp_path):
    python(
        "-c",
        "import mindspore, msadapter.pytorch as torch, importlib\n"
        "from msadapter.compat.table import MINDSPORE, TORCH\n"
        "from msadapter.compat.wrap import _owner\n"
        "for path in MINDSPORE:\n"
        "    assert hasattr(getattr(*_owner(path)), '__wrapped__'), path\n"
        "for path in TORCH:\n"
        "    assert hasattr(*_owner(path)), path\n",
        cwd=tmp_path,
    )
