"""What an op on the device costs above MindSpore's own call, in microseconds.

Each row times, interleaved in one run, an op on 8x8 float32 device tensors and MindSpore on the same values: the bare
primitive, called by hand, and the function that a MindSpore user calls (`a + b`, `mint.sqrt(a)`). Medians of single calls;
`above` is the difference of medians. In-place ops have no counterpart that works on CPU and are set beside the same
functional call.

    python benchmarks/dispatch.py [--calls 4000] [--bound 5]

Exit code 1 if an op costs more than --bound above MindSpore's public function.
"""

import argparse
import statistics
import time

import torch

torch.ones(1, device="mindspore")
import mindspore as ms  # noqa: E402

from msadapter.backend import storage  # noqa: E402


def rows():
    x, y = torch.rand(8, 8).to("mindspore"), torch.rand(8, 8).to("mindspore")
    a, b = storage.read(x), storage.read(y)
    add, mul, sqrt, neg, matmul = ms.ops.Add(), ms.ops.Mul(), ms.ops.Sqrt(), ms.ops.Neg(), ms.ops.MatMul()
    return {
        "add": (lambda: x + y, lambda: add(a, b), lambda: a + b),
        "mul": (lambda: x * y, lambda: mul(a, b), lambda: a * b),
        "sqrt": (lambda: torch.sqrt(x), lambda: sqrt(a), lambda: ms.mint.sqrt(a)),
        "neg": (lambda: -x, lambda: neg(a), lambda: -a),
        "mm": (lambda: x @ y, lambda: matmul(a, b), lambda: a @ b),
        "add_": (lambda: x.add_(y), lambda: add(a, b), lambda: a + b),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=4000, help="timed calls of each column (default 4000)")
    parser.add_argument("--bound", type=float, default=5.0, help="largest cost above the public function, us (default 5)")
    options = parser.parse_args()
    print(f"{'op':6}{'device':>9}{'primitive':>11}{'above':>8}{'function':>11}{'above':>8}   (us)")
    worst = 0.0
    for name, calls in rows().items():
        times = [[], [], []]
        for i in range(options.calls + 100):
            for k, call in enumerate(calls):
                start = time.perf_counter()
                call()
                if i >= 100:
                    times[k].append((time.perf_counter() - start) * 1e6)
        device, primitive, function = map(statistics.median, times)
        worst = max(worst, device - function)
        print(
            f"{name:6}{device:9.1f}{primitive:11.1f}{device - primitive:8.1f}{function:11.1f}{device - function:8.1f}"
        )
    print(f"most above MindSpore's public function: {worst:.1f} us (bound {options.bound:g})")
    return worst > options.bound


if __name__ == "__main__":
    raise SystemExit(main())
