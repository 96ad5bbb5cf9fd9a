"""Bronze is the same whichever kernel encodes."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _each_kernel(each_kernel: str) -> None:
    """Run every test with each kernel."""
