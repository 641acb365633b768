"""`msadapter doctor`: what is installed, how MindSpore is set, a self-test under ten seconds, and what is wrong.

The report is made without importing PyTorch or MindSpore, so that it works where they are missing or broken. The
self-test runs in a process of its own: a crash or a hang there is a finding, not the end of the report.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from typing import Any

from . import runtime
from .config import config

SELF_TEST_LIMIT = 60  # seconds; it takes a few
LOSS_TOLERANCE = 1e-5  # relative, over the steps of the self-test
SLOW_CONV = 100  # a convolution this many times slower than PyTorch's is a wrong setting, not a slow kernel
_MARK = "msadapter-self-test "


def main(argv: list[str] | None = None) -> int:
    """Print the report; 1 if something is wrong, else 0."""
    parser = argparse.ArgumentParser(prog="msadapter doctor", description="Check this installation of msadapter.")
    parser.add_argument("--no-self-test", action="store_true", help="only report versions and settings")
    args = parser.parse_args(argv)

    print("Versions")
    versions = installed_versions()
    for name, version in versions.items():
        print(f"  {name:<16}{version or 'not installed'}")

    print("Machine")
    print(f"  {'processor':<16}{processor()}")
    print(f"  {'cores':<16}{usable_cores()} usable of {os.cpu_count()}")
    print(f"  {'vector units':<16}{', '.join(f for f in _VECTOR_FLAGS if f in runtime.cpu_flags()) or 'unknown'}")

    print("Settings")
    for name, value in vars(config).items():
        print(f"  {name:<16}{'not set' if value is None else value}")
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "GLOG_v", "OMP_NUM_THREADS"):
        if os.environ.get(name):
            print(f"  {name:<16}{os.environ[name]} (from the environment)")

    unsupported = wrong_versions(versions)
    wrong = unsupported + wrong_machine() + wrong_settings()
    if "mindspore" in sys.modules and not runtime.started():
        wrong.append(
            "MindSpore was imported before msadapter in this process, with its own settings. Use the device before you "
            "import MindSpore, or set ONEDNN_MAX_CPU_ISA=AVX2 in the environment."
        )

    if unsupported or args.no_self_test:
        print("Self-test\n  not run" + (": the versions have to be put right first" if unsupported else ""))
    else:
        print("Self-test", flush=True)
        result = run_self_test()
        for line in describe(result):
            print(f"  {line}")
        wrong += result.get("wrong", [])

    print()
    if not wrong:
        print("All is well.")
        return 0
    print(f"{len(wrong)} thing{'s' if len(wrong) > 1 else ''} to put right:")
    for sentence in wrong:
        print(f"  - {sentence}")
    return 1


# ------------------------------------------------------------------------------------------- what can be seen from here

_VECTOR_FLAGS = ("avx", "avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "asimd", "sve")


def installed_versions() -> dict[str, str | None]:
    """Version of each package that matters; None where it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("msadapter", "torch", "mindspore", "numpy", "torchvision"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    if found["msadapter"] is None:
        found["msadapter"] = "run from its source"
    return found


def processor() -> str:
    """The processor's name."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wrong_versions(versions: dict[str, str | None]) -> list[str]:
    """Sentences about packages that are missing or not supported."""
    wrong = []
    for name in runtime.SUPPORTED:
        version = versions[name]
        if version is None:
            wrong.append(f'Expected {name}; it is not installed. Install it with: pip install "{runtime.wanted(name)}"')
        else:
            wrong.append(runtime.check_version(name, version) or "")
    if not (3, 10) <= sys.version_info[:2] < (3, 13):
        wrong.append(f"Expected Python 3.10, 3.11 or 3.12; received {versions['python']}.")
    return [sentence for sentence in wrong if sentence]


def wrong_machine() -> list[str]:
    """Sentences about the processor."""
    if platform.machine() in ("x86_64", "AMD64") and runtime.cpu_flags() and "avx2" not in runtime.cpu_flags():
        return ["Expected a processor with AVX2; this one has none, so MindSpore will be very slow or not start."]
    return []


def wrong_settings() -> list[str]:
    """Sentences about settings that make MindSpore slow."""
    if "avx512f" not in runtime.cpu_flags():
        return []
    variables = [("MSADAPTER_CPU_ISA", config.cpu_isa)]
    if not config.cpu_isa:
        variables = [(name, os.environ.get(name)) for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")]
    return [
        f"{name}={value} lets MindSpore's convolutions use AVX-512, where they are up to 100 times slower. Unset it, "
        "or set it to AVX2, unless your model is all MatMul."
        for name, value in variables
        if value and (value.upper().startswith("AVX512") or value.upper() in ("DEFAULT", "ALL"))
    ]


# ------------------------------------------------------------------------------------------------------- the self-test


def run_self_test() -> dict[str, Any]:
    """Run `self_test` in a new Python and return its result, with the sentences about what is wrong under 'wrong'."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "msadapter.doctor", "--in-self-test-process"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            capture_output=True,
            text=True,
            timeout=SELF_TEST_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return {"wrong": [f"Expected the self-test to end within {SELF_TEST_LIMIT} seconds; it did not."]}
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"wrong": [f"The self-test failed with exit code {done.returncode}: {last}"]}
    result = json.loads(lines[-1].removeprefix(_MARK))
    result["seconds"] = time.perf_counter() - start
    result["wrong"] = result.pop("problems") + judge(result)
    return result


