"""The folder of MSADAPTER_CACHE: it cannot be written to, is full, or has damaged files. The step trains as without it."""

import copy
import errno
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import textwrap
import warnings
from unittest import mock

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import msadapter
from msadapter.config import set_config
from msadapter.graph import cache

from .util import DEVICE, batches, step_of


def trained(module, compiled):
    """(The losses and parameters of five calls, the step.)"""
    step = step_of(module, torch.optim.SGD(module.parameters(), lr=0.1))
    step = msadapter.compile(step, fullgraph=True) if compiled else step
    losses = [step(x).item() for x in batches(5)]
    return (losses, [p.detach().cpu() for p in module.parameters()]), step


@pytest.fixture
def check():
    """A function that trains with a cache, compiled and not, and compares."""

    def run(folder):
        set_config(cache=str(folder))
        module = nn.Linear(4, 4).to(DEVICE)
        expected, _ = trained(copy.deepcopy(module), compiled=False)
        actual, step = trained(module, compiled=True)
        assert_close(actual, expected)
        assert step.stats()["hits"] == 3, step.stats()

    old = set_config()
    yield run
    set_config(cache=old.cache)


# ------------------------------------------------------------------------------------------------------ cannot be written to


def test_cache_that_can_be_written_to(check, tmp_path, recwarn):
    check(tmp_path / "new" / "cache")
    assert len(list(tmp_path.glob("new/cache/*.py"))) == 1
    assert not [w for w in recwarn if w.category is RuntimeWarning]


@pytest.mark.parametrize("where", ["file/cache", "file", "/proc/cache", "/dev/full"])
def test_cache_where_no_folder_can_be(check, tmp_path, where):
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="Set MSADAPTER_CACHE"):
        check(tmp_path / where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(tmp_path / where)  # it has been said
    assert list(cache._temporary()[1].glob("*.py"))


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_folder_is_read_only(check, tmp_path, monkeypatch, error):
    monkeypatch.setattr(cache.tempfile, "NamedTemporaryFile", lambda dir: raise_(OSError(error, os.strerror(error))))
    with pytest.warns(RuntimeWarning, match="Set MSADAPTER_CACHE"):
        check(tmp_path)
    assert not list(tmp_path.iterdir())


def raise_(error):
    raise error


# ---------------------------------------------------------------------------------------------------------------------- full


def test_disk_is_full(check, tmp_path, monkeypatch):
    monkeypatch.setattr(cache.tempfile, "NamedTemporaryFile", lambda dir: open("/dev/full", "wb"))
    with pytest.warns(RuntimeWarning, match="No space left"):
        check(tmp_path)
    assert not list(tmp_path.iterdir())


def test_disk_is_full_after_the_probe(check, tmp_path, monkeypatch):
    write = pathlib.Path.write_text

    def full(path, text):
        write(path, text[:100])
        if path.is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text)

    monkeypatch.setattr(pathlib.Path, "write_text", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        check(tmp_path)
    assert not list(tmp_path.glob("*.py"))


# ------------------------------------------------------------------------------------------------ what MindSpore keeps there

SCRIPT = """
    import sys, torch, msadapter

    torch.manual_seed(0)
    module = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(12)]).to("mindspore")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    factor = float(sys.argv[1])

    @msadapter.compile
    def step(x):
        optimizer.zero_grad()
        loss = (module(x) * factor).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.rand(4, 4, device="mindspore")
    print([step(x).item() for _ in range(5)])
    assert step.stats()["hits"] == 3, step.stats()
"""


class Process:
    """Runs SCRIPT in a process of its own; `folder` is the cache."""

    def __init__(self, root):
        self.folder, self.script = root / "cache", root / "train.py"
        self.script.write_text(textwrap.dedent(SCRIPT))

    def __call__(self, folder=None, factor=2.0, **options):
        env = {**os.environ, "MSADAPTER_CACHE": str(folder or self.folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, self.script, str(factor)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "MSADAPTER_CACHE" not in done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    return Process(tmp_path_factory.mktemp("process"))


@pytest.fixture(scope="module")
def losses(process):
    """What SCRIPT prints; its cache is filled."""
    return process()


def files(folder):
    """{name: (content, inode)}: a file that is made anew has another inode."""
    return {p.relative_to(folder): (p.read_bytes(), p.stat().st_ino) for p in folder.rglob("*") if p.is_file()}


def test_second_process_takes_what_is_there(process, losses):
    before = files(process.folder)
    assert {p.suffix for p in before} == {".py", ".mindir", ".hash", ""}
    assert process() == losses
    assert files(process.folder) == before


DAMAGES = {
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "garbage": lambda content: random.Random(0).randbytes(len(content)),
    "more": lambda content: content + bytes(100),
}


def damaged(folder, to, which, damage):
    """A copy of the cache, and what was in it before the damage."""
    shutil.copytree(folder, to)
    whole = files(to)
    for path in [p for p in to.rglob(which) if p.is_file()]:
        path.chmod(0o600)
        path.write_bytes(damage(path.read_bytes()))
    return whole


@pytest.mark.parametrize("damage", [pytest.param(d, marks=pytest.mark.slow if i else ()) for i, d in enumerate(DAMAGES)])
@pytest.mark.parametrize("which", ["*", pytest.param("*.mindir", marks=pytest.mark.slow)])
def test_damaged_files_are_made_anew(process, losses, tmp_path, which, damage):
    folder = tmp_path / "cache"
    whole = damaged(process.folder, folder, which, DAMAGES[damage])
    assert process(folder) == losses
    mended = files(folder)
    assert mended.keys() == whole.keys()
    for name, (content, inode) in mended.items():
        assert content == whole[name][0] if name.suffix == ".py" else inode != whole[name][1]


def test_graph_of_another_program(process, losses, tmp_path):
    """What MindSpore can read is not for that reason the right thing."""
    process(tmp_path / "other", factor=3.0)
    (other,) = (tmp_path / "other").rglob("*.mindir")
    damaged(process.folder, tmp_path / "cache", "*.mindir", lambda content: other.read_bytes())
    assert process(tmp_path / "cache") == losses


def test_what_cannot_be_loaded_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_told", False)
    monkeypatch.setattr(cache, "ms", mock.Mock())
    monkeypatch.setattr(sys, "argv", [__file__])
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / cache.SUM).write_bytes(cache._digest(folder))
    with cache.kept(folder):
        pass
    assert folder.exists()
    monkeypatch.setattr(cache, "_told", False)
    with pytest.raises(RuntimeError), cache.kept(folder):
        raise RuntimeError("no graph")
    assert not folder.exists()


def test_disk_is_full_when_mindspore_writes(process, losses, tmp_path):
    """Files end after 12 kB: the module fits, MindSpore's graph does not."""
    sizes = {p.suffix: len(content) for p, (content, _) in files(process.folder).items()}
    assert sizes[".py"] < 12_000 < sizes[".mindir"]
    limits = 12_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    assert process(tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)) == losses
    assert [p.suffix for p in tmp_path.iterdir()] == [".py"]
    assert process(tmp_path) == losses
    assert files(tmp_path).keys() == files(process.folder).keys()
