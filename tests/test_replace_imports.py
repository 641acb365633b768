"""tools/replace_import_package.sh: imports of torch and torchvision change, nothing else does."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from msadapter.migrate.imports import main, rewrite

SCRIPT = Path(__file__).parent.parent / "tools" / "replace_import_package.sh"

CASES = [
    ("import torch\n", "import msadapter.pytorch as torch\n"),
    ("import torch as t\n", "import msadapter.pytorch as t\n"),
    ("import torch.nn as nn\n", "import msadapter.pytorch.nn as nn\n"),
    ("import torch.nn.functional as F  # F\n", "import msadapter.pytorch.nn.functional as F  # F\n"),
    ("import torch.nn\n", "import msadapter.pytorch as torch, msadapter.pytorch.nn\n"),
    ("import torch, os\n", "import msadapter.pytorch as torch, os\n"),
    ("import os, torch\n", "import os, msadapter.pytorch as torch\n"),
    ("import os,torch,sys\n", "import os,msadapter.pytorch as torch,sys\n"),
    ("import torch, torch.nn\n", "import msadapter.pytorch as torch, msadapter.pytorch.nn\n"),
    ("import torch.nn, torch.optim, os\n",
     "import msadapter.pytorch as torch, msadapter.pytorch.nn, msadapter.pytorch.optim, os\n"),
    ("import torch, torch\n", "import msadapter.pytorch as torch\n"),
    ("import torchvision\n", "import msadapter.torchvision as torchvision\n"),
    ("import torch, torchvision\n", "import msadapter.pytorch as torch, msadapter.torchvision as torchvision\n"),
    ("from torch import nn\n", "from msadapter.pytorch import nn\n"),
    ("from torch import nn, optim as o\n", "from msadapter.pytorch import nn, optim as o\n"),
    ("from torch.utils.data import (\n    DataLoader,  # batches\n    Dataset,\n)\n",
     "from msadapter.pytorch.utils.data import (\n    DataLoader,  # batches\n    Dataset,\n)\n"),
    ("from torch import *\n", "from msadapter.pytorch import *\n"),
    ("from torchvision import datasets, transforms\n", "from msadapter.torchvision import datasets, transforms\n"),
    ("from torchvision.transforms import v2 as T\n", "from msadapter.torchvision.transforms import v2 as T\n"),
    ("def f():\n\timport torch ; x = 1\n\treturn torch\n",
     "def f():\n\timport msadapter.pytorch as torch ; x = 1\n\treturn torch\n"),
    ("try:\n  import torch\nexcept ImportError: import torch.cuda\n",
     "try:\n  import msadapter.pytorch as torch\n"
     "except ImportError: import msadapter.pytorch as torch, msadapter.pytorch.cuda\n"),
    ("import torch\r\nx = 1\r\n", "import msadapter.pytorch as torch\r\nx = 1\r\n"),
    ("import torch", "import msadapter.pytorch as torch"),
]  # fmt: skip

UNCHANGED = [
    "import torchaudio, torch_geometric\nfrom torch_geometric.nn import GCNConv\n",
    "from . import torch\nfrom .torch import nn\nfrom ..torch.x import y\n",
    's = "import torch"\n"""\nimport torch\n"""\n# import torch\n',
    "import importlib\nimportlib.import_module('torch')\n",
    "import mytorch.torch, torchmetrics\n",
    "torch = None\nx = torch\n",
    "",
    "\n\n  \n",
    "import msadapter.pytorch as torch, msadapter.pytorch.nn\nfrom msadapter.torchvision import datasets\n",
]


@pytest.mark.parametrize("before, after", CASES)
def test_rewrites(before, after):
    assert rewrite(before.encode()).decode() == after
    assert rewrite(after.encode()).decode() == after, "a second run changes nothing"
    compile(after, "x", "exec")


@pytest.mark.parametrize("source", UNCHANGED)
def test_leaves_alone(source):
    assert rewrite(source.encode()).decode() == source


@pytest.mark.parametrize(
    "source",
    [
        "# -*- coding: latin-1 -*-\nname = '\xe9'\nimport torch\n".encode("latin-1"),
        b"\xef\xbb\xbfimport torch\nx = '\xc3\xa9'\n",
        "# été\nimport torch  # été\n".encode(),
        b"#!/usr/bin/env python\nimport torch\n\x0c\nx = [1,\n 2]   \n\n\n",
    ],
)
def test_keeps_encoding_and_every_other_byte(source):
    assert rewrite(source) == source.replace(b"import torch", b"import msadapter.pytorch as torch")


def test_bound_names_are_the_same(tmp_path):
    """Whatever each case binds before, it binds after."""
    for before, after in CASES:
        if "*" in before or "vision" in before or "return" in before:
            continue
        old, new = {}, {}
        exec(before, old)
        exec(after, new)
        assert {k: old[k] for k in old if k != "__builtins__"}.items() <= new.items()


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "my project"
    (root / "pkg").mkdir(parents=True)
    (root / ".hidden").mkdir()
    (root / "a.py").write_bytes(b"import torch\r\nprint(torch)\r\n")
    (root / "pkg" / "b.py").write_text("from torch import nn\n")
    (root / "pkg" / "clean.py").write_text("import os\n")
    (root / "broken.py").write_text("import torch\ndef f(:\n")
    (root / "notes.txt").write_text("import torch\n")
    (root / ".hidden" / "c.py").write_text("import torch\n")
    (root / "link.py").symlink_to(root / "a.py")
    (root / "a.py").chmod(0o755)
    return root


def _contents(root):
    return {p.relative_to(root): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_project(project, capsys):
    before = _contents(project)
    assert main([str(project)]) == 1, "broken.py was left alone, and said so"
    out = capsys.readouterr()
    assert "left alone" in out.err and "broken.py" in out.err and "line 2" in out.err
    after = _contents(project)
    assert {str(p) for p in after if after[p] != before[p]} == {"a.py", "link.py", "pkg/b.py"}
    assert after.keys() == before.keys()
    assert after[Path("a.py")] == b"import msadapter.pytorch as torch\r\nprint(torch)\r\n"
    assert stat.S_IMODE((project / "a.py").stat().st_mode) == 0o755
    assert (project / "link.py").is_symlink()
    backup = project.parent / "my project.bak"
    assert _contents(backup) == {Path("a.py"): before[Path("a.py")], Path("pkg/b.py"): before[Path("pkg/b.py")]}

    main([str(project)])
    assert _contents(project) == after, "a second run changes nothing"
    assert sorted(p.name for p in project.parent.iterdir()) == ["my project", "my project.bak"], "nor makes a backup"


def test_an_earlier_backup_is_kept(project):
    main([str(project)])
    first = _contents(project.parent / "my project.bak")
    (project / "new.py").write_text("import torch\n")
    main([str(project)])
    assert _contents(project.parent / "my project.bak") == first
    assert list(_contents(project.parent / "my project.bak1")) == [Path("new.py")]


def test_one_file(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("import torch\n")
    assert main([str(file)]) == 0
    assert file.read_text() == "import msadapter.pytorch as torch\n"
    assert (tmp_path / "train.py.bak").read_text() == "import torch\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(project, capsys):
    (project / "pkg").chmod(0o555)
    try:
        assert main([str(project)]) == 1
    finally:
        (project / "pkg").chmod(0o755)
    assert (project / "pkg" / "b.py").read_text() == "from torch import nn\n"
    assert "b.py" in capsys.readouterr().err


def _shell(*args):
    env = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(["bash", str(SCRIPT), *args], capture_output=True, text=True, env=env, timeout=120)


def test_the_shell_command(project):
    (project / "broken.py").unlink()
    done = _shell(str(project))
    assert done.returncode == 0, done.stderr
    assert "2 of 3 files changed" in done.stdout
    assert (project / "pkg" / "b.py").read_text() == "from msadapter.pytorch import nn\n"


def test_the_shell_command_without_a_project(tmp_path):
    for args in ([], [str(tmp_path / "none")]):
        done = _shell(*args)
        assert done.returncode == 2 and done.stderr and "Traceback" not in done.stderr
