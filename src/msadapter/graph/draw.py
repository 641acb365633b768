"""A picture of a captured graph, and the time of its parts.

    draw(program, "step.svg")                       writes step.svg and step.html
    draw(program, "step.svg", profile(program, tensors))

A box is an ATen op, or in a large graph the ops of a line of the user's program, with the primitives that it became. An
arrow is a value. Forward, backward and optimizer stand side by side, in the order of need: the backward pass from bottom
to top, the others from top to bottom. The HTML file is the same picture with pan (drag), zoom (wheel), search, and
details of a box by click; it loads nothing.
"""

import collections
import html
import pathlib
import statistics
import time

from ..backend.storage import ms
from .capture import Value, values_in

MANY = 120  # ATen ops above which a picture shows the user's lines instead
WIDTH, GAP_X, GAP_Y, MARGIN, LINE = 232, 26, 46, 30, 15
PER_ROW = 5  # boxes of one layer side by side; the rest goes below
STAGES = ("forward", "backward", "optimizer")
FILLS = {"forward": "#e8f1fb", "backward": "#fdeedd", "optimizer": "#e7f5e6", "input": "#f1f1f1"}
COLD, HOT = (255, 250, 235), (226, 74, 51)


# ---------------------------------------------------------------------------------------------------------------- time


def profile(program, tensors=None, repeat=7):
    """{line's number: seconds}: the median time of each of the program's primitives, called one by one.

    That is the time of the eager kernels. The compiled graph fuses nothing on CPU but runs without Python between them, so
    that shares are telling, and sums are larger than the time of a run.

    tensors: `ms.Tensor`s in the order of program.inputs; None: zeros.
    """
    if tensors is None:
        tensors = [ms.ops.zeros(v.shape, v.dtype) for v in program.inputs]
    values = dict(zip(program.inputs, tensors)) | {v: v.tensor for v in program.constants}
    last = {v: i for i, line in enumerate(program._lines) for v in values_in(line.args)}
    times = {}
    for i, line in enumerate(program._lines):
        args = _filled(line.args, values)
        taken = []
        for _ in range(repeat):
            start = time.perf_counter()
            result = line.primitive(*args)
            _wait()
            taken.append(time.perf_counter() - start)
        times[i] = statistics.median(taken)
        values.update(zip(line.outputs, [result] if line.single else result))
        for v in values_in(line.args):
            if last[v] == i:
                values.pop(v, None)
    return times


def _wait():
    ms.common.api._pynative_executor.sync()


def _filled(args, values):
    return [
        values[a] if isinstance(a, Value) else type(a)(_filled(a, values)) if isinstance(a, (tuple, list)) else a for a in args
    ]


# --------------------------------------------------------------------------------------------------------------- boxes


class Box:
    """What the picture shows as one: an op, a line of the program, or an input."""

    def __init__(self, title, stage):
        self.title, self.stage = title, stage
        self.ops, self.primitives, self.places, self.shapes = {}, [], {}, []
        self.parameters, self.seconds, self.result = set(), None, False
        self.layer = self.x = self.y = 0

    @property
    def text(self):
        """Its lines: the first is the title."""
        lines = [self.title]
        if self.shapes:
            lines.append(_shapes(self.shapes))
        place = next(iter(self.places), "")
        if place and place != self.title and place != self.stage:
            lines.append(place)
        if self.primitives:
            count = len(self.primitives)
            names = ", ".join(_counted(self.primitives))
            lines.append(f"{count} primitive{'s' * (count > 1)}: {names}" if self.stage != "input" else names)
        if self.parameters:
            lines.append(f"reads {len(self.parameters)} of the program's tensors")
        return lines

    @property
    def height(self):
        return LINE * (len(self.text) + (self.seconds is not None)) + 12


def _counted(names):
    return [name if n == 1 else f"{name} x{n}" for name, n in collections.Counter(names).items()]


