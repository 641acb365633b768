"""What an op on the device costs above MindSpore's own call, in microseconds.

Each row times, interleaved in one run, an op on 8x8 float32 device tensors and MindSpore on the same values: the bare
primitive, called by hand, and the function that a MindSpore user calls (`a + b`, `mint.sqrt(a)`). Medians of single calls;
`above` is the difference of medians. In-place ops have no counterpart that works on CPU and are set beside the same
functional call. `least` is a kernel in Python that calls the primitive and returns a tensor made beforehand: what torch's
way to such a kernel costs, whatever the kernel looks like.

    python benchmarks/dispatch.py [--calls 4000] [--bound 5]

Exit code 1 if an op costs more than --bound above MindSpore's public function.
"""

import argparse
import statistics
import time

import torch

torch.ones(1, device="mindspore")
import mindspore as ms  # noqa: E402

from msadapter.backend import routes, storage  # noqa: E402

LIBRARY = torch.library.Library("msadapter_benchmark", "DEF")


def least(name, primitive, *operands):
    """A call of an op whose kernel does next to nothing but call the primitive."""
    compute, values, out = routes.bare(primitive), [storage.read(x) for x in operands], operands[0]
    takes = ", ".join(f"Tensor x{i}" for i in range(len(operands)))
    LIBRARY.define(f"{name}({takes}) -> Tensor")
    LIBRARY.impl(name, lambda *_: (compute(values), out)[1], "PrivateUse1")
    op = getattr(torch.ops.msadapter_benchmark, name).default
    return lambda: op(*operands)


def rows():
    x, y = torch.rand(8, 8).to("mindspore"), torch.rand(8, 8).to("mindspore")
    a, b = storage.read(x), storage.read(y)
    add, mul, sqrt, neg, matmul = ms.ops.Add(), ms.ops.Mul(), ms.ops.Sqrt(), ms.ops.Neg(), ms.ops.MatMul()
    product = lambda v, w: matmul(v, w)  # noqa: E731  it has attributes, which a bare call would need
    return {
        "add": (lambda: x + y, lambda: add(a, b), lambda: a + b, least("add", add, x, y)),
        "mul": (lambda: x * y, lambda: mul(a, b), lambda: a * b, least("mul", mul, x, y)),
        "sqrt": (lambda: torch.sqrt(x), lambda: sqrt(a), lambda: ms.mint.sqrt(a), least("sqrt", sqrt, x)),
        "neg": (lambda: -x, lambda: neg(a), lambda: -a, least("neg", neg, x)),
        "mm": (lambda: x @ y, lambda: matmul(a, b), lambda: a @ b, least("mm", product, x, y)),
        "add_": (lambda: x.add_(y), lambda: add(a, b), lambda: a + b, least("add_", add, x, y)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=4000, help="timed calls of each column (default 4000)")
    parser.add_argument("--bound", type=float, default=5.0, help="largest cost above the public function, us (default 5)")
    options = parser.parse_args()
    print(f"{'op':6}{'device':>9}{'primitive':>11}{'above':>8}{'function':>11}{'above':>8}{'least':>9}{'above':>8}   (us)")
    worst = 0.0
    for name, calls in rows().items():
        times = [[], [], [], []]
        for i in range(options.calls + 100):
            for k, call in enumerate(calls):
                start = time.perf_counter()
                call()
                if i >= 100:
                    times[k].append((time.perf_counter() - start) * 1e6)
        device, primitive, function, floor = map(statistics.median, times)
        worst = max(worst, device - function)
        beside = "".join(f"{t:{width}.1f}{device - t:8.1f}" for t, width in ((primitive, 11), (function, 11), (floor, 9)))
        print(f"{name:6}{device:9.1f}{beside}")
    print(f"most above MindSpore's public function: {worst:.1f} us (bound {options.bound:g})")
    return worst > options.bound


if __name__ == "__main__":
    raise SystemExit(main())
