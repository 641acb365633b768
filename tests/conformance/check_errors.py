"""op_db and module_db: what the CPU refuses, the device must refuse with an exception of the same type."""

import torch

from . import check_modules, check_ops, exceptions
from .report import DEVICE, Side, line, more
from .samples import seed
from .status import Outcome


def entries():
    found = {n: op for n, op in check_ops.entries().items() if op.error_inputs_func is not None}
    modules = {n: m for n, m in check_modules.entries().items() if m.module_error_inputs_func is not None}
    return {**found, **modules}


def check(entry, verbose=False):
    calls = _of_module(entry) if hasattr(entry, "module_cls") else _of_op(entry)
    name = entry.name if hasattr(entry, "module_cls") else entry.full_name
    return compare(calls, verbose, exceptions.OTHER_ERRORS.get(name, {}))


def compare(calls, verbose=False, known=()):
    """The outcome for `calls`, pairs of a label and a step that should raise."""
    found, raised = {"silent": [], "type": []}, 0
    for where, step in calls:
        _, expected = Side("cpu").run(step)
        if expected is None:
            continue
        raised += 1
        _, actual = Side(DEVICE).run(step)
        if type(actual) is type(expected) or where in known:
            continue
        got = type(actual).__name__ if actual else "no error"
        text = f"{where}: {got}, the CPU raises {type(expected).__name__}: {line(expected)}"
        found["type" if actual else "silent"].append(text)
        if verbose:
            print(f"  {text}\n    {type(actual).__name__}: {actual}")
    for status, texts in found.items():
        if texts:
            return Outcome(status, "", texts[0] + more(texts))
    return Outcome("same") if raised else Outcome("skip", "", "the CPU raises nothing")


def _of_op(op):
    seed()
    for i, error in enumerate(op.error_inputs("cpu")):
        given = error.sample_input

        def step(side, given=given):
            x, args, kwargs = side.placed((given.input, given.args, given.kwargs))
            return op(x, *args, **kwargs)

        yield str(i), step


def _of_module(info):
    for training in (True, False):
        seed()
        inputs = info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=training)
        for i, error in enumerate(inputs):
            given = error.module_error_input

            def step(side, given=given, training=training):
                args, kwargs = side.placed((given.constructor_input.args, given.constructor_input.kwargs))
                module = info.module_cls(*args, **kwargs).to(side.place.device).train(training)
                if given.forward_input is not None:
                    args, kwargs = side.placed((given.forward_input.args, given.forward_input.kwargs))
                    module(*args, **kwargs)

            yield f"{i}{'' if training else ' eval'}", step
