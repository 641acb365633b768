"""The command line: `msadapter run script.py [args]`, `msadapter doctor`, `msadapter coverage`, `msadapter export`.

`run` executes the script in this process as `python script.py` would: its module is `__main__`, `sys.argv`,
`sys.path[0]` and `__file__` are the script's, and exceptions, exit codes and signals end as they do there.
"""

import builtins
import importlib.machinery
import importlib.util
import io
import os
import runpy
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

USAGE = """\
usage: msadapter run [--report[=FILE.json]] [--cpu-reference] SCRIPT [ARGS ...]
       msadapter run [options] -m MODULE [ARGS ...]
       msadapter doctor
       msadapter coverage [--output FILE.html] [--summary] [--run]
       msadapter export MODULE --input SHAPE -o FILE.mindir
       msadapter --version | --help

run       run a PyTorch script on the mindspore device, unchanged: the device is the default one, and 'cuda' and
          'npu' are names of it
  --report            print at the end what ran: native ops, fallbacks, host syncs, seconds
  --report=FILE.json  write that to a file
  --cpu-reference     run the script on PyTorch's CPU, without msadapter, for comparison
doctor    check this installation: versions, processor, settings, a self-test
coverage  write which of PyTorch's functions, methods, modules and optimizers work, as a page to search
export    write a module for MindSpore, without PyTorch in it; see msadapter export --help
"""


class UsageError(Exception):
    """A command that cannot be carried out: its message goes to stderr, and the exit code is 2."""


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        return _command(argv)
    except UsageError as error:
        print(f"msadapter: {error}", file=sys.stderr)
        return 2


def _command(argv: list[str]) -> int:
    if not argv:
        raise UsageError("expected a command; received none. Commands: run, doctor, coverage, export. See msadapter --help.")
    name, rest = argv[0], argv[1:]
    if name in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if name in ("-V", "--version"):
        from . import __version__

        print(f"msadapter {__version__}")
        return 0
    if name == "run":
        return _run(rest)
    if name == "doctor":
        from . import doctor

        return doctor.main(rest)
    if name == "coverage":
        from . import coverage

        return coverage.main(rest)
    if name == "export":
        from .graph import export

        return export.main(rest)
    raise UsageError(f"expected a command (run, doctor, coverage, export); received {name!r}. See msadapter --help.")


# ----------------------------------------------------------------------------------------------------------------- run


def _run(argv: list[str]) -> int:
    report: str | None = None  # "" prints it, anything else is the file
    reference = False
    while argv and argv[0].startswith("-") and argv[0] != "-m":
        option, argv = argv[0], argv[1:]
        if option in ("-h", "--help"):
            print(USAGE, end="")
            return 0
        if option == "--cpu-reference":
            reference = True
        elif option == "--report":
            report = ""
        elif option.startswith("--report="):
            report = option.partition("=")[2]
            _check_writable(report)
        else:
            raise UsageError(
                f"unknown option {option!r} of run: expected --report, --report=FILE.json, --cpu-reference or -m, "
                "before the script's name (what follows it goes to the script)."
            )
    start = _target(argv)
    if reference:
        if report is not None:
            raise UsageError("expected --report or --cpu-reference, received both: the report is about the device.")
        _run_reference(argv)
    return _run_here(start, argv, report)


def _target(argv: list[str]) -> Callable[[], None]:
    """What runs the script or module that argv names; a UsageError if there is none."""
    if not argv or argv == ["-m"]:
        raise UsageError("expected a script or -m MODULE to run; received none.")
    if argv[0] == "-m":
        _check_module(argv[1])
        return lambda: runpy._run_module_as_main(argv[1], alter_argv=True)  # type: ignore[attr-defined]
    path = argv[0]
    if not os.path.exists(path):
        raise UsageError(f"expected a script; found no file {path!r} in {os.getcwd()}.")
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
            raise UsageError(f"expected a script; {path!r} is a directory without a __main__.py.")
        return lambda: runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
    if not os.access(path, os.R_OK):
        raise UsageError(f"expected a script that can be read; {path!r} cannot (permission denied).")
    return lambda: _run_script(path)


def _check_module(name: str) -> None:
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    finally:
        del sys.path[0]
    if found is None:
        raise UsageError(f"expected a module to run; found no module named {name!r}.")


