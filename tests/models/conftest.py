import dataclasses
import os

import pytest
import torch


@pytest.fixture(scope="module")
def device():
    """The device under test, where an op without a native kernel is an error.

    TEST_DEVICE=cpu runs the tests without the backend, to check the tests themselves.
    """
    name = os.environ.get("TEST_DEVICE", "mindspore")
    if name != "mindspore":
        yield torch.device(name)
        return
    from msadapter.config import set_config

    before = set_config(fallback="error")
    yield torch.device(name)
    set_config(**dataclasses.asdict(before))
