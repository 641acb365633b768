"""`msadapter run`: scripts as people write them, and the manners of `python script.py`."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE / "scripts").glob("*.py"))
NEEDS = {"sklearn_pipeline.py": "sklearn", "matplotlib_plots.py": "matplotlib"}
PATHS = [str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, PATHS))}
MSADAPTER = [sys.executable, "-m", "msadapter"]


def command(*args, env=None, **kwargs):
    return subprocess.run(
        [*MSADAPTER, *map(str, args)], capture_output=True, text=True, env={**ENV, **(env or {})}, timeout=600, **kwargs
    )


@pytest.fixture
def script(tmp_path):
    def write(source, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return path

    return write


# ------------------------------------------------------------------------------------------- scripts, against PyTorch


def results(output):
    return [line.split() for line in output.splitlines() if line.startswith("result:")]


def same(a, b):
    try:
        return math.isclose(float(a), float(b), rel_tol=1e-4, abs_tol=1e-7)
    except ValueError:
        return a == b


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_script_gives_what_pytorch_gives(path, tmp_path):
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name])
    report = tmp_path / "report.json"
    ours = command("run", f"--report={report}", path)
    reference = command("run", "--cpu-reference", path)
    assert reference.returncode == 0, reference.stderr
    assert ours.returncode == 0, ours.stderr
    got, expected = results(ours.stdout), results(reference.stdout)
    assert expected and [len(line) for line in got] == [len(line) for line in expected]
    for a, b in zip(got, expected):
        assert all(map(same, a, b)), f"{path.name}: {' '.join(a)} instead of {' '.join(b)}"
    assert json.loads(report.read_text())["native_calls"] > 0, "the device did the work"


def test_there_are_scripts_of_both_kinds():
    picks = [p for p in SCRIPTS if "cuda" in p.read_text() or "npu" in p.read_text()]
    assert len(SCRIPTS) >= 15 and len(picks) >= 6 and len(SCRIPTS) - len(picks) >= 6


# ------------------------------------------------------------------------------------------------ as `python script.py`

IDENTITY = """\
import pickle, sys
class A: pass
print(__name__, __file__, sys.argv, sys.path[0], __spec__, __doc__, type(__builtins__).__name__)
print(pickle.loads(pickle.dumps(A())).__class__ is A, sys.modules["__main__"].__dict__ is globals())
"""


def test_identity(script):
    path = script(IDENTITY)
    for arguments in ([str(path), "a", "--report"], ["script.py"]):
        plain = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=ENV, cwd=path.parent)
        assert command("run", *arguments, cwd=path.parent).stdout == plain.stdout != ""


def test_module_and_folder(script, tmp_path):
    source = "import sys\nprint(__name__, __spec__.name, __package__, sys.argv, sys.path[0])\n"
    script(source, "pkg/mod.py")
    script(source, "folder/__main__.py")
    for arguments in (["-m", "pkg.mod", "x", "-m"], ["folder", "y"]):
        plain = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=ENV, cwd=tmp_path)
        assert command("run", *arguments, cwd=tmp_path).stdout == plain.stdout != ""


@pytest.mark.parametrize(
    "source, code",
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('a message')", 1),
        ("import sys; sys.exit()", 0),
        ("raise SystemExit(True)", 1),
        ("1 / 0", 1),
        ("x = (", 1),
        ("import os; os._exit(9)", 9),
        ("import atexit; atexit.register(print, 'bye'); raise KeyError('k')", 1),
        ("import sys; sys.excepthook = lambda *a: print('hook', a[0].__name__, file=sys.stderr); 1 / 0", 1),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('v') from e", 1),
        ("def f():\n    raise RuntimeError('deep')\ndef g():\n    f()\ng()", 1),
    ],
)
def test_exit_code_and_traceback(script, source, code):
    path = script(source + "\n")
    plain = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=ENV)
    ours = command("run", path)
    assert plain.returncode == code
    assert (ours.returncode, ours.stdout, ours.stderr) == (code, plain.stdout, plain.stderr)


def test_traceback_of_a_torch_error_is_the_scripts(script):
    path = script("import torch\ntorch.rand(2, 3) @ torch.rand(2, 3)\n")
    done = command("run", path)
    assert done.returncode == 1
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)" in done.stderr
    assert str(path) in done.stderr and os.sep + "msadapter" + os.sep not in done.stderr


@pytest.mark.parametrize("name, plain_code", [("SIGINT", -signal.SIGINT), ("SIGTERM", -signal.SIGTERM)])
def test_signals(script, name, plain_code):
    path = script("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        [*MSADAPTER, "run", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(getattr(signal, name))
        _, err = process.communicate(timeout=60)
    assert process.returncode == plain_code
    if name == "SIGINT":
        assert err.rstrip().endswith("KeyboardInterrupt") and "cli.py" not in err


def test_spawned_children_follow_the_same_rules(script):
    path = script(
        "import multiprocessing as mp\n"
        "def work(q):\n"
        "    import torch\n"
        "    q.put((torch.ones(2).device.type, torch.cuda.is_available(), torch.ones(2, device='cuda').sum().item()))\n"
        "if __name__ == '__main__':\n"
        "    context = mp.get_context('spawn')\n"
        "    q = context.Queue()\n"
        "    p = context.Process(target=work, args=(q,))\n"
        "    p.start()\n"
        "    print(q.get(timeout=120))\n"
        "    p.join()\n"
    )
    assert command("run", path).stdout == "('mindspore', True, 2.0)\n"


# ----------------------------------------------------------------------------------------------------------- the report


def test_report_ends_with_fallbacks(script):
    path = script("import torch\nx = torch.ones(3)\nprint((x + x).sum().item())\n")
    lines = command("run", "--report", path, "--mine").stdout.splitlines()
    assert lines[0] == "6.0" and lines[-1] == "fallbacks: 0"
    text = "\n".join(lines)
    for word in ("seconds", "native ops", "add.Tensor", "host syncs          1", "host tensors moved  0", "--mine"):
        assert word in text


def test_report_counts_and_comes_after_everything(script):
    path = script(
        "import atexit, threading, time, numpy as np, torch\n"
        "atexit.register(print, 'exit handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()\n"
        "x = torch.ones(3) + torch.from_numpy(np.ones(3, np.float32))\n"
        "torch.linalg.eigvals(torch.eye(3))\n"
        "raise ValueError('stop')\n"
    )
    done = command("run", "--report", path)
    assert done.returncode == 1 and "ValueError: stop" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["thread", "exit handler"]
    assert "  host tensors moved  1" in lines
    count = int(lines[-1].removeprefix("fallbacks: "))
    assert count >= 1 and any("linalg_eig" in line and "on the host" in line for line in lines)


def test_report_file(script, tmp_path):
    path = script("import sys, torch\nprint(torch.ones(2).tolist())\nsys.exit(3)\n")
    done = command("run", "--report=out.json", path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "[1.0, 1.0]\n")
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["fallbacks"] == {} and report["host_syncs"] >= 1 and report["seconds"] > 0
    assert all({"calls", "seconds"} == set(entry) for entry in report["native"].values())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "script.py"], "nothing half-written is left"


def test_cpu_reference_is_plain_pytorch(script):
    path = script(
        "import sys, torch\n"
        "ours = 'msadapter' in sys.modules, hasattr(torch, 'mindspore')\n"
        "print(torch.ones(2).device, torch.cuda.is_available(), *ours)\n"
        "sys.exit(4)\n"
    )
    done = command("run", "--cpu-reference", path)
    assert (done.returncode, done.stdout) == (4, "cpu False False False\n")


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "args, words",
    [
        ([], "expected a command"),
        (["fly"], "'fly'"),
        (["run"], "expected a script"),
        (["run", "-m"], "expected a script"),
        (["run", "missing.py"], "found no file 'missing.py'"),
        (["run", "-m", "no.such.module"], "no module named 'no.such.module'"),
        (["run", "--fast", "x.py"], "unknown option '--fast'"),
        (["run", "--report=/no/such/folder/r.json", __file__], "/no/such/folder/r.json"),
        (["run", "--report=", __file__], "expected --report=FILE.json"),
        (["run", "--report", "--cpu-reference", __file__], "received both"),
        (["run", str(HERE / "scripts")], "without a __main__.py"),
    ],
)
def test_what_cannot_be_done_is_said(args, words):
    done = command(*args)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("msadapter: ") and words in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("variable, value", [("MSADAPTER_FALBACK", "warn"), ("MSADAPTER_FALLBACK", "loud")])
def test_a_wrong_setting(variable, value):
    done = command("run", __file__, env={variable: value})
    assert done.returncode == 2 and variable in done.stderr and "Traceback" not in done.stderr


def test_help_and_version():
    import msadapter

    done = command("--help")
    assert done.returncode == 0 and "--cpu-reference" in done.stdout and "doctor" in done.stdout
    assert command("run", "--help").stdout == done.stdout
    assert command("--version").stdout == f"msadapter {msadapter.__version__}\n"
