"""A real Redis on free ports."""

import os
import platform
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as client
from redis.backoff import NoBackoff
from redis.retry import Retry

from tardis_machine.lake.jars import fetch_jars
from tests.support.ports import free_ports
from tests.support.servers.folder import SERVERS
from tests.support.servers.process import ServerProcess

# It carries programs for Linux and macOS, so that nobody needs a compiler, whatever the Python.
_JAR = "com.github.codemonstur:embedded-redis:1.4.3"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def redis_server() -> Path:
    """Return the path of the redis-server program, downloaded if it is missing."""
    [jar] = fetch_jars([_JAR], SERVERS / f"embedded-redis-{_JAR.rpartition(':')[2]}")
    program = jar.with_name("redis-server")
    if not program.exists():
        machine = platform.machine()
        suffix = f"-{platform.system().lower()}-{_MACHINES.get(machine, machine)}"
        with zipfile.ZipFile(jar) as programs:
            name = next((name for name in programs.namelist() if name.endswith(suffix)), None)
            if name is None:
                raise RuntimeError(f"{jar.name} has no redis-server for {suffix}")
            # Sessions beside each other may both come here.
            with tempfile.NamedTemporaryFile(dir=jar.parent, delete=False) as fresh:
                fresh.write(programs.read(name))
                os.fchmod(fresh.fileno(), 0o755)
        Path(fresh.name).rename(program)
    return program


class RedisServer(ServerProcess):
    """One redis-server with a folder of its own; `settings` is further text of its configuration.

    It syncs whatever it acknowledges, so that tests may kill it.
    """

    def __init__(self, folder: Path, settings: str = "") -> None:
        [self.port] = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        self.configuration = folder / "redis.conf"
        self.configuration.write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {folder}\ndaemonize no\n"
            f"appendonly yes\nappendfsync always\nsave ''\n{settings}\n"
        )
        super().__init__(
            [redis_server(), self.configuration], port=self.port, log=folder / "redis.log"
        )

    def start(self) -> None:
        """Start it and wait until it answers: while it sets itself up it drops connections."""
        super().start()
        with self.client(socket_timeout=10, retry=Retry(NoBackoff(), 0)) as asked:
            while True:
                try:
                    asked.ping()
                except (client.BusyLoadingError, client.AuthenticationError):
                    return
                except client.ConnectionError:
                    time.sleep(0.02)
                else:
                    return

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **settings: Any) -> client.Redis:
        return client.Redis(port=self.port, **settings)


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that leave it alone; each takes streams of its own."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Start servers for one test, to be killed and started again by it."""
    started: list[RedisServer] = []

    def start(settings: str = "") -> RedisServer:
        server = RedisServer(tmp_path / f"redis-{len(started)}", settings)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()
