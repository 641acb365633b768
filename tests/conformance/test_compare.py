"""The harness itself: it must see what differs."""

import pytest
import torch

from tests.conformance.compare import Rules, difference, stride_difference
from tests.conformance.report import Report, Side
from tests.conformance.samples import Place, spread

ANYWHERE = Rules(device=None)
A = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("actual", "text"),
    [
        (A.clone(), None),
        (A + 1e-6, None),
        (A + 1e-3, "3 of 3 values differ, by up to 0.001"),
        (torch.tensor([1.0, 2.0, torch.nan]), "1 of 3 values differ, by up to inf"),
        (A.double(), "dtype float64, expected float32"),
        (A[None], "shape (1, 3), expected (3,)"),
        (A.clone().requires_grad_(), "requires_grad True, expected False"),
        (3.0, "expected a tensor, got float"),
    ],
)
def test_difference_of_tensors(actual, text):
    assert difference(A, actual, ANYWHERE) == text


def test_difference_says_where():
    assert difference([A, {"x": (A, 1)}], [A, {"x": (A, 2)}], ANYWHERE) == "[1] [x] [1] 2, expected 1"
    assert difference([A], [A, A], ANYWHERE).startswith("expected 1 values")
    assert difference(True, 1, ANYWHERE) == "expected bool, got int"
    assert "expected on mindspore" in difference(A, A, Rules())


def test_integers_and_nans_must_be_equal():
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3]), ANYWHERE) == "1 of 2 values differ"
    nan = torch.tensor([torch.nan])
    assert difference(nan, nan.clone(), ANYWHERE) is None


def test_the_float64_result_decides_between_two_roundings():
    exact = torch.tensor([1000.0], dtype=torch.float64)
    cpu, near, far = torch.tensor([1000.1]), torch.tensor([999.8]), torch.tensor([1000.6])
    assert difference(cpu, near, ANYWHERE) is not None
    assert difference(cpu, near, ANYWHERE, exact) is None
    assert difference(cpu, far, ANYWHERE, exact) is not None
    wild = torch.tensor([2000.0])  # a CPU result that is itself wrong decides nothing
    assert difference(wild, near, ANYWHERE, exact) is not None


def test_strides_count_where_they_address_something():
    a = torch.zeros(2, 1, 3)
    assert stride_difference(a, a.as_strided((2, 1, 3), (3, 1, 1))) is None
    assert stride_difference(a, torch.zeros(3, 1, 2).permute(2, 1, 0)) == "strides (1, 2, 2), expected (3, 3, 1)"


def test_copies_keep_geometry_and_aliasing():
    base = torch.arange(6.0)
    x, y = base.view(2, 3).t(), base[1::2].requires_grad_()
    place = Place("cpu")
    u, v, w = place((x, y, x))
    assert u is w and u.stride() == x.stride() and v.storage_offset() == 1
    assert u.untyped_storage()._cdata == v.untyped_storage()._cdata != base.untyped_storage()._cdata
    assert v.requires_grad and v.is_leaf and place.leaves([u, v, w]) == [v]


def test_samples_are_spread_evenly():
    assert spread(range(100), 4) == [0, 33, 66, 99]
    assert spread(range(3), 4) == [0, 1, 2]


def count_a_host_op(x):
    from msadapter.backend.counters import FALLBACKS

    FALLBACKS["some_op"] += 1
    return x


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (lambda side: torch.ones(2, device=side.place.device), "native"),
        (lambda side: torch.ones(2, device=side.place.device) + (side.place.device.type != "cpu"), "wrong"),
        (lambda side: torch.ones(2), "wrong"),
        (lambda side: 1 / (side.place.device.type == "cpu"), "error"),
        (lambda side: 1 / 0, "skip"),
        (lambda side: count_a_host_op(torch.ones(2, device=side.place.device)), "fallback"),
    ],
    ids=["equal", "another value", "another device", "raises", "the CPU raises", "host"],
)
def test_statuses(step, status):
    import msadapter

    old = msadapter.set_config(fallback="silent")
    try:
        report = Report()
        report.check("0", "forward", step, Side("cpu"), Side("mindspore"), Rules())
        assert report.outcome().status == status
    finally:
        msadapter.set_config(fallback=old.fallback)