def _run_reference(argv: list[str]) -> NoReturn:
    """Become `python script.py` on the CPU: no device is registered, nothing is patched, no GPU is seen."""
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_VISIBLE_DEVICES": ""}
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *flags, *argv], environ)


def _run_here(start: Callable[[], None], argv: list[str], report: str | None) -> int:
    from .config import set_config

    if report is not None:
        set_config(profile=True)  # kernels look at it when they are registered
        from . import report as reporting

        reporting.at_exit(report, argv)
    _prepare()
    _share_with_children()

    module = types.ModuleType("__main__")
    vars(module).update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = module
    if argv[0] == "-m":
        sys.argv, path = ["-m", *argv[2:]], os.getcwd()
    else:
        sys.argv, path = list(argv), os.path.realpath(argv[0])
        path = path if os.path.isdir(path) or path.endswith((".zip", ".pyz")) else os.path.dirname(path)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = path
    elif os.path.isdir(argv[0]):
        sys.path.insert(0, path)
    return _guarded(start)


def _prepare() -> None:
    """What makes a process run scripts unchanged."""
    try:
        from .backend import cuda_alias, implicit
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        install = 'Install it with: pip install "torch>=2.13,<2.15"'
        raise UsageError(f"expected PyTorch; found no module torch. {install}") from None
    cuda_alias.enable()
    implicit.enable()


def _run_script(path: str) -> None:
    path = os.path.abspath(path)
    with io.open_code(path) as file:
        source = file.read()
    code = compile(source, path, "exec", dont_inherit=True)
    if b"npu" in source:  # torch does not know this device name; a script need not import torch_npu to use it
        from .backend import npu_alias

        npu_alias.activate()
    module = sys.modules["__main__"]
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(module).update(__file__=path, __cached__=None, __package__=None, __loader__=loader, __spec__=None)
    exec(code, vars(module))


# ----------------------------------------------------------------------------------------------- exceptions and signals


def _guarded(start: Callable[[], None]) -> int:
    """Call start; report an exception as the interpreter would have, without the frames of this package."""
    try:
        start()
    except SystemExit:
        raise
    except BaseException as error:
        _strip(error)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):  # Python ends such a process by the signal, after its clean-up
            sys.excepthook = lambda *args: None
            raise
        return 1
    return 0


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_KEPT = os.path.join("backend", "kernels") + os.sep  # an error in a kernel shows where; everything else passes calls on


def _strip(error: BaseException | None, seen: set[int] | None = None) -> None:
    """Take the frames of this package out of an exception, and the failed native attempt before torch's own error."""
    seen = set() if seen is None else seen
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    kept, hosted = [], False
    for t in _walk(error.__traceback__):
        name = t.tb_frame.f_code.co_filename
        if name.startswith(_PACKAGE) and not name.startswith(_PACKAGE + _KEPT):
            hosted = hosted or name.endswith("fallback.py")
        elif not (hosted and name.endswith("_ops.py")):
            kept.append((t.tb_frame, t.tb_lasti, t.tb_lineno))
    if hosted:  # torch's own error: the kernel that was tried is nobody's concern
        kept = [k for k in kept if not k[0].f_code.co_filename.startswith(_PACKAGE)]
    chain = None
    for frame, last, line in reversed(kept):
        chain = types.TracebackType(chain, frame, last, line)
    error.__traceback__ = chain
    context = error.__context__
    if context is not None and context.__traceback__ is not None:
        if context.__traceback__.tb_frame.f_code.co_filename.startswith(_PACKAGE) and hosted:
            error.__context__ = None
    _strip(error.__cause__, seen)
    _strip(error.__context__, seen)


def _walk(tb: types.TracebackType | None) -> Any:
    while tb is not None:
        yield tb
        tb = tb.tb_next


# ----------------------------------------------------------------------------------------------------- spawned children


class _Prepare:
    """Unpickled by a spawned child before it imports the script: calls `_prepare` there."""

    def __reduce__(self) -> Any:
        return _prepare, ()


def _share_with_children() -> None:
    """Processes started by `spawn` or `forkserver` run the script's functions under the same rules."""
    from multiprocessing import spawn

    original = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**original(name), "msadapter": _Prepare()}

    spawn.get_preparation_data = get_preparation_data


def _check_writable(path: str) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    if not path or os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"expected --report=FILE.json with a file that can be written; received {path!r}.")


if __name__ == "__main__":
    sys.exit(main())