def _shapes(values):
    found = [f"{str(v.dtype).lower()}{list(v.shape)}" for v in values]
    return ", ".join(found[:3]) + (f", ... ({len(found)})" if len(found) > 3 else "")


def _stage(node):
    if node is None:
        return "forward"
    if node.region is not None:
        return "optimizer"
    return "backward" if node.where == "backward" or node.name.endswith("_backward") else "forward"


def _key(node, group, before):
    """Lines with equal keys, one after the other, are one box; all of them in an optimizer."""
    if group == "op" or node is None:
        return id(node)
    stage = _stage(node)
    if stage == "optimizer":
        return (stage, id(node.region), node.name)
    if stage == "forward":
        return (stage, node.where)
    if node.name.endswith("_backward") or not (isinstance(before, tuple) and before[0] == stage):
        return (stage, id(node))
    return before  # what follows a gradient's op up to the next belongs to it


class Picture:
    """Boxes and arrows of a Program or a Recorder.

    group: "op", "line", or None to choose by size.
    """

    def __init__(self, source, times=None, group=None):
        self.lines = source._lines if hasattr(source, "_lines") else source.lines
        self.total = sum(times.values()) if times else None
        outputs = set(getattr(source, "outputs", ()))
        if group is None:
            group = "line" if len({id(line.node) for line in self.lines}) > MANY else "op"
        self.boxes, self.edges = [], {}  # (box, box) -> the values
        self.columns = []
        made, inputs = {}, {}
        key, box = object(), None
        named = {}
        for i, line in enumerate(self.lines):
            now = _key(line.node, group, key)
            if now in named:
                box = named[now]
            elif now != key:
                box = self._box(line.node, group)
                if group == "line" and box.stage == "optimizer":
                    named[now] = box
            key = now
            self._add(box, line, i, times)
            for v in values_in(line.args):
                origin = made.get(v)
                if origin is None and v.source in ("argument", "host argument", "draw", "prelude"):
                    origin = self._input(v, inputs)
                if origin is None and v.source != "constant":
                    box.parameters.add(v)
                if origin not in (None, box):
                    self.edges.setdefault((origin, box), {})[v] = None
            for v in line.outputs:
                made[v] = box
                box.result = box.result or v in outputs
        for box in self.boxes:  # what a box makes for others, or for the caller
            used = {v for (a, _), values in self.edges.items() if a is box for v in values}
            box.shapes = [v for v in box.shapes if v in used or v in outputs] or box.shapes[-1:]

    def _box(self, node, group):
        stage = _stage(node)
        title = "constant" if node is None else node.name
        if group == "line" and node is not None and stage == "forward" and node.where != "backward":
            title = node.where
        box = Box(title, stage)
        self.boxes.append(box)
        return box

    def _add(self, box, line, i, times):
        if line.node is not None:
            box.ops[id(line.node)] = line.node.name
            box.places[line.node.where] = None
        box.primitives.append(line.primitive.name)
        box.shapes += line.outputs
        if times is not None:
            box.seconds = (box.seconds or 0.0) + times.get(i, 0.0)

    def _input(self, v, inputs):
        name = f"{v.source} {v.origin[0] if isinstance(v.origin, tuple) and v.source == 'draw' else ''}".strip()
        if v.source in ("argument", "host argument"):
            name = f"argument {v.origin}"
        if name not in inputs:
            inputs[name] = Box(name, "input")
            self.boxes.append(inputs[name])
        if v not in inputs[name].shapes:
            inputs[name].shapes.append(v)
        return inputs[name]

    # ---------------------------------------------------------------------------------------------------------- layout

    def place(self):
        """Give each box its place; the picture's size."""
        order = {box: i for i, box in enumerate(self.boxes)}
        before = collections.defaultdict(list)
        for a, b in self.edges:
            if order[a] < order[b] or a.stage == "input":
                before[b].append(a)
        left, tallest = MARGIN, 0
        for stage in STAGES:
            members = [b for b in self.boxes if b.stage == stage or (stage == "forward" and b.stage == "input")]
            if not members:
                continue
            rows = self._layers(sorted(members, key=lambda b: b.stage != "input"), before, order)
            wide = max(map(len, rows))
            heights = [max(box.height for box in row) for row in rows]
            tallest = max(tallest, sum(heights) + GAP_Y * len(rows))
            y = MARGIN + 30
            if stage == "backward":  # upwards from where the forward pass ended: what it saved for a gradient is near
                rows, heights = rows[::-1], heights[::-1]
                y += tallest - sum(heights) - GAP_Y * len(rows)
            for row, height in zip(rows, heights):
                x = left + (wide - len(row)) * (WIDTH + GAP_X) / 2
                for box in row:
                    box.x, box.y = x, y
                    x += WIDTH + GAP_X
                y += height + GAP_Y
            self.columns.append((stage, left, wide * (WIDTH + GAP_X) - GAP_X))
            left += wide * (WIDTH + GAP_X) + 3 * GAP_X
        return left, tallest + 2 * MARGIN + 30

    def _layers(self, members, before, order):
        """Rows of boxes: the longest path from the stage's start says which, the predecessors' places in what order."""
        inside, rows = set(members), collections.defaultdict(list)
        for box in members:
            box.layer = max((a.layer + 1 for a in before[box] if a in inside), default=0)
        for a in [box for box in members if box.stage == "input"]:  # just above what takes it first
            a.layer = min((b.layer for x, b in self.edges if x is a and b in inside), default=1) - 1
        for box in members:
            rows[box.layer].append(box)
        position, found = {}, []
        for layer in sorted(rows):
            row = rows[layer]
            row.sort(key=lambda box: (_mean([position[a] for a in before[box] if a in position]), order[box]))
            for i, box in enumerate(row):
                position[box] = (i + 0.5) / len(row)
            found += [row[i : i + PER_ROW] for i in range(0, len(row), PER_ROW)]
        return found

    # --------------------------------------------------------------------------------------------------------- writing

    def svg(self):
        """The picture, complete in itself."""
        self.columns = []
        width, height = self.place()
        hottest = max((b.seconds for b in self.boxes if b.seconds), default=None)
        parts = [_text(x, MARGIN, stage, "stage") for stage, x, _ in self.columns]
        number = {box: i for i, box in enumerate(self.boxes)}
        parts += [self._arrow(a, b, list(values), number) for (a, b), values in self.edges.items()]
        parts += [self._drawn(box, number[box], hottest) for box in self.boxes]
        size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>\n{_MARKER}\n'
            + "\n".join(parts)
            + "\n</svg>\n"
        )

    def _arrow(self, a, b, values, number):
        far = a.stage != b.stage and (a.stage, b.stage) != ("input", "forward")
        if far and a.x < b.x:  # from side to side
            x1, y1, x2, y2 = a.x + WIDTH, a.y + a.height / 2, b.x, b.y + b.height / 2
            bend = max(24, (x2 - x1) / 2)
            path = f"M{x1:.0f},{y1:.0f} C{x1 + bend:.0f},{y1:.0f} {x2 - bend:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"
        else:
            up = a.stage == "backward"
            x1, y1, x2, y2 = a.x + WIDTH / 2, a.y + (0 if up else a.height), b.x + WIDTH / 2, b.y + (b.height if up else 0)
            bend = max(24, min(abs(y2 - y1) / 2, 120)) * (-1 if up else 1)
            path = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"
            far = far or abs(y2 - y1) > 300
        told = html.escape(f"{a.title} to {b.title}: {_shapes(values)}")
        kind = "edge far" if far else "edge"
        return f'<path class="{kind}" data-a="{number[a]}" data-b="{number[b]}" d="{path}"><title>{told}</title></path>'

    def _drawn(self, box, i, hottest):
        lines, fill = box.text, FILLS[box.stage]
        if box.seconds is not None:
            share = box.seconds / self.total if self.total else 0
            lines = [*lines, f"{box.seconds * 1e3:.3f} ms  {share:.1%}"]
            heat = (box.seconds / hottest) ** 0.5 if hottest else 0
            fill = "#" + "".join(f"{round(c + (h - c) * heat):02x}" for c, h in zip(COLD, HOT))
        details = [box.title, *_details(box)]
        if box.seconds is not None:
            details.append(lines[-1])
        kind = f"box {box.stage}{' result' if box.result else ''}"
        out = [f'<g class="{kind}" id="n{i}" transform="translate({box.x:.0f},{box.y:.0f})">']
        out.append(f"<title>{html.escape(chr(10).join(details))}</title>")
        out.append(f'<rect width="{WIDTH}" height="{box.height}" rx="5" fill="{fill}"/>')
        out += [_text(8, 17 + LINE * k, _short(line), "" if k else "name") for k, line in enumerate(lines)]
        return "".join(out) + "</g>"


