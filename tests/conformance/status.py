"""The status files: one line per entry, and the rule that it may only improve.

A file is of one minor version of torch, which it names. An entry whose status is another in another version has a line
of its own for that, "abs @ 2.14".
"""

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).parent
FILES = {"status.json": ("op", "module", "optim"), "dtypes.json": ("dtype",), "errors.json": ("error",)}
DATABASES = tuple(db for dbs in FILES.values() for db in dbs)

# From the best to the worst; "same", "type" (an exception of another type) and "silent" (none) are those of errors.
ORDER = ("native", "same", "fallback", "skip", "type", "error", "timeout", "crash", "silent", "wrong")
BAD = ORDER[ORDER.index("type") :]


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: str  # one of ORDER
    compared: str = ""  # the forms that were compared: "forward grad out inplace"
    detail: str = ""


def load(folder=FOLDER):
    """(version of torch, {database: {line: Outcome}}), as committed; empty where there is no file."""
    version, found = None, {}
    for file, databases in FILES.items():
        data = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        version = version or data.get("torch")
        for db in databases:
            lines = data.get(db, {})
            found[db] = _ungrouped(lines) if db == "dtype" else {n: _outcome(line) for n, line in lines.items()}
    return version, found


def _outcome(line):
    if isinstance(line, dict):
        return Outcome(**line)
    status, _, detail = line.partition(" ")
    return Outcome(status, "", detail)


def _grouped(entries):
    """{"abs": {"float64": "native"}} of {"abs float64": Outcome}."""
    found = {}
    for name, outcome in entries.items():
        entry, dtype = re.fullmatch(r"(.*) ([a-z]\w*(?: @ .*)?)", name).groups()
        found.setdefault(entry, {})[dtype] = _brief(outcome)
    return found


def _ungrouped(groups):
    return {f"{n} {dtype}": _outcome(line) for n, lines in groups.items() for dtype, line in lines.items()}


def _brief(outcome):
    """A status, and why it is not the best."""
    return f"{outcome.status} {outcome.detail}".strip() if outcome.status not in ("native", "same") else outcome.status


def committed(lines, version):
    """{database: {entry: Outcome}} that holds for `version` of torch."""
    mark = f" @ {version}"
    found = {db: {n: o for n, o in entries.items() if " @ " not in n} for db, entries in lines.items()}
    for db, entries in lines.items():
        found[db].update({n.removesuffix(mark): o for n, o in entries.items() if n.endswith(mark)})
    return found


def merged(lines, results, version, file_version):
    """`lines` with `results`, obtained with `version` of torch."""
    new = {db: dict(entries) for db, entries in lines.items()}
    for db, entries in results.items():
        for name, outcome in entries.items():
            if version == file_version or name not in lines[db]:
                new[db][name] = outcome
                continue
            new[db].pop(f"{name} @ {version}", None)
            if outcome.status != lines[db][name].status:
                new[db][f"{name} @ {version}"] = outcome
    return new


def save(version, results, file, folder=FOLDER):
    """Write one of `FILES`, sorted, one line per entry, all at once or not at all."""
    lines = ["{", f' "torch": {json.dumps(version)},']
    for db in FILES[file]:
        entries = [f"  {json.dumps(n)}: {json.dumps(o)}" for n, o in sorted(_written(db, results[db]).items())]
        lines += [f' "{db}": {{', ",\n".join(entries), " }" + ("," if db != FILES[file][-1] else "")]
    text = "\n".join([line for line in lines if line] + ["}"]) + "\n"
    json.loads(text)
    temporary = (folder / file).with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(folder / file)


def _written(db, entries):
    if db == "dtype":
        return _grouped(entries)
    return {n: _brief(o) if db == "error" else _short(o) for n, o in entries.items()}


def _short(outcome):
    return {k: v for k, v in dataclasses.asdict(outcome).items() if v}


def worse(new, old):
    """Whether an outcome is a regression."""
    return ORDER.index(new.status) > ORDER.index(old.status)


def changes(new, old):
    """(regressions, improvements), each a list of (database, entry, old outcome, new outcome)."""
    found = [(db, n, old[db][n], o) for db in new for n, o in sorted(new[db].items()) if n in old[db]]
    return [c for c in found if worse(c[3], c[2])], [c for c in found if worse(c[2], c[3])]


def summary(results):
    """The table at the end of a run: one row per database, `N native, N fallback, N wrong, N error`."""
    rows = []
    for db, entries in results.items():
        count = Counter(o.status for o in entries.values())
        always = ("same", "type", "silent") if db == "error" else ("native", "fallback", "wrong", "error")
        words = [f"{count[s]} {s}" for s in always]
        words += [f"{count[s]} {s}" for s in ("error", "crash", "timeout", "skip") if count[s] and s not in always]
        strides = sum("strides differ" in o.detail for o in entries.values())
        rows.append(f"{db:7} {len(entries):4}: " + ", ".join(words) + (f"; strides differ in {strides}" if strides else ""))
    return "\n".join(rows)
