"""TardisMachine as a class."""

import logging

import pytest

from tardis_machine import TardisMachine
from tardis_machine.config import ConfigError
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


def test_an_open_door_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        TardisMachine(sample_data=True, host="0.0.0.0", auth_token="t")
        assert "--auth-token" not in caplog.text
        TardisMachine(sample_data=True, host="0.0.0.0")
    assert "without --auth-token" in caplog.text
