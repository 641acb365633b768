"""`msadapter doctor` reports, and says what is wrong, whatever the state of the installation."""

import os
import subprocess
import sys

import pytest

from msadapter import doctor, runtime

GOOD = {
    "python": "3.11.7", "msadapter": "0.1.0", "torch": "2.14.1", "mindspore": "2.10.0", "numpy": "1.26.4",
    "torchvision": None,
}  # fmt: skip
MEASURED = {
    "device": "mindspore on CPU", "isa": "AVX2", "fallbacks": "", "loss_error": 1e-7, "seconds": 5.0,
    "conv_ms": 2.0, "torch_conv_ms": 1.0, "matmul_ms": 1.0, "torch_matmul_ms": 1.0,
}  # fmt: skip


@pytest.fixture
def report(monkeypatch, capsys):
    """Run the doctor on a pretended installation; gives its exit code and its text."""

    def run(versions=GOOD, result=None, flags=frozenset({"avx2", "avx512f"}), environ=None, args=()):
        for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(doctor, "installed_versions", lambda: dict(versions))
        monkeypatch.setattr(doctor, "run_self_test", lambda: result or {**MEASURED, "wrong": []})
        monkeypatch.setattr(runtime, "cpu_flags", lambda: flags)
        monkeypatch.setattr(runtime, "started", lambda: True)  # by another test of this process, perhaps
        code = doctor.main(list(args))
        return code, capsys.readouterr().out

    return run


def test_a_good_installation(report):
    code, text = report()
    assert code == 0 and "All is well." in text
    for word in ("2.14.1", "2.10.0", "1.26.4", "cores", "fallback", "AVX2", "convolution", "matmul"):
        assert word in text


@pytest.mark.parametrize(
    "change, words",
    [
        ({"numpy": "2.1.0"}, ["numpy 2.1.0", 'pip install "numpy<2"']),
        ({"torch": "2.12.0"}, ["torch 2.12.0", 'pip install "torch>=2.13,<2.15"']),
        ({"mindspore": "2.7.1"}, ["mindspore 2.7.1", 'pip install "mindspore>=2.10,<2.11"']),
        ({"mindspore": None}, ["not installed", 'pip install "mindspore>=2.10,<2.11"']),
        ({"torch": None}, ["not installed", 'pip install "torch>=2.13,<2.15"']),
    ],
)
def test_wrong_versions(report, change, words):
    code, text = report({**GOOD, **change})
    assert code == 1 and "not run" in text
    assert all(word in text for word in words), text


def test_a_processor_without_avx2(report):
    if doctor.platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("only x86 processors have AVX2")
    code, text = report(flags=frozenset({"avx"}))
    assert code == 1 and "AVX2" in text


def test_an_environment_that_makes_mindspore_slow(report):
    code, text = report(environ={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"})
    assert code == 1 and "ONEDNN_MAX_CPU_ISA=AVX512_CORE" in text
    assert report(environ={"ONEDNN_MAX_CPU_ISA": "AVX2"})[0] == 0
    assert report(environ={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, flags=frozenset({"avx2"}))[0] == 0


def test_a_failed_self_test(report):
    code, text = report(result={"wrong": ["The self-test failed with exit code -11: no message"]})
    assert code == 1 and "exit code -11" in text


@pytest.mark.parametrize(
    "change, word",
    [
        ({"loss_error": 1e-2}, "0.01"),
        ({"loss_error": float("nan")}, "nan"),
        ({"fallbacks": "relu"}, "relu"),
        ({"conv_ms": 500.0}, "MSADAPTER_CPU_ISA=AVX2"),
    ],
)
def test_numbers_that_are_not_as_they_should_be(change, word):
    assert not doctor.judge(MEASURED)
    (sentence,) = doctor.judge({**MEASURED, **change})
    assert word in sentence


def doctor_process(code="", **env):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MSADAPTER_")}
    program = f"{code}\nimport sys\nfrom msadapter.doctor import main\nsys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", program], {**kept, **env}


def test_the_real_self_test():
    command, env = doctor_process()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert "losses within" in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("package", ["torch", "mindspore"])
def test_it_reports_where_a_package_is_missing(package):
    hide = f"""
import importlib.metadata, sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{package}":
            raise ModuleNotFoundError("No module named '{package}'", name="{package}")
sys.meta_path.insert(0, Hide())
version = importlib.metadata.version
def hidden(name):
    if name == "{package}":
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = hidden
"""
    command, env = doctor_process(hide)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert f"Expected {package}; it is not installed." in done.stdout
