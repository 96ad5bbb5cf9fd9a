"""TardisMachine as a class."""

import logging

import pytest

from tardis_machine import TardisMachine
from tardis_machine.config import ConfigError
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.server.settings import ServerConfig
from tests.server.conftest import Start


@pytest.mark.parametrize("port", [-1, 65535, "many"])
async def test_a_port_that_cannot_be_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match="port"):
        await TardisMachine(sample_data=True).start(port)


async def test_it_starts_again_after_a_stop() -> None:
    machine = TardisMachine(sample_data=True)
    for _ in range(2):
        await machine.start(0)
        with pytest.raises(RuntimeError, match="already"):
            await machine.start(0)
        assert await machine.stop() is None
    assert await machine.stop() is None


async def test_port_of_a_server_that_is_not_started_is_refused() -> None:
    machine = TardisMachine(sample_data=True, port=0)
    async with machine:
        assert machine.port > 0
    with pytest.raises(RuntimeError, match="not started"):
        _ = machine.port


async def test_a_failed_start_gives_everything_back(start: Start) -> None:
    served = await start()
    other = TardisMachine(sample_data=True)
    with pytest.raises(Exception, match="in use"):
        await other.start(served.port)
    await other.start(0)
    await other.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "md.example.com"])
def test_other_host_than_loopback_without_token_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^host .* expected auth_token, or allow_anonymous$"):
        TardisMachine(sample_data=True, host=host)
    with pytest.raises(ConfigError, match="allow_anonymous"):
        TardisMachine(history=HistoryConfig(sample_data=True), server=ServerConfig(host=host))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    TardisMachine(sample_data=True, host=host)


def test_anonymous_server_beyond_loopback_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        TardisMachine(host="0.0.0.0", auth_token="t")
        TardisMachine(allow_anonymous=True)
        assert not caplog.records
        TardisMachine(host="0.0.0.0", allow_anonymous=True)
    assert "listening on 0.0.0.0 without --auth-token" in caplog.text
