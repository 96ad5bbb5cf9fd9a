"""Fixtures that several test packages share: each real server is a plugin of its own."""

import os
from pathlib import Path

os.environ.setdefault("TM_PARTS_DIR", str(Path(__file__).parent.parent / ".parts"))

pytest_plugins = (
    "tests.servers.tardis_api",
    "tests.servers.kafka",
    "tests.servers.nats",
    "tests.servers.proxy",
)
