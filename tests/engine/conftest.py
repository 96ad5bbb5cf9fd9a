"""Every test of the emitter runs with each kernel."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _each_kernel(each_kernel: str) -> None:
    """Serve with one after the other."""
