"""End a run whose cleaning up hangs: a test's time-out ends the test, and nothing after it."""

import faulthandler
import os
from collections.abc import Generator
from typing import Final, TextIO

import pytest

_PATIENCE_S: Final = 600
_TRACES: Final = pytest.StashKey[TextIO]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TRACES] = os.fdopen(os.dup(2), "w")  # what the tests print is captured


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    faulthandler.dump_traceback_later(_PATIENCE_S, exit=True, file=item.config.stash[_TRACES])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_TRACES].close()