def _details(box):
    if box.ops and list(box.ops.values()) != [box.title]:
        yield "ops: " + ", ".join(_counted(box.ops.values()))
    if box.primitives:
        yield f"{len(box.primitives)} primitives: " + ", ".join(_counted(box.primitives))
    if box.places:
        yield "at " + ", ".join(list(box.places)[:8])
    if box.shapes:
        yield "makes " + ", ".join(f"{str(v.dtype).lower()}{list(v.shape)}" for v in box.shapes[:12])
    if box.parameters:
        yield "reads " + ", ".join(f"{str(v.dtype).lower()}{list(v.shape)}" for v in list(box.parameters)[:12])


def _mean(numbers):
    return sum(numbers) / len(numbers) if numbers else 0.5


def _short(text, room=int((WIDTH - 16) / 6.4)):
    return text if len(text) <= room else text[: room - 1] + "\u2026"


def _text(x, y, text, kind):
    return f'<text x="{x:.0f}" y="{y:.0f}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{html.escape(text)}</text>'


def draw(source, path, times=None, group=None):
    """Write the picture of a Program or a Recorder as `path` with .svg and with .html; (svg path, html path).

    times: {line's number: seconds}, as `profile` measures: boxes then tell their time, and the slow ones are red.
    group: "op" for a box per ATen op, "line" for one per line of the user's program; None: by size.
    """
    path = pathlib.Path(path)
    picture = Picture(source, times, group)
    svg = picture.svg()
    ops = len({id(line.node) for line in picture.lines})
    about = f"{len(picture.lines)} primitives, {ops} ops, {len(picture.boxes)} boxes"
    if picture.total is not None:
        about += f", {picture.total * 1e3:.2f} ms one by one"
    files = path.with_suffix(".svg"), path.with_suffix(".html")
    files[0].write_text(svg, encoding="utf-8")
    page = _PAGE.replace("@TITLE@", html.escape(path.stem)).replace("@ABOUT@", html.escape(about)).replace("@SVG@", svg)
    files[1].write_text(page, encoding="utf-8")
    return files


