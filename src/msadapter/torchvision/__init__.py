"""`from msadapter.torchvision import datasets, transforms`: torchvision itself, under this name."""

try:
    import torchvision  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torchvision":
        raise
    raise ImportError(
        "Expected torchvision, which msadapter.torchvision is another name of; found no such package. "
        'Install it with: pip install "msadapter[vision]"'
    ) from None

from ..alias import make_alias

make_alias(__name__, "torchvision")
