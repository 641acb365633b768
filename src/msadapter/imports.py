"""Waiting for an import: `when_imported("mindspore", fn)` costs nothing until somebody imports that module."""

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then` when the module `name` has been imported."""

    def __init__(self, name, then):
        self.name, self.then, self.searching = name, then, False

    def find_spec(self, name, path=None, target=None):
        if name != self.name or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                sys.meta_path.remove(self)
                self.then()

            spec.loader.exec_module = exec_module
        return spec


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call `then` now if the module is imported, else right after its import."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))
