"""The kernels, one file per ATen family. A file registers its kernels when it is imported."""

import importlib
import pkgutil


def load():
    """Import every family, then torch's decompositions for what is left."""
    from .. import autocast, composite, fallback, registry

    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    composite.register()
    registry.install()
    autocast.register()
    fallback.register()
