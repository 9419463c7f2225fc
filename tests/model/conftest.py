"""Of tests that compute with other numbers of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from common.model.cpu import elementwise


@pytest.fixture
def restored_threads() -> Iterator[None]:
    elementwise.install()
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
