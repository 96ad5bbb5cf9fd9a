"""Fixtures that several test packages share: each real server is a plugin of its own."""

import logging
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about the code. Everybody tries the
# same examples, so that a change is judged by what it changed; `make soak` looks for new ones.
settings.register_profile(
    "look further", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("same", settings.get_profile("look further"), derandomize=True)
settings.load_profile("same")

os.environ.setdefault("TM_PARTS_DIR", str(Path(__file__).parent.parent / ".parts"))

pytest_plugins = (
    "tests.failing",
    "tests.hanging",
    "tests.servers.tardis_api",
    "tests.servers.aws",
    "tests.servers.kafka",
    "tests.servers.nats",
    "tests.servers.proxy",
    "tests.kernels",
    "tests.servers.redis",
    "tests.servers.registry",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the worker's group of each test: one worker has all that needs Java, beside the others.

    Two brokers or two Spark sessions at a time starve each other on a small machine. All other
    tests of a file share a worker, and so the servers and kernels that they ask for.
    """
    for item in items:
        needs_java = item.get_closest_marker("spark") or item.get_closest_marker("kafka")
        item.add_marker(pytest.mark.xdist_group("java" if needs_java else item.location[0]))


def pytest_unconfigure() -> None:
    """Spark's connections say goodbye when the streams they would write to are closed."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
