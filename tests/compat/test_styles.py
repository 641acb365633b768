"""The three styles train the MLP to the same weights, and to PyTorch's accuracy."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(script, *arguments, cwd, timeout):
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "GLOG_v": "4", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_styles(tmp_path, *arguments):
    out = python(ROOT / "examples" / "accumulation.py", *arguments, cwd=tmp_path, timeout=800)
    moved = float(re.search(r"moved a weight by up to (\S+)", out)[1])
    differences = [float(d) for d in re.findall(r"difference \D*: (\S+)", out)]
    assert moved > 0.05  # 5,000 times what is allowed
    assert len(differences) == 4 and max(differences) < 1e-5, out


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_50_updates_give_the_same_weights(mode, tmp_path):
    check_styles(tmp_path, "--mode", mode, "--hidden", 128)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_50_updates_of_the_large_mlp(mode, tmp_path):
    check_styles(tmp_path, "--mode", mode)


def test_two_epochs_reach_the_same_accuracy(tmp_path):
    check_accuracy(tmp_path, 75, "--epochs", 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_accuracy_after_the_updates_of_three_epochs_of_mnist(tmp_path):
    check_accuracy(tmp_path, 91)


def check_accuracy(tmp_path, at_least, *arguments):
    out = python(ROOT / "tests" / "compat" / "accuracy.py", *arguments, cwd=tmp_path, timeout=3000)
    accuracy = json.loads(out.splitlines()[-1])
    reference = accuracy.pop("PyTorch CPU")
    assert reference > at_least and len(accuracy) == 3
    for style, value in accuracy.items():
        assert abs(value - reference) <= 0.5, (style, value, reference)
