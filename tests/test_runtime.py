"""How MindSpore is started. Each test that needs a state of `import` runs in a process of its own."""

import os
import subprocess
import sys
import tempfile
import textwrap

import pytest

from msadapter import runtime

AVX512 = "avx512f" in runtime.cpu_flags()
avx512 = pytest.mark.skipif(not AVX512, reason="the processor has no AVX-512, so its instruction set is left alone")
SETTINGS = ("GLOG_v", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
MATMUL = "a = m.Tensor([[1.0]]); m.ops.MatMul()(a, a).asnumpy()"


def run(code, timeout=60, **env):
    """Run `code` in a new Python; environment settings of this process that matter are removed first."""
    kept = {k: v for k, v in os.environ.items() if k not in SETTINGS and not k.startswith("MSADAPTER_")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**kept, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **env},
        cwd=tempfile.gettempdir(),  # MindSpore leaves files of a failed compilation in the current folder
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def output(code, **env):
    done = run(code, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_runtime_does_not_start_mindspore_by_itself():
    assert output("import sys, msadapter.runtime as r; print(r.started(), 'mindspore' in sys.modules)") == ["False"] * 2


def test_start_is_silent_and_leaves_the_environment_of_onednn_alone():
    done = run("import os; from msadapter.runtime import ms; ms(); ms(); print('ONEDNN_MAX_CPU_ISA' in os.environ)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_what_mindspore_logs_when_an_op_fails_does_not_reach_stderr():
    done = run("""
        from msadapter.runtime import ms
        m = ms()
        try:
            m.jit(lambda a: m.ops.MatMul()(a, a))(m.Tensor([[1.0, 2.0]]))
        except Exception as error:
            print(type(error).__name__)
    """)
    assert done.returncode == 0 and done.stdout.strip() and done.stderr == ""


def test_a_log_level_of_the_user_is_kept():
    assert output("import os; from msadapter.runtime import ms; ms(); print(os.environ['GLOG_v'])", GLOG_v="2") == ["2"]


@avx512
@pytest.mark.parametrize(
    "env, isa",
    [
        ({}, "AVX2"),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, "AVX512_CORE"),
        ({"MSADAPTER_CPU_ISA": "AVX512_CORE"}, "AVX512_CORE"),
        ({"MSADAPTER_CPU_ISA": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, "AVX2"),
    ],
)
def test_instruction_set(env, isa):
    code = f"from msadapter import runtime as r; m = r.ms(); {MATMUL}; print(r.effective_isa(), len(r.problems))"
    assert output(code, **env) == [isa, "0"]


@avx512
def test_mindspore_imported_first_is_still_made_fast():
    code = f"import mindspore as m; from msadapter import runtime as r; r.ms(); {MATMUL}; print(r.effective_isa())"
    assert output(code) == ["AVX2"]


@avx512
def test_mindspore_that_ran_first_with_slow_settings_is_told_once():
    code = f"import mindspore as m; {MATMUL}; from msadapter.runtime import *; ms(); ms(); print(len(problems))"
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"]
    assert done.stderr.count("RuntimeWarning") == 1 and "ONEDNN_MAX_CPU_ISA=AVX2" in done.stderr


def test_many_threads_start_it_once():
    code = """
        import threading
        from msadapter import runtime
        found = []
        threads = [threading.Thread(target=lambda: found.append(runtime.ms())) for _ in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(len(found), len(set(map(id, found))))
    """
    assert output(code) == ["8", "1"]


def test_a_forked_child_is_told_what_to_do():
    code = """
        import os
        from msadapter import runtime
        runtime.ms()
        if os.fork() == 0:
            try:
                runtime.ms()
            except RuntimeError as error:
                print(runtime.forked, "spawn" in str(error), flush=True)
            os._exit(0)
        os.wait()
        print(runtime.forked)
    """
    assert output(code) == ["True", "True", "False"]


def test_a_child_forked_before_the_start_may_start_its_own():
    code = """
        import os
        from msadapter import runtime
        if os.fork() == 0:
            print(runtime.ms().__name__, flush=True)
            os._exit(0)
        os.wait()
    """
    assert output(code) == ["mindspore"]


@pytest.mark.parametrize(
    "package, version, good",
    [
        ("torch", "2.13.0+cpu", True), ("torch", "2.14.1", True), ("torch", "2.12.1", False),
        ("torch", "2.15.0", False),
        ("mindspore", "2.10.0", True), ("mindspore", "2.9.1", False), ("mindspore", "2.11.0", False),
        ("numpy", "1.26.4", True), ("numpy", "2.0.0", False),
    ],
)  # fmt: skip
def test_versions(package, version, good):
    answer = runtime.check_version(package, version)
    if good:
        assert answer is None
    else:
        assert "Expected" in answer and version in answer and "pip install" in answer


def test_an_unsupported_numpy_stops_the_start():
    code = "import numpy; numpy.__version__ = '2.1.0'; from msadapter.runtime import ms; ms()"
    done = run(code)
    assert done.returncode != 0 and 'pip install "numpy<2"' in done.stderr


def test_a_missing_mindspore_says_what_to_install():
    code = """
        import importlib.util, sys
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "mindspore" else find(name, *rest)
        from msadapter.runtime import ms
        ms()
    """
    done = run(code)
    assert done.returncode != 0 and 'pip install "mindspore>=2.10,<2.11"' in done.stderr
