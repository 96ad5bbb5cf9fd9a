"""Tests that run once with each kernel that is here: in Python always, compiled where it is."""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from tardis_machine.engine.choice import VARIABLE, kernel

KERNELS: Final = ("python",) if kernel().module is None else ("python", "compiled")
if KERNELS == ("python",):
    os.environ[VARIABLE] = "python"  # no process hints at the other one
_SECOND: Final = [pytest.mark.python_kernel] if "compiled" in KERNELS else []
_PARAMS: Final = [pytest.param("python", marks=_SECOND), *KERNELS[1:]]


@pytest.fixture(params=_PARAMS, scope="module")
def each_kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve with one kernel after the other, in processes that a test starts as well."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = request.param
    kernel.cache_clear()
    yield request.param
    if before is None:
        del os.environ[VARIABLE]
    else:
        os.environ[VARIABLE] = before
    kernel.cache_clear()
