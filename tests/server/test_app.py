"""TardisMachine as a class."""

import asyncio
import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tardis_machine import TardisMachine
from tardis_machine.config import ConfigError
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.server.settings import ServerConfig
from tests.support.served import Start


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
        assert "--auth-token" not in caplog.text
        TardisMachine(host="0.0.0.0", allow_anonymous=True)
    assert "listening on 0.0.0.0 without --auth-token" in caplog.text


def loops() -> list[Any]:
    found = [pytest.param(asyncio.new_event_loop, id="asyncio")]
    with contextlib.suppress(ImportError):
        import uvloop

        found.append(pytest.param(uvloop.new_event_loop, id="uvloop"))
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no disk


def journal_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("journal")]


def publishing(folder: Path, bus: str) -> TardisMachine:
    settings = {"path": str(folder / "events")} if bus == "file" else {"output": "stderr"}
    event_bus = {"provider": bus, **settings}
    return TardisMachine(sample_data=True, journal={"dir": folder / "journal"}, event_bus=event_bus)


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
@pytest.mark.parametrize("new_loop", loops())
def test_start_cancelled_at_any_moment_gives_everything_back(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def cancel_and_start() -> None:
        machine = publishing(tmp_path, "file")
        whole_s = math.inf
        for _ in range(6):  # the least, so that most of the starts below are cut
            began = time.monotonic()
            await machine.start(0)
            whole_s = min(whole_s, time.monotonic() - began)
            await machine.stop()
        free = descriptors()
        cut = 0
        for part in range(31):
            machine = publishing(tmp_path, "file")
            try:
                await asyncio.wait_for(machine.start(0), whole_s * part / 25)
            except TimeoutError:
                cut += 1
                assert await machine.stop() is None
            else:
                await machine.stop()
            # A thread that has handed its result over ends a moment later, as pipes are closed a
            # moment after their other end.
            while journal_threads() or descriptors() > free:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.01)
            if part % 6 == 0:  # the directory is free for other buses, and the machine for a start
                other = publishing(tmp_path, "console")
                await other.start(0)
                await other.stop()
                await machine.start(0)
                await machine.stop()
        assert cut > 10

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(cancel_and_start())


async def test_second_start_tells_each_metric_once() -> None:
    machine = TardisMachine(sample_data=True)
    for _ in range(2):
        await machine.start(0)
        text = machine.metrics.render().decode()
        assert text.count("# TYPE tardis_machine_live_connections gauge") == 1
        await machine.stop()


async def test_start_while_another_one_is_under_way_is_refused() -> None:
    machine = TardisMachine(sample_data=True)
    first = asyncio.create_task(machine.start(0))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="already"):
        await machine.start(0)
    await first
    await machine.stop()