_MARKER = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#777"/></marker></defs>'
)
_STYLE = """
text { font: 10.5px ui-monospace, Menlo, Consolas, monospace; fill: #222; }
.name { font-weight: bold; }
.stage { font: bold 18px sans-serif; fill: #555; }
.box rect { stroke: #8a8a8a; }
.result rect { stroke: #222; stroke-width: 2.5; }
.edge { fill: none; stroke: #777; stroke-width: 1.2; marker-end: url(#tip); }
.far { stroke: #b0b0d4; stroke-width: 0.9; opacity: 0.7; }
.dim { opacity: 0.12; }
.lit { stroke: #d0021b; stroke-width: 2.2; opacity: 1; }
.found rect { stroke: #d0021b; stroke-width: 3; }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE@</title><style>
body { margin: 0; font: 13px sans-serif; display: flex; flex-direction: column; height: 100vh; }
header { padding: 6px 10px; border-bottom: 1px solid #ccc; display: flex; gap: 12px; align-items: center; }
main { flex: 1; min-height: 0; display: flex; }
#view { flex: 1; min-width: 0; cursor: grab; }
#view svg { width: 100%; height: 100%; display: block; }
#more { width: 300px; overflow: auto; padding: 8px; border-left: 1px solid #ccc; white-space: pre-wrap; font-size: 12px;
  overflow-wrap: anywhere; box-sizing: border-box; }
#more:empty { display: none; }
</style></head><body>
<header><b>@TITLE@</b><span>@ABOUT@</span><input id="find" type="search" placeholder="search"><span id="hits"></span>
<button id="fit">fit</button></header>
<main><div id="view">@SVG@</div><div id="more"></div></main>
<script>
const svg = document.querySelector("#view svg"), more = document.getElementById("more");
const full = svg.getAttribute("viewBox").split(" ").map(Number);
let box = full.slice();
const show = () => svg.setAttribute("viewBox", box.join(" "));
const scale = () => { const r = svg.getBoundingClientRect(); return Math.max(box[2] / r.width, box[3] / r.height); };
const nodes = [...svg.querySelectorAll("g.box")], edges = [...svg.querySelectorAll("path.edge")];
function begin() {  // the top at a size that can be read
  const r = svg.getBoundingClientRect();
  box = [0, 0, Math.min(full[2], r.width * 1.2), Math.min(full[3], r.height * 1.2)];
  show();
}
svg.addEventListener("wheel", e => {
  e.preventDefault();
  const r = svg.getBoundingClientRect(), k = Math.exp(e.deltaY * 0.0015), s = scale();
  const x = box[0] + box[2] / 2 + (e.clientX - r.left - r.width / 2) * s;
  const y = box[1] + box[3] / 2 + (e.clientY - r.top - r.height / 2) * s;
  box = [x - (x - box[0]) * k, y - (y - box[1]) * k, box[2] * k, box[3] * k];
  show();
}, { passive: false });
let from = null, moved = false;
svg.addEventListener("pointerdown", e => { from = [e.clientX, e.clientY, box[0], box[1]]; moved = false; });
window.addEventListener("pointermove", e => {
  if (!from) return;
  const s = scale();
  moved = moved || Math.hypot(e.clientX - from[0], e.clientY - from[1]) > 4;
  box[0] = from[2] - (e.clientX - from[0]) * s;
  box[1] = from[3] - (e.clientY - from[1]) * s;
  show();
});
window.addEventListener("pointerup", () => { from = null; });
function choose(node) {
  const id = node && node.id.slice(1), near = new Set([id]);
  for (const e of edges) {
    const on = node && (e.dataset.a === id || e.dataset.b === id);
    e.classList.toggle("lit", Boolean(on));
    e.classList.toggle("dim", Boolean(node && !on));
    if (on) { near.add(e.dataset.a); near.add(e.dataset.b); }
  }
  for (const n of nodes) n.classList.toggle("dim", Boolean(node && !near.has(n.id.slice(1))));
  more.textContent = node ? node.querySelector("title").textContent : "";
}
svg.addEventListener("click", e => { if (!moved) choose(e.target.closest("g.box")); });
const find = document.getElementById("find");
let hits = [], at = 0;
function search() {
  const word = find.value.trim().toLowerCase();
  hits = word ? nodes.filter(n => n.textContent.toLowerCase().includes(word)) : [];
  for (const n of nodes) n.classList.toggle("found", hits.includes(n));
  document.getElementById("hits").textContent = word ? hits.length + " found" : "";
  at = 0;
  go();
}
function go() {
  if (!hits.length) return;
  const m = hits[at % hits.length].transform.baseVal[0].matrix;
  box[0] = m.e + 116 - box[2] / 2;
  box[1] = m.f + 40 - box[3] / 2;
  show();
}
find.addEventListener("input", search);
find.addEventListener("keydown", e => { if (e.key === "Enter") { at += 1; go(); } });
document.getElementById("fit").addEventListener("click", () => { box = full.slice(); show(); });
begin();
</script></body></html>
"""
