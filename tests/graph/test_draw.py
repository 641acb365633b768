"""The picture of a captured graph, and the times in it."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch
import torch.nn.functional as F
from torch import nn

torch.ones(1, device="mindspore")

import msadapter
from msadapter.graph.capture import Recorder
from msadapter.graph.draw import MANY, Picture, draw, profile
from msadapter.graph.lower import Program

SPACE = {"svg": "http://www.w3.org/2000/svg"}


def step_of(model, optimizer):
    """A training step of a classifier."""

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def recorded(layers):
    """(recorder, program) of a training step of a small net."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.1)) for _ in range(layers)])
    model = model.to("mindspore")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(4, 6).to("mindspore"), torch.tensor([0, 1, 2, 3]).to("mindspore")

    step = step_of(model, optimizer)
    step(x, y)
    recorder = Recorder([x, y])
    with recorder:
        loss = step(x, y)
    assert recorder.reason is None
    outputs = [recorder.values[id(loss.untyped_storage().buf)]]
    for s, v in recorder.storages.values():
        if s.buf is not v.tensor and id(s.buf) in recorder.values:
            outputs.append(recorder.values[id(s.buf)])
    return recorder, Program(recorder.lines, outputs)


@pytest.fixture(scope="module")
def small():
    return recorded(2)


@pytest.fixture(scope="module")
def large():
    return recorded(30)


def boxes(svg):
    return ElementTree.parse(svg).getroot().findall("svg:g", SPACE)


def titles(svg):
    return [box.find("svg:title", SPACE).text for box in boxes(svg)]


@pytest.mark.parametrize("which", ["program", "recorder"])
def test_files(small, tmp_path, which):
    recorder, program = small
    svg, page = draw(program if which == "program" else recorder, tmp_path / "step.svg")
    assert (svg.name, page.name) == ("step.svg", "step.html")
    told = titles(svg)
    first = [t.splitlines()[0] for t in told]
    assert {"linear", "relu", "native_dropout", "linear_backward", "argument 0", "argument 1", "draw 0"} <= set(first)
    linear = next(t for t in told if t.startswith("linear\n"))
    assert "MatMul" in linear and "float32[4, 6]" in linear and re.search(r"at test_draw\.py:\d+", linear)
    text = page.read_text()
    assert svg.read_text() in text
    assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org/2000/svg)|@[A-Z]+@", text)


def test_arrows_join_boxes(small, tmp_path):
    svg, _ = draw(small[1], tmp_path / "step.svg")
    names = {f"n{i}" for i in range(len(boxes(svg)))}
    assert {box.get("id") for box in boxes(svg)} == names
    arrows = ElementTree.parse(svg).getroot().findall("svg:path", SPACE)
    assert arrows
    for arrow in arrows:
        assert {f"n{arrow.get('data-a')}", f"n{arrow.get('data-b')}"} <= names
        assert "float32[" in arrow.find("svg:title", SPACE).text or "int" in arrow.find("svg:title", SPACE).text


@pytest.mark.parametrize("group", ["op", "line", None])
def test_layout(large, group):
    """No boxes overlap, all are inside, and a value goes down in the forward pass and up in the backward pass."""
    picture = Picture(large[1], group=group)
    width, height = picture.place()
    for i, a in enumerate(picture.boxes):
        assert 0 <= a.x and a.x + 232 <= width and 0 <= a.y and a.y + a.height <= height
        for b in picture.boxes[:i]:
            assert abs(a.x - b.x) >= 232 or a.y + a.height <= b.y or b.y + b.height <= a.y
    for a, b in picture.edges:
        if a.stage == b.stage == "forward":
            assert a.y < b.y
        if a.stage == b.stage == "backward":
            assert a.y > b.y
    assert {b.stage for b in picture.boxes} == {"input", "forward", "backward", "optimizer"}


def test_large_graphs_are_grouped(large):
    program = large[1]
    by_op, by_line, chosen = (len(Picture(program, group=g).boxes) for g in ("op", "line", None))
    assert len({id(line.node) for line in program._lines}) > MANY
    assert by_line < by_op / 1.5 and chosen == by_line


def test_every_primitive_is_in_one_box(large):
    for group in ("op", "line"):
        picture = Picture(large[1], group=group)
        assert sum(len(b.primitives) for b in picture.boxes) == len(large[1]._lines)


def test_profile(small, tmp_path):
    program = small[1]
    times = profile(program, [v.tensor for v in program.inputs], repeat=3)
    assert list(times) == list(range(len(program._lines))) and all(t > 0 for t in times.values())
    picture = Picture(program, times)
    assert sum(b.seconds or 0 for b in picture.boxes) == pytest.approx(sum(times.values()))
    svg, page = draw(program, tmp_path / "step.svg", times)
    shares = [float(m) for t in titles(svg) for m in re.findall(r"ms  ([\d.]+)%", t)]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))
    assert "ms one by one" in page.read_text()
    fills = {box.find("svg:rect", SPACE).get("fill") for box in boxes(svg)}
    assert "#e24a33" in fills  # the slowest


def test_names_are_escaped(small, tmp_path):
    recorder, program = small
    node = program._lines[0].node
    where, node.where = node.where, "<a & b>.py:1"
    try:
        svg, _ = draw(program, tmp_path / "a & b.svg")
    finally:
        node.where = where
    assert any("<a & b>.py:1" in t for t in titles(svg))


def test_draw_of_a_compiled_step(tmp_path):
    module = nn.Sequential(nn.Embedding(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)).to("mindspore")
    step = msadapter.compile(step_of(module, torch.optim.Adam(module.parameters())))
    x, y = torch.tensor([0, 4, 2]).to("mindspore"), torch.tensor([2, 0, 1]).to("mindspore")
    for _ in range(5):
        step(x, y)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    step.draw(tmp_path / "step.html")
    page = (tmp_path / "step.html").read_text()
    assert (tmp_path / "step.svg").exists() and "_log_softmax" in page and " ms one by one" in page
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
