"""Run many programs: `python -m tests.programs --count 2000 --seed 0`."""

import argparse
import collections
import sys
import time

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st

import msadapter

from .machine import Machine, Mismatch


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=16, help="lines of a program, at most")
    options = parser.parse_args()
    msadapter.set_config(fallback="silent")
    torch.empty(1, device="mindspore")  # MindSpore starts now, not inside a program
    started, count, lines, modes, found = time.monotonic(), 0, 0, collections.Counter(), False

    @hypothesis.seed(options.seed)
    @settings(
        max_examples=options.count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
    )
    @hypothesis.given(st.data())
    def programs(data):
        nonlocal count, lines, found
        machine = Machine(lambda low, high: data.draw(st.integers(low, high)))
        count += 1
        modes[machine.mode] += 1
        try:
            machine.run(data.draw(st.integers(1, options.length)))
        except Mismatch as mismatch:
            if not found:
                print(f"{mismatch}\n{count} programs, a mismatch; shrinking", file=sys.stderr, flush=True)
            found = True
            raise
        lines += len(machine.lines)

    try:
        programs()
    except Mismatch as mismatch:
        print(mismatch)
        print(f"{count} programs, a mismatch")
        return 1
    kinds = ", ".join(f"{n} {mode}" for mode, n in modes.items())
    print(f"{count} programs, 0 mismatches ({kinds}; {lines} lines, {time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
