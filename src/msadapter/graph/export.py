"""`msadapter export`: a PyTorch module as a file for MindSpore (MINDIR) or others (ONNX)."""

import importlib
import importlib.util
import os
import shutil
import sys
import tempfile

from ..cli import UsageError

USAGE = """\
usage: msadapter export MODULE --input SHAPE [--input SHAPE ...] [--input-dtype DTYPE ...] [--dynamic-batch] -o FILE

MODULE           package.module:name, a torch.nn.Module or a function or class that makes one without arguments, looked
                 up from the current directory too; or a .pt file that torch.save(module) made (needs --trust)
  --input          the shape of an input: 1,3,224,224; once for each input
  --input-dtype    its dtype, float32 unless given; once for all inputs, or once for each
  --dynamic-batch  the first dimension of the inputs is a batch of any size
  --trust          load a .pt file although it can run any code while it is loaded
  -o, --output     FILE.mindir: MindSpore loads it without PyTorch or msadapter; FILE.onnx: written by torch.onnx.export

The module is exported in eval mode.
"""


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        if argv:
            print(USAGE, end="")
            return 0
        raise UsageError("expected a module to export; received none. See msadapter export --help.")
    target, options = _parse(argv)
    output = _output(options)
    inputs = _inputs(options)
    module = _module(target, "--trust" in options).eval()
    if output.endswith(".onnx"):
        write = _onnx
    else:
        write = _mindir
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(output)), prefix=".msadapter-") as folder:
        write(module, inputs, "--dynamic-batch" in options, os.path.join(folder, os.path.basename(output)))
        for name in os.listdir(folder):  # MindSpore splits a large model into several
            _move(os.path.join(folder, name), os.path.join(os.path.dirname(os.path.abspath(output)), name))
    print(f"msadapter: wrote {output}: {sum(p.numel() for p in module.parameters()):,} parameters")
    return 0


# ------------------------------------------------------------------------------------------------------------- options

_FLAGS = ("--dynamic-batch", "--trust")
_VALUED = {"--input": "--input", "--input-dtype": "--input-dtype", "-o": "--output", "--output": "--output"}


def _parse(argv):
    """(module, {option: its values})."""
    targets, options, rest = [], {}, list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word in _FLAGS:
            options[word] = [True]
        elif name in _VALUED:
            if not equals:
                if not rest:
                    raise UsageError(f"expected a value after {name}; received none. See msadapter export --help.")
                value = rest.pop(0)
            options.setdefault(_VALUED[name], []).append(value)
        elif word.startswith("-"):
            known = ", ".join([*dict.fromkeys(_VALUED), *_FLAGS])
            raise UsageError(f"unknown option {word!r} of export: expected one of {known}.")
        else:
            targets.append(word)
    if len(targets) != 1:
        raise UsageError(f"expected one module to export; received {len(targets)}: {' '.join(targets)}.")
    return targets[0], options


def _output(options):
    given = options.get("--output", [])
    if len(given) != 1 or not given[0].endswith((".mindir", ".onnx")):
        raise UsageError(f"expected -o FILE.mindir or -o FILE.onnx; received {given[-1] if given else 'none'}.")
    folder = os.path.dirname(os.path.abspath(given[0]))
    if os.path.isdir(given[0]) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"expected -o FILE with a file that can be written; received {given[0]!r}.")
    return given[0]


def _inputs(options):
    import torch

    shapes, dtypes = options.get("--input", []), options.get("--input-dtype", ["float32"])
    if not shapes:
        raise UsageError("expected the shape of each input, --input 1,3,224,224; received none.")
    if len(dtypes) not in (1, len(shapes)):
        raise UsageError(f"expected one --input-dtype, or one for each of {len(shapes)} inputs; received {len(dtypes)}.")
    made = []
    for shape, name in zip(shapes, dtypes * len(shapes) if len(dtypes) == 1 else dtypes):
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise UsageError(f"expected --input-dtype with the name of a torch.dtype; received {name!r}.")
        try:
            size = [int(n) for n in shape.split(",")]
        except ValueError:
            size = [-1]
        if min(size) < 1:
            raise UsageError(f"expected --input with a shape like 1,3,224,224; received {shape!r}.")
        made.append(torch.rand(size).to(dtype) if dtype.is_floating_point else torch.zeros(size, dtype=dtype))
    return made


def _module(target, trusted):
    import torch

    if target.endswith((".pt", ".pth")):
        module = _saved(target, trusted)
    else:
        module = _imported(target)
    if not isinstance(module, torch.nn.Module):
        hint = " Export a module; torch.save(module) saves one." if isinstance(module, dict) else ""
        raise UsageError(f"expected {target!r} to be a torch.nn.Module; it is a {type(module).__name__}.{hint}")
    return module


def _saved(path, trusted):
    import torch

    if not os.path.isfile(path):
        raise UsageError(f"expected a file made by torch.save(module); found no file {path!r} in {os.getcwd()}.")
    if not trusted:
        raise UsageError(f"expected --trust: {path!r} can run any code while it is loaded. Give it if you know its origin.")
    sys.path.insert(0, os.getcwd())
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise UsageError(f"expected a file made by torch.save(module); loading {path!r} failed: {error}") from error


def _imported(target):
    name, colon, attribute = target.partition(":")
    if not colon or not attribute:
        raise UsageError(f"expected package.module:name or a .pt file; received {target!r}.")
    sys.path.insert(0, os.getcwd())
    try:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(name)
    except (ImportError, ValueError):
        raise UsageError(f"expected package.module:name; found no module named {name!r}.") from None
    found = importlib.import_module(name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"expected {target!r} to name a module; {name!r} has no {attribute!r}.")
        found = getattr(found, part)
    import torch

    if not isinstance(found, torch.nn.Module) and callable(found):
        try:
            found = found()
        except TypeError as error:
            raise UsageError(f"expected {target!r} to make a module without arguments: {error}.") from error
    return found


# ------------------------------------------------------------------------------------------------------------- writing


def _mindir(module, inputs, dynamic, path):
    from .. import to_cell
    from ..backend.tracing import CannotCapture

    try:
        cell = to_cell(module, *inputs, dynamic_batch=dynamic)
    except (CannotCapture, ValueError) as error:
        raise UsageError(str(error)) from error
    from ..backend.storage import MS_DTYPE, ms

    given = [
        ms.Tensor(shape=[None, *x.shape[1:]], dtype=MS_DTYPE[x.dtype]) if dynamic else ms.Tensor(x.numpy()) for x in inputs
    ]
    ms.export(cell, *given, file_name=path.removesuffix(".mindir"), file_format="MINDIR")


def _onnx(module, inputs, dynamic, path):
    import torch

    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"expected the packages onnx and onnxscript, which torch.onnx.export needs: pip install {' '.join(missing)}"
        )
    shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs) if dynamic else None
    if dynamic:  # torch.export takes a dimension of 1 for one that is always 1
        inputs = [torch.cat([x, x]) if len(x) == 1 else x for x in inputs]
    torch.onnx.export(module, tuple(inputs), path, dynamo=True, dynamic_shapes=shapes)


def _move(source, target):
    if os.path.isdir(source):
        shutil.rmtree(target, ignore_errors=True)
    os.replace(source, target)
