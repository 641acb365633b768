"""msadapter: PyTorch training on MindSpore, unchanged.

`import torch` alone knows `torch.device("mindspore")` once this package is installed; `import msadapter` gives the
functions that are ours: the fallback counts and the settings.
"""

import os as _os
import sys as _sys


def _autoload():
    """Called at the end of `import torch` (entry point group `torch.backends`)."""
    from . import runtime
    from .backend import device
    from .graph import dynamo
    from .imports import when_imported

    device.register()
    if _switches not in runtime.when_started:  # the first time
        runtime.when_started.append(_switches)
        when_imported("torch._dynamo", dynamo.install)  # torch.compile(backend="mindspore")


def _switches(mindspore):
    """MindSpore's own ways to a static graph, once the device is used."""
    from .graph import switches

    switches.install(mindspore)


def enable(*, cuda_alias: bool) -> None:
    """Route the device names 'cuda' and 'npu' to `mindspore` in this process, as `msadapter run` does.

    Call it before the script asks `torch.cuda.is_available()`. It cannot be undone: `cuda_alias=False` changes nothing.
    """
    if cuda_alias:
        from .backend import cuda_alias as alias

        alias.enable()


def compile(fn=None, *, fullgraph=False, dynamic=None):
    """Make the calls of `fn`, usually a whole training step, MindSpore graphs. See `msadapter.graph.compile.compile`."""
    from .backend import device
    from .graph.compile import compile

    device.activate()
    return compile(fn, fullgraph=fullgraph, dynamic=dynamic)


def to_cell(module, *example_inputs, dynamic_batch=False):
    """A `mindspore.nn.Cell` that does what `module` does, with Parameters named as in `module.state_dict()`.

    module: on any device; it is not changed. Its training mode now is the cell's for good.
    example_inputs: tensors with the shapes and dtypes that the cell will take.
    dynamic_batch: whether the first dimension of all inputs is a batch of any size.

    `cell.to_module()` writes the cell's weights back into `module` and returns it.
    """
    from .backend import device

    device.activate()
    from .graph.cell import to_cell

    return to_cell(module, *example_inputs, dynamic_batch=dynamic_batch)


try:
    from .config import config, set_config
except ValueError as _error:  # a wrong MSADAPTER_* variable
    if _os.path.basename(_sys.argv[0] if _sys.argv else "") != "msadapter" and "msadapter" not in _sys.orig_argv[1:3]:
        raise
    print(f"msadapter: {_error}", file=_sys.stderr)  # the command line answers with a message, not a traceback
    raise SystemExit(2) from None

from .backend.counters import fallbacks, reset_fallbacks  # noqa: E402

try:
    import torch as _torch  # noqa: F401  (its autoload may call _autoload, which must exist by now)
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise  # without torch, `msadapter doctor` must still be able to say so
else:
    _autoload()

__version__ = "0.1.0"
__all__ = ["compile", "config", "enable", "fallbacks", "reset_fallbacks", "set_config", "to_cell"]
