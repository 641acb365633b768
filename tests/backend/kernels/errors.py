"""Comparing errors with PyTorch CPU."""

import pytest

from tests.backend.kernels.util import to_device


def check_error(fn, *args):
    """fn raises on the device what it raises on the CPU: the same type and text."""
    with pytest.raises(Exception) as expected:
        fn(*args)
    with pytest.raises(expected.type) as actual:
        fn(*to_device(args))
    assert str(actual.value) == str(expected.value)
