"""What an op on the device costs above MindSpore's own call, in microseconds.

Each row times, interleaved in one run, an op on 8x8 device tensors and the MindSpore primitive that it runs, called by
hand on the same values. `overhead` is the difference of the medians.

    python benchmarks/dispatch.py [--repeat 31] [--bound 5]

Exit code 1 if the overhead of a functional op is above --bound.
"""

import argparse
import statistics
import time

import torch

torch.ones(1, device="mindspore")
import mindspore as ms  # noqa: E402

from msadapter.backend import storage  # noqa: E402


def rows():
    x = torch.rand(8, 8).to("mindspore")
    y = torch.rand(8, 8).to("mindspore")
    a, b = storage.read(x), storage.read(y)
    add, exp, relu, matmul = ms.ops.Add(), ms.ops.Exp(), ms.ops.ReLU(), ms.ops.MatMul()
    return {
        "add": (lambda: torch.add(x, y), lambda: add(a, b)),
        "exp": (lambda: torch.exp(x), lambda: exp(a)),
        "relu": (lambda: torch.relu(x), lambda: relu(a)),
        "mm": (lambda: torch.mm(x, y), lambda: matmul(a, b)),
        "add_": (lambda: x.add_(y), lambda: add(a, b)),
    }


def microseconds(fn, calls=300):
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    return (time.perf_counter() - start) / calls * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=31, help="interleaved repeats of each pair (default 31)")
    parser.add_argument("--bound", type=float, default=5.0, help="largest overhead allowed, us (default 5)")
    options = parser.parse_args()
    print(f"{'op':8}{'device us':>12}{'MindSpore us':>14}{'overhead us':>13}")
    worst = 0.0
    for name, (ours, theirs) in rows().items():
        ours(), theirs()
        pairs = [(microseconds(ours), microseconds(theirs)) for _ in range(options.repeat)]
        device, primitive = (statistics.median(p[i] for p in pairs) for i in (0, 1))
        overhead = statistics.median(p[0] - p[1] for p in pairs)
        worst = max(worst, overhead)
        print(f"{name:8}{device:12.2f}{primitive:14.2f}{overhead:13.2f}")
    print(f"worst overhead: {worst:.2f} us (bound {options.bound})")
    return worst > options.bound


if __name__ == "__main__":
    raise SystemExit(main())
