"""What is found out about one entry: the same steps run on the CPU and on the device, and how they differ."""

import contextlib
import dataclasses
import re
import traceback
import warnings

import torch

from . import exceptions
from .compare import Rules, difference, stride_difference
from .samples import Place, seed
from .status import Outcome

DEVICE = "mindspore"


class Side:
    """One of the two devices. Steps keep on it what a later step of the same sample needs."""

    def __init__(self, device, wide=False):
        self.place = Place(device, wide)
        self.host_ops = []
        self.steps = []

    def run(self, step):
        """(value, None) or (None, exception) of `step(self)`, from the same seed on either side."""
        from msadapter import fallbacks, reset_fallbacks

        self.reset = reset_fallbacks
        self.steps.append(step)
        reset_fallbacks()
        seed()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with _default_dtype(torch.float64 if self.place.wide else None):
                    return step(self), None
        except Exception as error:
            return None, error
        finally:
            self.host_ops = sorted(fallbacks())

    def placed(self, tree):
        """`tree` on this side's device; ops that the copy itself needed are not counted."""
        copy = self.place(tree)
        self.reset()
        return copy


class Report:
    """Collects the differences of an entry's samples; `outcome()` is its line in the status file."""

    def __init__(self, verbose=False):
        self.verbose = verbose
        self.problems = []  # (status, text), in the order found
        self.host = {}  # op -> True if it was part of forward or gradient
        self.strides = []
        self.rounding = []  # where only the float64 result could tell that the device is right
        self.compared = {}  # form -> True, in the order first compared
        self.cpu_error = None

    def check(self, where, form, step, cpu, device, rules, *, counts=True):
        """Run `step` on both sides and compare; False if it makes no sense to go on with this sample."""
        expected, cpu_error = cpu.run(step)
        actual, error = device.run(step)
        label = f"{where} {form}".strip()
        if cpu_error is not None:
            self.cpu_error = self.cpu_error or f"{type(cpu_error).__name__}: {line(cpu_error)}"
            if error is None and form == "inplace":  # elsewhere the device may do what the CPU has no kernel for
                self._problem("wrong", f"{label}: no error, the CPU raises {type(cpu_error).__name__}", cpu_error)
            return False
        if error is not None:
            self._problem("error", f"{label}: {type(error).__name__}: {line(error)}", error)
            return False
        for op in device.host_ops:
            self.host[op] = self.host.get(op, False) or counts
        self.compared[form] = True
        try:
            text = difference(expected, actual, rules)
            if text and "values differ" in text:
                text = difference(expected, actual, rules, _exact(cpu.steps))
                if not text:
                    self.rounding.append(label)
        except Exception as unreadable:
            self._problem("error", f"{label}: cannot be read: {type(unreadable).__name__}: {line(unreadable)}", unreadable)
            return False
        if text:
            self._problem("wrong", f"{label}: {text}")
            return False
        text = stride_difference(expected, actual)
        if text:
            self.strides.append(f"{label}: {text}")
        return True

    def _problem(self, status, text, error=None):
        self.problems.append((status, text))
        if self.verbose:
            print(f"    {status}: {text}")
            if error is not None:
                traceback.print_exception(error)

    def outcome(self):
        counted = [op for op, counts in self.host.items() if counts]
        others = [op for op, counts in self.host.items() if not counts]
        compared = " ".join(self.compared)
        notes = []
        if others:
            notes.append("host in variants: " + ", ".join(sorted(others)))
        if self.strides:
            notes.append(f"strides differ: {self.strides[0]}" + more(self.strides))
        if self.rounding:
            notes.append(f"equal by the float64 result: {self.rounding[0]}" + more(self.rounding))
        for status in ("wrong", "error"):
            found = [text for s, text in self.problems if s == status]
            if found:
                return Outcome(status, compared, found[0] + more(found))
        if not self.compared:
            return Outcome("skip", "", f"the CPU cannot: {self.cpu_error}" if self.cpu_error else "no samples")
        if counted:
            return Outcome("fallback", compared, "; ".join(["host: " + ", ".join(sorted(counted)), *notes]))
        return Outcome("native", compared, "; ".join(notes))


def rules_of(name, dtype=None, **changes):
    """How the results of an entry are compared."""
    wider = exceptions.WIDER.get(f"{name} {dtype}".replace("torch.", "")) or exceptions.WIDER.get(name)
    values = name not in exceptions.NO_VALUES
    return dataclasses.replace(Rules(tolerance=wider[:2] if wider else None, values=values), **changes)


def _exact(steps):
    """The last of the steps' results in float64 on the CPU; None if they do not run so."""
    side = Side("cpu", wide=True)
    return [side.run(step)[0] for step in steps][-1]


@contextlib.contextmanager
def _default_dtype(dtype):
    """Floats that are made from integers, too, are of `dtype`."""
    old = torch.get_default_dtype()
    torch.set_default_dtype(dtype or old)
    try:
        yield
    finally:
        torch.set_default_dtype(old)


def more(items):
    return f" (+{len(items) - 1} more)" if len(items) > 1 else ""


def line(error):
    """The first line of a message, without what differs from run to run."""
    lines = str(error).strip().splitlines()
    text = re.sub(r"0x[0-9a-fA-F]+", "0x...", lines[0] if lines else "")
    return text if len(text) <= 110 else text[:107] + "..."
