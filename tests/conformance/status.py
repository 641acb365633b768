"""The status file: one line per entry, and the rule that it may only improve.

The file is of one minor version of torch, which it names. An entry whose status is another in another version has a line
of its own for that, "abs @ 2.14".
"""

import dataclasses
import json
from collections import Counter
from pathlib import Path

FILE = Path(__file__).with_name("status.json")
DATABASES = ("op", "module", "optim")

# From the best to the worst.
ORDER = ("native", "fallback", "skip", "error", "timeout", "crash", "wrong")


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: str  # one of ORDER
    compared: str = ""  # the forms that were compared: "forward grad out inplace"
    detail: str = ""


def load(path=FILE):
    """(version of torch, {database: {line: Outcome}}), as committed; empty where there is no file."""
    if not path.exists():
        return None, {db: {} for db in DATABASES}
    data = json.loads(path.read_text())
    return data["torch"], {db: {name: Outcome(**line) for name, line in data[db].items()} for db in DATABASES}


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


def save(version, results, path=FILE):
    """Write the file, sorted, one line per entry, all at once or not at all."""
    lines = ["{", f' "torch": {json.dumps(version)},']
    for db in DATABASES:
        entries = [f"  {json.dumps(n)}: {json.dumps(_short(o))}" for n, o in sorted(results[db].items())]
        lines += [f' "{db}": {{', ",\n".join(entries), " }" + ("," if db != DATABASES[-1] else "")]
    text = "\n".join([line for line in lines if line] + ["}"]) + "\n"
    json.loads(text)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


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
        words = [f"{count[s]} {s}" for s in ("native", "fallback", "wrong", "error")]
        words += [f"{count[s]} {s}" for s in ("crash", "timeout", "skip") if count[s]]
        strides = sum("strides differ" in o.detail for o in entries.values())
        rows.append(f"{db + '_db':10} {len(entries):4}: " + ", ".join(words) + f"; strides differ in {strides}")
    return "\n".join(rows)
