"""How much the entry point adds to `import torch`: whole processes, with and without it, interleaved.

    python benchmarks/import_time.py [--repeat 11] [--bound 50]

Prints the medians of the process times (ms) and the median of the paired differences. Exit code 1 above --bound.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time


def milliseconds(autoload):
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1" if autoload else "0"}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], env=env, check=True)
    return (time.perf_counter() - start) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=11, help="pairs of processes (default 11)")
    parser.add_argument("--bound", type=float, default=50.0, help="largest difference allowed, ms (default 50)")
    options = parser.parse_args()
    milliseconds(True), milliseconds(False)
    pairs = [(milliseconds(True), milliseconds(False)) for _ in range(options.repeat)]
    with_us, without = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    added = statistics.median(a - b for a, b in pairs)
    print(f"import torch with the device: {with_us:.0f} ms; without: {without:.0f} ms")
    print(f"added: {added:.0f} ms (bound {options.bound:.0f})")
    return added > options.bound


if __name__ == "__main__":
    raise SystemExit(main())
