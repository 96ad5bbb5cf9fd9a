"""The official Python clients and this server: the same lines from the same API, one cache."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import tardis_client
import tardis_dev

from tests.clients.door import Open
from tests.clients.http import HTTP_READERS
from tests.clients.manners import PROMPT
from tests.support.servers.tardis_api import TardisApi, sample_lines

SPAN = ("2024-03-01T00:00", "2024-03-01T00:03")
CHANNELS = (("trade", ["XBTUSD"]), ("quote", ["XBTUSD", "ETHUSD"]))
OPTIONS = {
    "exchange": "bitmex",
    "from": SPAN[0],
    "to": SPAN[1],
    "filters": [{"channel": name, "symbols": symbols} for name, symbols in CHANNELS],
}

read = HTTP_READERS["aiohttp"]

Lines = AsyncIterator[Sequence[bytes]]
Replay = Callable[[str, Path], Lines]


def _tardis_client(endpoint: str, cache: Path) -> Lines:
    client = tardis_client.TardisClient(endpoint=endpoint.removesuffix("/v1"), cache_dir=str(cache))
    filters = [tardis_client.Channel(name, symbols) for name, symbols in CHANNELS]
    lines: Lines = client.replay("bitmex", *SPAN, filters, decode_response=False)
    return lines


def _tardis_dev(endpoint: str, cache: Path) -> Lines:
    filters = [tardis_dev.Channel(name, symbols) for name, symbols in CHANNELS]
    lines: Lines = tardis_dev.replay(
        "bitmex", *SPAN, filters, endpoint=endpoint, cache_dir=str(cache), decode_response=False
    )
    return lines


@pytest.fixture
def api(tardis_api: TardisApi) -> TardisApi:
    tardis_api.lines = sample_lines
    return tardis_api


@pytest.mark.parametrize(
    ("replay", "encoding"),
    [(_tardis_client, "gzip"), (_tardis_dev, "zstd")],
    ids=["tardis-client", "tardis-dev"],
)
async def test_the_same_lines_and_one_cache(
    api: TardisApi, opened: Open, tmp_path: Path, replay: Replay, encoding: str
) -> None:
    api.encoding = encoding
    theirs = b"".join(
        [
            b'{"localTimestamp":"%b","message":%b}\n' % (time, message.rstrip(b"\n"))
            async for time, message in replay(api.endpoint, tmp_path / "theirs")
        ]
    )
    assert theirs.count(b"\n") > 100

    ours = opened("--endpoint", api.endpoint, "--cache-dir", str(tmp_path / "ours"))
    assert await read(ours.http("/replay", OPTIONS), PROMPT) == theirs

    calls = len(api.calls)
    on_theirs = opened("--endpoint", api.endpoint, "--cache-dir", str(tmp_path / "theirs"))
    assert await read(on_theirs.http("/replay", OPTIONS), PROMPT) == theirs
    assert len(api.calls) == calls
