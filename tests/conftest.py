"""What holds for every test."""

import dataclasses

import pytest

from msadapter.config import set_config


@pytest.fixture(autouse=True)
def settings():
    """The settings are the process's: a test that changes them leaves them as it found them."""
    before = set_config()
    yield
    set_config(**dataclasses.asdict(before))
