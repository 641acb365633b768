"""Training tools: exact gradient accumulation, loss scaling, and MindSpore's training Cells.

Each name is imported when it is first used: the Cells need MindSpore, `TrainStep` needs torch alone.
"""

import importlib

_HOME = {
    "TrainStep": "step",
    "StepOutput": "step",
    "valid_targets": "accumulation",
    "samples": "accumulation",
    "LossScaler": "loss_scale",
    "TrainForwardBackward": "cells",
    "TrainOptim": "cells",
    "TrainClear": "cells",
    "GradientAccumulation": "cells",
    "TrainAccuStepsCell": "model",
    "TrainAccuStepsWithLossScaleCell": "model",
    "Model_ACCU": "model",
}
__all__ = list(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: expected one of {', '.join(_HOME)}.")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_HOME])
