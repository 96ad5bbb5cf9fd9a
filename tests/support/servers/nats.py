"""A real NATS server with JetStream on free ports."""

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.ports import free_ports
from tests.support.servers.process import ServerProcess

NATS_SERVER: Final = Path(sysconfig.get_path("scripts"), "nats-server")


class NatsServer(ServerProcess):
    """One nats-server with a folder of its own; `settings` is further text of its configuration."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        [self.port] = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        self.configuration = folder / "nats.conf"
        self.configuration.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{folder / "data"}" }}\n'
            f"{settings}\n"
        )
        super().__init__(
            [NATS_SERVER, "-c", self.configuration], port=self.port, log=folder / "nats.log"
        )

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


def cluster(folder: Path, count: int = 3) -> list[NatsServer]:
    """Make servers of one cluster, named n0 and so on; none is started yet."""
    routes = free_ports(count)
    urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    return [
        NatsServer(
            folder / f"n{number}",
            f"server_name: n{number}\n"
            f'cluster {{ name: tests, listen: "127.0.0.1:{port}", routes: [{urls}] }}',
        )
        for number, port in enumerate(routes)
    ]


@pytest.fixture
def nats_cluster(tmp_path: Path) -> Iterator[list[NatsServer]]:
    """Three servers that agree on what they have stored, for one test."""
    servers = cluster(tmp_path / "cluster")
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for all tests that leave it alone; each takes a stream of its own."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[Callable[..., NatsServer]]:
    """Start servers for one test, to be killed and started again by it."""
    started: list[NatsServer] = []

    def start(settings: str = "") -> NatsServer:
        server = NatsServer(tmp_path / f"nats-{len(started)}", settings)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()
