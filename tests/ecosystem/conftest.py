import contextlib
import dataclasses
import os

import pytest
import torch

from msadapter.config import set_config

os.environ["HF_HUB_OFFLINE"] = "1"  # every model here has random weights: nothing is downloaded


@pytest.fixture(scope="session")
def device():
    return torch.device("mindspore")


@pytest.fixture
def native():
    """`with native():` an op that the host would compute is an error."""

    @contextlib.contextmanager
    def block():
        before = set_config(fallback="error")
        try:
            yield
        finally:
            set_config(**dataclasses.asdict(before))

    return block
