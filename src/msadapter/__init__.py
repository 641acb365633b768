"""msadapter: PyTorch training on MindSpore, unchanged.

`import torch` alone knows `torch.device("mindspore")` once this package is installed; `import msadapter` gives the
functions that are ours: the fallback counts and the settings.
"""


def _autoload():
    """Called at the end of `import torch` (entry point group `torch.backends`)."""
    from .backend import device

    device.register()


from .backend.counters import fallbacks, reset_fallbacks  # noqa: E402
from .config import config, set_config  # noqa: E402

try:
    import torch as _torch  # noqa: F401  (its autoload may call _autoload, which must exist by now)
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise  # without torch, `msadapter doctor` must still be able to say so
else:
    _autoload()

__version__ = "0.1.0"
__all__ = ["config", "fallbacks", "reset_fallbacks", "set_config"]
