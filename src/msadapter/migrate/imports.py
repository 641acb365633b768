"""Rewrite a project's imports of torch and torchvision to msadapter.pytorch and msadapter.torchvision.

    python -m msadapter.migrate.imports PROJECT        (tools/replace_import_package.sh PROJECT)

Only import statements change; comments, strings, formatting, line ends and encodings stay as they are. The originals of
the changed files are kept in PROJECT.bak (a directory; PROJECT.bak1, ... if it exists). Nothing is changed twice.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

import libcst as cst

PACKAGES = {"torch": "pytorch", "torchvision": "torchvision"}
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"}



# ------------------------------------------------------------------------------------------------------------- one file


def rewrite(source: bytes) -> bytes:
    """The source with its imports rewritten; the same bytes if there are none. Raises if it is not Python."""
    module = cst.parse_module(source)
    if module.bytes != source:
        raise ValueError("it would not keep its exact bytes")
    changed = module.visit(_Imports())
    return source if changed.deep_equals(module) else changed.bytes


def _root(name: cst.BaseExpression) -> str:
    while isinstance(name, cst.Attribute):
        name = name.value
    return name.value if isinstance(name, cst.Name) else ""


def _renamed(name: cst.BaseExpression) -> cst.BaseExpression:
    """torch.nn -> msadapter.pytorch.nn"""
    if isinstance(name, cst.Attribute):
        return name.with_changes(value=_renamed(name.value))
    assert isinstance(name, cst.Name)
    return cst.Attribute(
        value=cst.Name("msadapter", lpar=name.lpar), attr=cst.Name(PACKAGES[name.value], rpar=name.rpar)
    )


class _Imports(cst.CSTTransformer):
    def leave_ImportFrom(self, original: cst.ImportFrom, updated: cst.ImportFrom) -> cst.ImportFrom:
        if original.relative or original.module is None or _root(original.module) not in PACKAGES:
            return updated
        return updated.with_changes(module=_renamed(original.module))

    def leave_Import(self, original: cst.Import, updated: cst.Import) -> cst.Import:
        """`import torch.nn` binds `torch`; so does `import msadapter.pytorch as torch, msadapter.pytorch.nn`."""
        if not any(_root(alias.name) in PACKAGES for alias in original.names):
            return updated
        names: list[cst.ImportAlias] = []
        bound: set[str] = set()
        for alias in original.names:
            root = _root(alias.name)
            if root not in PACKAGES:
                names.append(alias)
                continue
            if alias.asname is None and root not in bound:
                bound.add(root)
                whole = isinstance(alias.name, cst.Name)
                names.append(_bind(root, alias.comma if whole else cst.MaybeSentinel.DEFAULT))
                if whole:
                    continue
            if alias.asname is not None or isinstance(alias.name, cst.Attribute):
                names.append(alias.with_changes(name=_renamed(alias.name)))
            # a second `torch` in one statement binds the same name again: nothing to add
        last = names[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated.with_changes(names=[*(_with_comma(n) for n in names[:-1]), last])


def _bind(root: str, comma: "cst.Comma | cst.MaybeSentinel") -> cst.ImportAlias:
    return cst.ImportAlias(name=_renamed(cst.Name(root)), asname=cst.AsName(cst.Name(root)), comma=comma)  # type: ignore[arg-type]


def _with_comma(alias: cst.ImportAlias) -> cst.ImportAlias:
    if isinstance(alias.comma, cst.Comma):
        return alias
    return alias.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))


# ------------------------------------------------------------------------------------------------------------ a project


def python_files(path: str) -> Iterator[str]:
    """The .py files under path: no hidden folders, environments or caches, no symbolic links."""
    if os.path.isfile(path):
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(
            d
            for d in folders
            if not d.startswith(".")
            and d not in SKIPPED_FOLDERS
            and not os.path.exists(os.path.join(folder, d, "pyvenv.cfg"))
        )
        for name in sorted(files):
            file = os.path.join(folder, name)
            if name.endswith(".py") and not os.path.islink(file):
                yield file


def backup_path(path: str) -> str:
    """PATH.bak, or PATH.bak1, PATH.bak2, ... if that exists."""
    base = os.path.abspath(path) + ".bak"
    candidate, n = base, 0
    while os.path.lexists(candidate):
        n += 1
        candidate = f"{base}{n}"
    return candidate


def replace_file(file: str, data: bytes) -> None:
    """Write the whole file or nothing, keeping its permissions."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(file)), prefix=".msadapter-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        shutil.copymode(file, temporary)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="replace_import_package.sh",
        description="Rewrite the imports of torch and torchvision in a project to msadapter.pytorch and "
        "msadapter.torchvision. The originals of changed files are kept in PROJECT.bak.",
    )
    parser.add_argument("project", metavar="PROJECT", help="a folder (all .py files under it) or one .py file")
    project = parser.parse_args(argv).project
    if not os.path.exists(project):
        print(f"Expected a project folder or a .py file; found nothing at {project!r}.", file=sys.stderr)
        return 2
    if os.path.isfile(project) and not project.endswith(".py"):
        print(f"Expected a folder or a .py file; received {project!r}.", file=sys.stderr)
        return 2
    return replace_imports(project)


def replace_imports(project: str) -> int:
    """Rewrite every file under project. 0: all done; 1: some files were left alone, each with its reason on stderr."""
    changed: dict[str, bytes] = {}
    problems = 0
    count = 0
    for file in python_files(project):
        count += 1
        try:
            with open(file, "rb") as f:
                source = f.read()
            new = rewrite(source)
        except Exception as error:  # libcst raises several kinds for what is not Python
            problems += 1
            print(f"left alone: {file}: {_reason(error)}", file=sys.stderr)
            continue
        if new != source:
            changed[file] = new

    if changed:
        backup = backup_path(project)
        try:
            for file in changed:
                kept = os.path.join(backup, os.path.relpath(file, project)) if os.path.isdir(project) else backup
                os.makedirs(os.path.dirname(kept), exist_ok=True)
                shutil.copy2(file, kept)
        except OSError as error:
            print(f"Nothing was changed: the backup {backup!r} could not be written: {error}", file=sys.stderr)
            return 1
        written = 0
        for file, data in changed.items():
            try:
                replace_file(file, data)
                written += 1
                print(f"changed: {file}")
            except OSError as error:
                problems += 1
                print(f"left alone: {file}: {error}", file=sys.stderr)
        print(f"{written} of {count} files changed; originals in {backup}")
    else:
        print(f"0 of {count} files changed")
    return 1 if problems else 0


def _reason(error: Exception) -> str:
    if isinstance(error, cst.ParserSyntaxError):
        return f"it does not parse (line {error.raw_line}: {error.message.splitlines()[0]})"
    return str(error) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
