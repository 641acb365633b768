"""The examples run on plain PyTorch, say what they should, and name what is wrong with their input."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MNIST = Path(__file__).parents[1] / "examples" / "mnist.py"


def run(*args, cwd, **env):
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_VISIBLE_DEVICES": "", **env}
    return subprocess.run(
        [sys.executable, str(MNIST), *map(str, args)], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )


def write_idx(folder, images=256, zipped=False, cut=0):
    """The four files of MNIST, with `images` random ones; `cut` bytes are missing at the end of the first."""
    rng = np.random.RandomState(0)
    for part, count in (("train", images), ("t10k", images)):
        pixels = rng.randint(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.randint(0, 10, count, dtype=np.uint8)
        files = (f"{part}-images-idx3-ubyte", 2051, pixels), (f"{part}-labels-idx1-ubyte", 2049, labels)
        for name, magic, array in files:
            content = np.array([magic, *array.shape], ">u4").tobytes() + array.tobytes()
            if cut and name.startswith("train-images"):
                content = content[:-cut]
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


def test_it_is_a_plain_pytorch_script():
    text = MNIST.read_text().lower()
    assert "mindspore" not in text and "msadapter" not in text


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_it_trains_on_the_bundled_digits(model, tmp_path):
    done = run("--model", model, "--epochs", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^loss: 2\.\d{6}  \[  0/ 63\]$", done.stdout, re.M)
    assert re.search(r"^Accuracy: \d+\.\d%, Avg loss: \d\.\d{6}$", done.stdout, re.M)
    assert (tmp_path / "misclassified.png").read_bytes().startswith(b"\x89PNG")
    assert done.stderr == ""  # no progress bar where stderr is not a terminal


@pytest.mark.parametrize("zipped", [False, True])
def test_it_reads_idx_files(zipped, tmp_path):
    write_idx(tmp_path, zipped=zipped)
    done = run("--data", tmp_path, "--epochs", 1, "--picture", tmp_path / "wrong.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[  0/  4]" in done.stdout and (tmp_path / "wrong.png").exists()


def test_two_runs_are_the_same(tmp_path):
    write_idx(tmp_path)
    first, second = (run("--data", tmp_path, "--epochs", 1, cwd=tmp_path).stdout for _ in range(2))
    assert first == second != ""


def test_missing_files_are_named(tmp_path):
    done = run("--data", tmp_path, cwd=tmp_path)
    assert done.returncode != 0 and "train-images-idx3-ubyte" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("zipped, cut", [(False, 1), (True, 1), (False, 256 * 784 + 10)])
def test_a_truncated_file_is_named(zipped, cut, tmp_path):
    write_idx(tmp_path, zipped=zipped, cut=cut)
    done = run("--data", tmp_path, cwd=tmp_path)
    assert done.returncode != 0 and "train-images-idx3-ubyte" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "misclassified.png").exists()


@pytest.mark.slow
def test_accuracy_on_the_bundled_digits(tmp_path):
    done = run(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 91.5 <= float(re.search(r"Test accuracy after 45 epochs: (\d+\.\d)%", done.stdout)[1]) <= 94
