"""Fixtures that several test packages share: each real server is a plugin of its own."""

import logging
import os
import re
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

_NEEDS_JAVA: Final = re.compile("^tests/lake/|kafka|schema_registry|spark|lakehouse")
"""Found in the ids of tests that start a broker or Spark: the scheduler does not see marks."""

# How long an example takes says more about the machine than about the code. Everybody tries the
# same examples, so that a change is judged by what it changed; `make soak` looks for new ones.
settings.register_profile(
    "look further", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("same", settings.get_profile("look further"), derandomize=True)
settings.load_profile("same")

os.environ.setdefault("TM_JARS_DIR", str(Path(__file__).parent.parent / ".cache" / "jars"))

pytest_plugins = (
    "tests.support.command",
    "tests.support.failing",
    "tests.support.hanging",
    "tests.support.servers.tardis_api",
    "tests.support.servers.aws",
    "tests.support.servers.kafka",
    "tests.support.servers.nats",
    "tests.support.servers.proxy",
    "tests.support.kernels",
    "tests.support.servers.redis",
    "tests.support.servers.registry",
    "tests.support.servers.secure_kafka",
)


class _OneWorkerForJava(LoadFileScheduling):  # type: ignore[misc]
    """The scheduler of a run: one worker for all that needs Java, one for each other file.

    Two brokers or two Spark sessions at a time starve each other on a small machine.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "java" if _NEEDS_JAVA.search(nodeid) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _OneWorkerForJava:
    """Return the scheduler of a run by several workers; called by xdist."""
    return _OneWorkerForJava(config, log)


def pytest_unconfigure() -> None:
    """Spark's connections say goodbye when the streams they would write to are closed."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
