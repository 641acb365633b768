"""Where compiled programs are written: the folder of `MSADAPTER_CACHE`, or ~/.cache/msadapter.

A folder that cannot be written to is no reason to fail: a temporary one takes its place, with a warning. Nor are files
that are damaged: they are made anew.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import shutil
import sys
import tempfile
import uuid
import warnings

from ..backend.storage import ms
from ..config import config

SUM = "checksum"


def folder():
    """The folder for generated modules, made if need be."""
    return _usable(pathlib.Path(config.cache or os.path.join(os.path.expanduser("~"), ".cache", "msadapter")))


@functools.cache
def _usable(wanted):
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=wanted) as probe:
            probe.write(b"x" * 4096)
            probe.flush()
        return wanted
    except OSError as error:
        return _elsewhere(wanted, error)


@functools.cache
def _temporary():
    made = tempfile.TemporaryDirectory(prefix="msadapter-")
    return made, pathlib.Path(made.name)


def _elsewhere(wanted, error):
    where = _temporary()[1]
    warnings.warn(
        f"Expected to write compiled graphs to {wanted}: {error}. They go to {where} and are lost at exit. "
        "Set MSADAPTER_CACHE to a folder that can be written to.",
        RuntimeWarning,
        stacklevel=3,
    )
    return where


_told = False


@contextlib.contextmanager
def kept(folder):
    """MindSpore keeps what it compiles here in `folder`, and takes it from there if it is there.

    Only the first time in a process: MindSpore stays with the first folder that it is told, and there it finds a graph by
    its number in the process and nothing else. Another graph that is the third to be compiled would be taken for this one.
    """
    global _told
    if _told or not os.path.isfile(sys.argv[0] if sys.argv else ""):  # it wants to see the script: not with python -c
        yield
        return
    _told = True
    intact = _intact(folder)
    where = folder if intact else folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    enabled, path = bool(ms.get_context("enable_compile_cache")), ms.get_context("compile_cache_path")
    ms.set_context(enable_compile_cache=True, compile_cache_path=str(where))
    try:
        yield
        if not intact and any(where.rglob("*.hash")):  # what it writes last, unless the disk is full
            with contextlib.suppress(OSError):
                (where / SUM).write_bytes(_digest(where))
                shutil.rmtree(folder, ignore_errors=True)
                where.rename(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # it may be to blame
        raise
    finally:
        if not intact:
            shutil.rmtree(where, ignore_errors=True)
        ms.set_context(enable_compile_cache=enabled, compile_cache_path=path)


def _intact(folder):
    """Whether the files in `folder` are those that were written. MindSpore finds out only if they make no sense at all."""
    try:
        return (folder / SUM).read_bytes() == _digest(folder)
    except OSError:
        return False


def _digest(folder):
    digest = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != SUM):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder)}\n{len(content)}\n".encode() + content)
    return digest.hexdigest().encode()


def compile(program):
    """Compile `program` with its module in the cache, or elsewhere if the cache fails."""
    try:
        program.compile(folder())
    except OSError as error:
        program.compile(_elsewhere(folder(), error))
