"""Random programs on the device and on the CPU, equal after every line. More of them: `python -m tests.programs`."""

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import msadapter
from tests.programs.machine import Machine


@pytest.fixture(scope="module", autouse=True)
def quiet():
    old = msadapter.set_config(fallback="silent")
    torch.empty(1, device="mindspore")  # MindSpore starts now, not inside a program
    yield
    msadapter.set_config(fallback=old.fallback)


@settings(max_examples=150, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@hypothesis.given(st.data())
def test_random_programs_agree_with_the_cpu(data):
    Machine(lambda low, high: data.draw(st.integers(low, high))).run(data.draw(st.integers(1, 16)))


def run_lines(*lines):
    """A program that is written out, compared after every line."""
    machine = Machine(lambda low, high: high)  # exact
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
    from tests.programs.machine import Mismatch

    with pytest.raises(Mismatch, match=r"import torch.*\n.*t0 = torch\.ones\(2.*\n# t0: \[2\.0, 2\.0\], expected \[1"):
        run_lines("t0 = torch.ones(2).to(dev) * (1 + (dev.type == 'mindspore'))")
