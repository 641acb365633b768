"""Random programs on the device and on the CPU, equal after every line. More of them: `python -m tests.programs`."""

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import msadapter
from tests.programs.machine import MODES, Machine, Mismatch


@pytest.fixture(scope="module", autouse=True)
def quiet():
    old = msadapter.set_config(fallback="silent")
    torch.empty(1, device="mindspore")  # MindSpore starts now, not inside a program
    yield
    msadapter.set_config(fallback=old.fallback)


@settings(max_examples=120, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@hypothesis.given(st.data())
def test_random_programs_agree_with_the_cpu(data):
    Machine(lambda low, high: data.draw(st.integers(low, high))).run(data.draw(st.integers(1, 10)))


def run_lines(*lines, mode="exact"):
    """A program that is written out, compared after every line."""
    machine = Machine(lambda low, high: MODES.index(mode))
    for line in lines:
        name, assigned, expression = line.partition(" = ")
        if assigned and name.isidentifier():
            machine.made = int(name[1:])
            machine._new(expression)
        else:
            machine._execute(line)
    return machine


@pytest.mark.parametrize(
    "lines",
    [
        ("t0.t()[1] = t0[0, 0]", "t1 = t0[1:, ::2]", "t1.mul_(2)", "t2 = t1.t().unsqueeze(0)", "t2 += t1.t()"),
        ("t1 = t0.as_strided([2, 2], [1, 3], 1)", "t1.zero_()", "t2 = t0.view(-1)", "t2[::2] = t2[1::2].clone()"),
        ("t0.requires_grad_()", "t1 = t0 * 2", "t2 = t1[0]", "t2.mul_(3)", "(t1 * t1).sum().backward()"),
        ("t0.requires_grad_()", "t1 = t0 ** 2", "t0.data.add_(1)", "t1.sum().backward()"),
    ],
    ids=["views of views", "as_strided", "in place on a view in the graph", "data escapes the version check"],
)
def test_programs_of_views(lines):
    run_lines("t0 = torch.arange(6, dtype=torch.float32).reshape(2, 3).clone().to(dev)", *lines)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (("t0.requires_grad_()", "t0.add_(1)"), "RuntimeError"),
        (("t0.requires_grad_()", "t1 = t0 * 2", "t2 = t1 ** 2", "t1.add_(1)", "t2.sum().backward()"), "RuntimeError"),
        (("t1 = t0.t().view(6)",), "RuntimeError"),
        (("t1 = t0.expand(2, 2, 3)", "t1.add_(1)"), "RuntimeError"),
        (("t1 = t0[:, 5]",), "IndexError"),
        (
            ("t0.requires_grad_()", "t1 = t0.sum()", "t1.backward()", "(t0 * 1).add_(t0.detach()[:1, :2])"),
            "RuntimeError",
        ),
    ],
    ids=["leaf", "saved tensor", "view size", "overlap", "index", "shape"],
)
def test_errors_are_those_of_the_cpu(lines, error):
    machine = run_lines("t0 = torch.arange(6, dtype=torch.float32).reshape(2, 3).clone().to(dev)", *lines)
    assert machine.lines[-1].endswith(f"# raises {error}")


def test_a_difference_is_reported_as_a_script():
    with pytest.raises(Mismatch, match=r"import torch.*\n.*t0 = torch\.ones\(2.*\n# t0: \[2\.0, 2\.0\], expected \[1"):
        run_lines("t0 = torch.ones(2).to(dev) * (1 + (dev.type == 'mindspore'))")


WIDE = "t0 = torch.arange(6).sin().reshape(2, 3).to(torch.float32).clone().to(dev).requires_grad_()"


@pytest.mark.parametrize(
    "lines",
    [
        ("t1 = t0.erf() * (1 + 1e-4 * (dev.type == 'mindspore'))",),
        ("t1 = t0 * 1", "t1.detach().fill_(1 + 1e-4 * (dev.type == 'mindspore'))"),
        (
            "t1 = t0.exp() * (1.0 if dev.type == 'cpu' else t0.detach() * 0 + 1)",
            "(t1 * (1 + 1e-4 * (dev.type != 'cpu'))).sum().backward()",
        ),
    ],
    ids=["a result", "a write through a view", "a gradient"],
)
def test_a_small_difference_of_a_line_is_found(lines):
    with pytest.raises(Mismatch, match="values differ"):
        run_lines(WIDE, *lines, mode="wide")


def test_lines_start_from_the_same_bits():
    machine = run_lines(WIDE, "t1 = t0.exp()", "t2 = t1[0]", "t2.mul_(t1[1].detach().digamma())", mode="wide")
    cpu, device = machine.sides
    assert torch.equal(cpu["t1"], device["t1"].cpu())
    assert machine.float64["t1"].dtype is torch.float64
    assert torch.equal(cpu["t2"].double(), machine.float64["t2"])
    assert cpu["t1"]._version == device["t1"]._version == 1


STRIDED = "t0 = torch.arange(6).sin().reshape(2, 3).t().to(torch.float32).clone().to(dev)"


@pytest.mark.parametrize(
    "lines",
    [
        (STRIDED, "t1 = torch.special.xlog1py(t0, t0.contiguous().abs())", "t2 = torch.xlogy(t0, t0.contiguous().abs())"),
        (STRIDED, "t1 = torch.special.entr(t0.abs())", "t2 = torch.copysign(t0, t0.contiguous())"),
        (STRIDED, "t1 = torch.logical_and(torch.tensor(2, device=dev), t0)", "t2 = torch.logaddexp(t0[0, :1], t0)"),
        (STRIDED, "t1 = t0.reshape(1, 3, 1, 2)", "t2 = torch.nn.functional.pad(t1, [1, -1, 1, 1])"),
        (STRIDED, "t1 = t0.take(torch.tensor([], dtype=torch.float32, device=dev))"),
        (STRIDED, "t1 = torch.nn.functional.avg_pool3d(t0.reshape(1, 1, 1, 3, 2), 2, 1, 1)"),
        (STRIDED, "t1 = torch.isin(t0 > 0, t0 > 1)"),
        (STRIDED, "t1 = torch.eye(2).to(dev) * 2", "t2 = torch.linalg.solve(t1, t1 + 1, left=False)"),
    ],
    ids=["xlogy", "entr", "logical_and", "channels last or not", "take", "avg_pool3d", "isin", "solve"],
)
def test_what_random_programs_found(lines):
    run_lines(*lines, mode="wide")
