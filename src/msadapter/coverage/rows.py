"""From results to rows: one per public name, with a status that the worst of its results decides."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

STATUS = {
    "Stable": "equal to PyTorch's CPU, gradient included, computed by MindSpore",
    "Partial": "so in some dtypes or forms; the others, which are listed, run on the host or do not run",
    "Host": "equal to PyTorch's CPU, computed by PyTorch's CPU kernels on a copy",
    "Not supported": "fails or differs, for the reason given",
    "Untested": "not compared: PyTorch's CPU cannot run it either, or nothing exercises it",
}
SECTIONS = {
    "torch": "torch functions",
    "Tensor": "Tensor methods and attributes",
    "nn": "torch.nn modules",
    "nn.functional": "torch.nn.functional",
    "optim": "torch.optim",
    "linalg": "torch.linalg",
    "fft": "torch.fft",
    "special": "torch.special",
}
# What MSAdapter's own list calls Stable or Beta, of its names (its pages pytorch_api_supporting_torch, _tensor, _optim), or
# what it says of a module as a whole (its page pytorch_api_supporting_overview).
PUBLISHED = {
    "torch": "230 of 417",
    "Tensor": "17 of 526",
    "nn": "in part",
    "nn.functional": "in part",
    "optim": "3 of 34",
    "linalg": "none",
    "fft": "none",
    "special": "none",
}
PUBLISHED_AT = "https://www.mindspore.cn/msadapter/docs/zh-CN/master/api.html"
PUBLISHED_OVERVIEW = (
    "https://github.com/mindspore-ai/docs/blob/master/docs/msadapter/docs/source_zh_cn/note/pytorch_api_supporting_overview.md"
)

_WORDS = {"fallback": "host", "wrong": "differs", "error": "fails", "crash": "fails", "timeout": "fails", "skip": "not run"}
_ORDER = ("native", "skip", "fallback", "error", "timeout", "crash", "wrong")


@dataclasses.dataclass(frozen=True)
class Row:
    section: str
    name: str
    status: str
    native: tuple[str, ...]  # dtypes
    others: tuple[str, ...]  # dtypes that are not native, "float16 (host)"
    primitives: tuple[str, ...]
    note: str  # why it is not Stable
    known: str  # how it was compared

    @property
    def full_name(self) -> str:
        return f"torch.{self.name}" if self.section == "torch" else f"torch.{self.section}.{self.name}"


def rows(data: dict[str, Any]) -> list[Row]:
    names = data["names"]
    in_order = [(s, n) for s in SECTIONS for n in sorted(names.get(s, ()), key=lambda n: (n.lower(), n))]
    return [_row(s, n, names[s][n], data) for s, n in in_order]


def count(found: Iterable[Row]) -> dict[str, Counter[str]]:
    """{section: how many of each status}, and "all"."""
    totals: dict[str, Counter[str]] = {s: Counter() for s in (*SECTIONS, "all")}
    for row in found:
        totals[row.section][row.status] += 1
        totals["all"][row.status] += 1
    return totals


def _row(section: str, name: str, info: dict[str, Any], data: dict[str, Any]) -> Row:
    entries = [tuple(e.split(" ", 1)) for e in info.get("entries", [])]
    outcomes = [(entry, data["results"][db][entry]) for db, entry in entries if entry in data["results"].get(db, {})]
    if name.endswith("_"):  # the entry is of the op; what counts is whether its in-place form was compared
        outcomes = [(e, o) for e, o in outcomes if "inplace" in o.get("compared", "") or e.endswith("_")]
    if "check" in info:
        outcomes.append(("", info["check"]))
    native, others = _dtypes(entries, data["results"].get("dtype", {}))
    status, note = _rated(outcomes, info.get("why"))
    if status == "Stable" and others:
        status = "Partial"
    if status in ("Not supported", "Untested"):
        native, others = (), ()
    keys = [*info.get("entries", []), f"check {section}.{name}"]
    primitives = {p for key in keys for p in data["primitives"].get(key, [])}
    note = "; ".join(filter(None, [note, *_errors(entries, data["results"].get("error", {}))]))
    compared = dict(outcomes)
    known = sorted({f"{db}_db {e}: {compared[e].get('compared', '')}" for db, e in entries if e in compared})
    if "check" in info:
        known.append(info["expression"])
    return Row(section, name, status, native, others, tuple(sorted(primitives)), note, "\n".join(known))


def _rated(outcomes: list[tuple[str, dict[str, str]]], why: tuple[str, str] | None) -> tuple[str, str]:
    """(status, note) of all results of a name; `why` where it is said, not found out."""
    if why:
        return why[0], why[1]
    run = [(e, o) for e, o in outcomes if o["status"] != "skip"]
    if not run:
        return "Untested", next((o.get("detail", "") for _, o in outcomes), "")
    bad = [(e, o) for e, o in run if o["status"] != "native"]
    note = "; ".join(_told(e if len(run) > 1 else "", o) for e, o in bad)
    kinds = {_WORDS.get(o["status"], "native") for _, o in run}
    if kinds == {"native"}:
        return "Stable", ""
    if kinds == {"host"}:
        return "Host", note
    works = kinds & {"native", "host"} or any(_works(o) for _, o in bad)
    return ("Partial" if works else "Not supported"), note


def _works(outcome: dict[str, str]) -> bool:
    """Whether the function itself is right, and only another form of it (out=, in-place) or some input is not."""
    wrong = outcome["status"] == "wrong" and " forward:" in f" {outcome.get('detail', '')}"
    return not wrong and "forward" in outcome.get("compared", "")


def _told(entry: str, outcome: dict[str, str]) -> str:
    word, detail = _WORDS[outcome["status"]], outcome.get("detail", "")
    return " ".join(filter(None, [f"{entry}:" if entry else "", detail if word == "host" else f"{word}: {detail}"]))


def _dtypes(entries: list[tuple[str, ...]], results: dict[str, dict[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(native dtypes, the others with how they run), where they were tested; the worst entry decides."""
    worst: dict[str, str] = {}
    for db, entry in entries:
        for dtype, outcome in results.get(entry, {}).items() if db != "optim" else ():
            status = outcome.split(" ", 1)[0]
            if status != "skip" and _ORDER.index(status) >= _ORDER.index(worst.get(dtype, "native")):
                worst[dtype] = status
    native = tuple(d for d, s in worst.items() if s == "native")
    return native, tuple(f"{d} ({_WORDS[s]})" for d, s in worst.items() if s != "native")


def _errors(entries: list[tuple[str, ...]], results: dict[str, str]) -> list[str]:
    """Where a wrong call is not refused as PyTorch refuses it."""
    words = {"type": "a wrong call raises another exception", "silent": "a wrong call is not refused"}
    found = {results.get(entry, "").split(" ", 1)[0] for db, entry in entries if db != "optim"}
    return [text for status, text in words.items() if status in found]
