"""Packages that are another name of a package: `msadapter.pytorch` is torch, `msadapter.pytorch.nn` is torch.nn, ...

Importing `msadapter.pytorch.x.y` imports `torch.x.y` and enters that same module object under both names, so that
classes, module state and monkeypatches are shared, and pickles keep torch's names.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys

_TARGETS: dict[str, str] = {}  # "msadapter.pytorch" -> "torch"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        for alias, real in _TARGETS.items():
            if name.startswith(alias + "."):
                real += name[len(alias) :]
                try:
                    if importlib.util.find_spec(real) is None:
                        return None  # Python then raises ModuleNotFoundError with the name that was asked for
                except ModuleNotFoundError:
                    return None
                return importlib.machinery.ModuleSpec(name, self, loader_state=real)
        return None

    def create_module(self, spec):
        module = importlib.import_module(spec.loader_state)
        spec.loader_state = (module, module.__spec__)
        return module

    def exec_module(self, module):
        """The import system has just put its own spec on the module: give the real one back."""
        module.__spec__ = module.__spec__.loader_state[1]


def make_alias(alias: str, real: str) -> None:
    """Make package `alias`, which is being imported, another name of the imported package `real`."""
    if not _TARGETS:
        sys.meta_path.insert(0, _Finder())
    _TARGETS[alias] = real
    sys.modules[alias] = sys.modules[real]