def judge(result: dict[str, Any]) -> list[str]:
    """Sentences about numbers of the self-test that are not as they should be."""
    wrong = []
    if not result["loss_error"] <= LOSS_TOLERANCE:
        wrong.append(
            f"Expected the losses of the device within {LOSS_TOLERANCE:g} of PyTorch's on the CPU; they differ by "
            f"{result['loss_error']:.2g}. Please report this, with the output above."
        )
    if result["fallbacks"]:
        wrong.append(f"Expected a training step without fallbacks; these ops ran on the host: {result['fallbacks']}.")
    if result["conv_ms"] > SLOW_CONV * result["torch_conv_ms"]:
        wrong.append(
            f"A convolution takes {result['conv_ms']:.1f} ms on the device and {result['torch_conv_ms']:.1f} ms with "
            f"PyTorch; MindSpore's oneDNN is at {result['isa']}. Set MSADAPTER_CPU_ISA=AVX2."
        )
    return wrong


def describe(result: dict[str, Any]) -> list[str]:
    """The lines that the report shows for a self-test."""
    if "isa" not in result:
        return ["failed"]
    return [
        f"{'device':<14}{result['device']}",
        f"{'oneDNN ISA':<14}{result['isa']}",
        f"{'training':<14}losses within {result['loss_error']:.1g} (relative) of PyTorch's on the CPU",
        f"{'fallbacks':<14}{result['fallbacks'] or 0}",
        f"{'convolution':<14}{result['conv_ms']:.2f} ms (PyTorch {result['torch_conv_ms']:.2f} ms)",
        f"{'matmul':<14}{result['matmul_ms']:.2f} ms (PyTorch {result['torch_matmul_ms']:.2f} ms)",
        f"{'took':<14}{result['seconds']:.1f} s",
    ]


def self_test() -> dict[str, Any]:
    """Train a small network on the device and on the CPU, and time a convolution and a matmul on both."""
    import torch

    import msadapter

    device = torch.device("mindspore")

    def train(where: torch.device | str) -> list[float]:
        torch.manual_seed(0)
        nn = torch.nn
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 3 * 3, 5)
        )  # fmt: skip
        x, y = torch.randn(16, 1, 8, 8).to(where), torch.randint(5, (16,)).to(where)
        model = model.to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(5):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def best_ms(op: Any, *shapes: tuple[int, ...], where: torch.device | str) -> float:
        inputs = [torch.ones(shape).to(where) for shape in shapes]
        op(*inputs)
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            op(*inputs).cpu()
            best = min(best, time.perf_counter() - start)
        return 1e3 * best

    pairs = list(zip(train(device), train("cpu"), strict=True))
    conv = torch.conv2d, (4, 32, 32, 32), (32, 32, 3, 3)
    matmul = torch.matmul, (256, 512), (512, 512)
    return {
        "device": f"{device} on {runtime.ms().get_context('device_target')}",
        "isa": runtime.effective_isa(),
        "problems": runtime.problems,
        "fallbacks": ", ".join(msadapter.fallbacks()),
        "loss_error": max(abs(a - b) / abs(b) for a, b in pairs),
        "conv_ms": best_ms(*conv, where=device),
        "torch_conv_ms": best_ms(*conv, where="cpu"),
        "matmul_ms": best_ms(*matmul, where=device),
        "torch_matmul_ms": best_ms(*matmul, where="cpu"),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--in-self-test-process"]:
        print(_MARK + json.dumps(self_test()))
    else:
        sys.exit(main())
