"""The rows as a page to search, as Markdown, and as a paragraph."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .rows import PUBLISHED, PUBLISHED_AT, PUBLISHED_OVERVIEW, SECTIONS, STATUS, Row, count

TEMPLATE = Path(__file__).with_name("template.html")
HEAD = ("Section", "Names", *STATUS, "MSAdapter's list")


def html(data: dict[str, Any], found: Sequence[Row]) -> str:
    totals = count(found)
    parts = {
        "intro": "".join(f"<p>{_marked(text)}</p>\n" for text in _intro(data)),
        "totals": _table(HEAD, _totals(totals)),
        "sections": "".join(f'<option value="{s}">{escape(words)}</option>' for s, words in SECTIONS.items()),
        "statuses": "".join(
            f'<label><input type="checkbox" name="status" value="{s}" checked><span style="color: var(--{_css(s)})">{s}</span>'
            f' <span class="n dim">{totals["all"][s]}</span></label>'
            for s in STATUS
        ),
        "rows": "\n".join(map(_row, found)),
    }
    page = TEMPLATE.read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text)
    return page


def _row(row: Row) -> str:
    others = f'<div class="dim">not native: {escape(", ".join(row.others))}</div>' if row.others else ""
    notes = f"<div>{escape(row.note)}</div>" if row.note else ""
    return (
        f'<tr data-section="{row.section}" data-status="{row.status}"><th scope="row"><code>{escape(row.full_name)}</code></th>'
        f'<td class="status" style="color: var(--{_css(row.status)})">{row.status}</td>'
        f"<td>{escape(', '.join(row.native))}{others}</td><td>{escape(', '.join(row.primitives))}</td>"
        f'<td>{notes}<div class="dim">{escape(row.known)}</div></td></tr>'
    )


def _css(status: str) -> str:
    return status.replace(" ", "-")


def _table(head: Iterable[str], lines: Iterable[Sequence[str]]) -> str:
    titles = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    body = "".join(f'<tr><th scope="row">{a}</th>{"".join(f"<td>{c}</td>" for c in cells)}</tr>\n' for a, *cells in lines)
    return f'<table id="totals"><thead><tr>{titles}</tr></thead>\n<tbody>\n{body}</tbody></table>'


def markdown(data: dict[str, Any], found: Sequence[Row]) -> str:
    lines = ["# Coverage of PyTorch's API", "", "<!-- written by `msadapter coverage` -->", ""]
    for text in _intro(data):
        lines += [text, ""]
    lines += ["The same as a page to search and filter: `coverage.html`, beside this file.", "", "## Totals", ""]
    lines += _pipes(HEAD, _totals(count(found)))
    for section, words in SECTIONS.items():
        lines += ["", f"## {words}", ""]
        here = [r for r in found if r.section == section]
        lines += _pipes(("Name", "Status", "Notes", "MindSpore primitives"), (_cells(r) for r in here))
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    notes = "; ".join(filter(None, [f"not native: {', '.join(row.others)}" if row.others else "", row.note]))
    return f"`{row.name}`", row.status, notes, ", ".join(row.primitives)


def _pipes(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    def clean(cell: str) -> str:
        return cell.replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")

    return [f"| {' | '.join(map(clean, cells))} |" for cells in (head, ["---"] * len(head), *lines)]


def _totals(totals: dict[str, Counter[str]]) -> list[tuple[str, ...]]:
    names = {**SECTIONS, "all": "all"}
    return [
        (words, str(totals[s].total()), *(str(totals[s][status]) for status in STATUS), PUBLISHED.get(s, ""))
        for s, words in names.items()
    ]


def _intro(data: dict[str, Any]) -> list[str]:
    kinds = "; ".join(f"**{s}**: {words}" for s, words in STATUS.items())
    return [
        f"Every public name of PyTorch {data['torch']} that computes or describes something, and how it runs on the "
        "`mindspore` device. Results and gradients are compared with PyTorch's CPU by `tests/conformance` (PyTorch's own op, "
        "module and optimizer databases) and, for names that these do not have, by an expression each. A name is native where "
        "MindSpore's primitives do all of the arithmetic; those listed are what two samples and their gradients called (none: "
        "a view, a factory, random numbers or a description).",
        f"{kinds}.",
        f"The last column of the totals is [the list that MSAdapter publishes]({PUBLISHED_AT}): names that it calls Stable or "
        "Beta, of the names in it, which are those of PyTorch 2.1 (its pages pytorch_api_supporting_torch, _tensor, _optim). "
        f"For the other sections it is what [its overview]({PUBLISHED_OVERVIEW}) says of the module: in part, or none.",
    ]


def _marked(text: str) -> str:
    """HTML of the little Markdown that the introduction has."""
    text = re.sub(r"`(.+?)`", r"<code>\1</code>", escape(text, quote=False))
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"\[(.+?)\]\((.+?)\)", r'<a href="\2">\1</a>', text)


def summary(data: dict[str, Any], found: Sequence[Row]) -> str:
    """A paragraph for the README."""
    totals = count(found)
    all_, names = totals["all"], sum(totals["all"].values())
    native, works = all_["Stable"] + all_["Partial"], all_["Stable"] + all_["Partial"] + all_["Host"]

    def of(section: str) -> str:
        here = totals[section]
        return f"{here['Stable'] + here['Partial'] + here['Host']} of {here.total()}"

    return (
        f"Of {names} public names of PyTorch {data['torch']}, {works} work on the device: {native} natively, of which "
        f"{all_['Stable']} in every tested dtype and form, and {all_['Host']} through PyTorch's CPU kernels; "
        f"{all_['Not supported']} are not supported, {all_['Untested']} not tested. That is {of('torch')} torch functions, "
        f"{of('Tensor')} Tensor methods and attributes, and {of('optim')} names of torch.optim; [MSAdapter's own list]"
        f"({PUBLISHED_AT}) has {PUBLISHED['torch']}, {PUBLISHED['Tensor']} and {PUBLISHED['optim']}. Each name, with its "
        "dtypes and the MindSpore primitives behind it: [docs/coverage.md](docs/coverage.md), or docs/coverage.html to search."
    )
