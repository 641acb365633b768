"""The harness itself: it must see what differs."""

import pytest
import torch

from tests.conformance import check_errors, check_ops, samples
from tests.conformance.compare import Rules, difference, stride_difference
from tests.conformance.report import Report, Side, rules_of
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


@pytest.mark.parametrize(
    ("dtype", "near", "far"), [(torch.float16, 999.0, 996.0), (torch.bfloat16, 984.0, 952.0), (torch.float64, 1000.0, 999.9)]
)
def test_halves_are_measured_by_the_float64_result(dtype, near, far):
    exact = torch.tensor([1000.0], dtype=torch.float64)
    cpu = torch.tensor([1000.5 if dtype is torch.float16 else 1008 if dtype is torch.bfloat16 else 1000.0], dtype=dtype)
    assert difference(cpu, torch.tensor([near], dtype=dtype), ANYWHERE, exact) is None
    assert difference(cpu, torch.tensor([far], dtype=dtype), ANYWHERE, exact) is not None
    if dtype in (torch.float16, torch.bfloat16):  # the CPU's own rounding does not matter
        wild, right = torch.tensor([2000.0], dtype=dtype), torch.tensor([1000.0], dtype=dtype)
        assert difference(wild, right, ANYWHERE, exact) is None
        assert difference(wild, torch.tensor([far], dtype=dtype), ANYWHERE, exact) is not None


def test_a_wide_place_makes_every_float_a_double():
    place = Place("cpu", wide=True)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert place(torch.ones(2, dtype=dtype)).dtype is torch.float64
        assert place(dtype) is torch.float64
    assert place(torch.ones(2, dtype=torch.int64)).dtype is torch.int64
    value, error = Side("cpu", wide=True).run(lambda side: torch.tensor([1, 2]) / 3)
    assert error is None and value.dtype is torch.float64 and torch.get_default_dtype() is torch.float32
    x = torch.ones(3)
    assert torch.equal(samples.cotangents([x], Place("cpu"))[0].double(), samples.cotangents([x.double()], place)[0])


def test_a_tolerance_may_be_that_of_one_dtype(monkeypatch):
    monkeypatch.setitem(check_ops.exceptions.WIDER, "some_op float16", (0.1, 0.2, "a reason"))
    assert rules_of("some_op", torch.float16).tolerance == (0.1, 0.2)
    assert rules_of("some_op", torch.float32).tolerance is None


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


def test_the_second_derivative_is_compared():
    import msadapter

    old = msadapter.set_config(fallback="silent")
    try:
        op = check_ops.entries()["mul"]
        found = check_ops.check_dtype(op, torch.float64, check_ops.Plan(samples=2, noncontiguous=0, variants=0, second=1))
        assert found.status == "native" and found.compared == "forward grad gradgrad"
        found = check_ops.check_dtype(op, torch.float16, check_ops.Plan(samples=2, noncontiguous=0, variants=0, second=1))
        assert found.status == "native" and found.compared == "forward"
    finally:
        msadapter.set_config(fallback=old.fallback)


def test_errors_are_compared_by_type():
    def raises(cpu, device):
        def step(side):
            error = cpu if side.place.device.type == "cpu" else device
            if error is not None:
                raise error

        return step

    def status_of(*steps, **options):
        return check_errors.compare([(str(i), s) for i, s in enumerate(steps)], **options).status

    same = raises(ValueError("a"), ValueError("b"))
    other = raises(ValueError("a"), TypeError("b"))
    silent = raises(ValueError("a"), None)
    assert status_of(same) == status_of(same, raises(None, None)) == "same"
    assert status_of(raises(None, ValueError("a"))) == "skip"
    assert status_of(same, other) == "type"
    assert status_of(other, silent) == "silent"
    assert status_of(same, other, known={"1": "a reason"}) == "same"
