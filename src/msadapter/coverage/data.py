"""The results that the package ships (data.json), and their refresh from the results committed in a source checkout."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("data.json")
ROOT = Path(__file__).parents[3]
RESULTS = {"op": "status.json", "module": "status.json", "optim": "status.json", "dtype": "dtypes.json", "error": "errors.json"}


def in_checkout() -> bool:
    """Whether this package is part of a source checkout, where the test suites are."""
    return (ROOT / "tests" / "conformance" / "status.json").is_file() and (ROOT / "src" / "msadapter").is_dir()


def shipped() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {"torch": "", "results": {}, "names": {}, "primitives": {}}


def current() -> dict[str, Any]:
    """The shipped data; in a checkout, with the results committed there."""
    found = shipped()
    if in_checkout():
        found["torch"], found["results"] = committed()
    return found


def committed() -> tuple[str, dict[str, dict[str, Any]]]:
    """(version of torch, {database: {entry: outcome}}) of tests/conformance; lines of other versions are left out."""
    files: dict[str, Any] = {}
    for name in set(RESULTS.values()):
        path = ROOT / "tests" / "conformance" / name
        files[name] = json.loads(path.read_text()) if path.exists() else {}
    results = {db: files[name].get(db, {}) for db, name in RESULTS.items()}
    return files["status.json"]["torch"], {db: _of_one_version(entries) for db, entries in results.items()}


def _of_one_version(entries: dict[str, Any]) -> dict[str, Any]:
    here = {name: entry for name, entry in entries.items() if " @ " not in name}
    return {n: _of_one_version(e) if isinstance(e, dict) and "status" not in e else e for n, e in here.items()}


def refresh(content: dict[str, Any]) -> None:
    """Keep the checkout's results for the package, if they are new."""
    if content != shipped():
        save(content)


def save(content: dict[str, Any]) -> None:
    """Write data.json, a line per entry, all at once or not at all."""
    write(FILE, _lines(content, 2) + "\n")


def _lines(value: Any, depth: int, indent: str = "") -> str:
    if not depth or not isinstance(value, dict) or not value:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    items = [f"{indent} {json.dumps(k)}: {_lines(v, depth - 1, indent + ' ')}" for k, v in sorted(value.items())]
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def write(path: Path, text: str) -> None:
    """To a temporary file beside it, which is then renamed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
