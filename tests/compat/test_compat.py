"""Runs the check_*.py files beside this one, each in a process that has imported `msadapter.pytorch`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.parametrize("name", sorted(p.name for p in HERE.glob("check_*.py")))
def test_compat(name, tmp_path):
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT)]
    done = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), "-o", "python_files=check_*.py", str(HERE / name)],
        capture_output=True, text=True, cwd=tmp_path, timeout=800,
        env={**os.environ, "PYTHONPATH": path, "GLOG_v": "4", "MSADAPTER_FALLBACK": "error", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
