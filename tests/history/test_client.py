import gzip
import logging
from pathlib import Path

import pytest

from tardis_machine.config import ConfigError, from_dict
from tardis_machine.history import History
from tardis_machine.history.blocks import read_blocks
from tardis_machine.history.cache import Cache
from tardis_machine.history.client import Abort, Client, FetchedSlice, SliceRequest
from tardis_machine.history.errors import HistoryError, ReaderClosedError, RetriesExhaustedError
from tardis_machine.history.settings import HistoryConfig
from tests.support.servers.tardis_api import Fault, TardisApi, numbered_lines

MINUTE = 1709251200 // 60
FILTERS = '[{"channel":"trade","symbols":["A/B C"]}]'


class Api:
    """A client beside its server, with pauses noted instead of slept."""

    def __init__(self, server: TardisApi, directory: Path, api_key: str = "") -> None:
        self.server = server
        self.pauses: list[float] = []
        self.client = Client(
            Cache(directory), endpoint=server.endpoint, api_key=api_key, sleep=self.pauses.append
        )

    def fetch(self, offset: int = 3, minutes: int = 1, filters: str = FILTERS) -> FetchedSlice:
        request = SliceRequest("ftx", "key", filters, MINUTE, MINUTE + offset, minutes)
        return self.client.fetch(request, Abort())


@pytest.fixture
def api(tardis_api: TardisApi, tmp_path: Path) -> Api:
    return Api(tardis_api, tmp_path)


def content(fetched: FetchedSlice) -> bytes:
    return b"".join(read_blocks(fetched.cached.path))


def test_a_request_is_written_as_the_api_wants_it(api: Api) -> None:
    api.fetch()
    api.fetch(minutes=5, filters="[]")
    first, second = api.server.calls
    assert first.query == (
        "from=2024-03-01T00:00:00.000Z&offset=3&compression=zstd"
        "&filters=%5B%7B%22channel%22%3A%22trade%22%2C%22symbols%22%3A%5B%22A%2FB%20C%22%5D%7D%5D"
    )
    assert second.query == "from=2024-03-01T00:00:00.000Z&offset=3&compression=zstd&sliceSize=5"
    assert first.headers["Accept-Encoding"] == "zstd, gzip"
    assert "Authorization" not in first.headers


def test_the_key_is_sent_as_a_bearer_token(tardis_api: TardisApi, tmp_path: Path) -> None:
    tardis_api.api_key = "sesame"
    Api(tardis_api, tmp_path, api_key="sesame").fetch()
    assert tardis_api.calls[0].headers["Authorization"] == "Bearer sesame"
    with pytest.raises(HistoryError, match="Invalid API key") as caught:
        Api(tardis_api, tmp_path, api_key="wrong").fetch(4)
    assert caught.value.status == 401
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("key", ["sesame\n", "ses\rame", "s\u00e9same"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(
    tmp_path: Path, key: str
) -> None:
    with pytest.raises(HistoryError, match=r"^api_key: expected a key of ASCII") as caught:
        History(api_key=key, cache_dir=tmp_path)
    assert "ame" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^--api-key: expected a key of ASCII") as refused:
        from_dict(HistoryConfig, {"api_key": key})
    assert "ame" not in str(refused.value)


def test_a_password_of_the_endpoint_is_not_repeated(tmp_path: Path) -> None:
    endpoint = "http://somebody:sesame@127.0.0.1:1"
    client = Client(Cache(tmp_path), endpoint=endpoint, max_tries=1)
    with pytest.raises(RetriesExhaustedError, match=r"^http://\*\*\*@127.0.0.1:1 cannot be"):
        client.fetch(SliceRequest("ftx", "key", "[]", MINUTE, MINUTE, 1), Abort())


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://localhost:99999", "ftp://api"])
def test_an_endpoint_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--endpoint .*: expected a URL with http://"):
        from_dict(HistoryConfig, {"endpoint": url})


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_a_slice_is_kept_as_it_was_sent(api: Api, encoding: str) -> None:
    api.server.encoding = encoding
    api.server.suggested_minutes = 17
    fetched = api.fetch(minutes=2)
    suffix = {"zstd": "zst", "gzip": "gz"}[encoding]
    assert fetched.cached.path.name == f"03.size-2.json.{suffix}"
    assert fetched.suggested_minutes == 17
    assert content(fetched) == numbered_lines("ftx", MINUTE + 3) + numbered_lines("ftx", MINUTE + 4)


def test_no_content_encoding_means_gzip(api: Api) -> None:
    api.server.encoding = "gzip"
    api.server.fail(Fault(drop_headers=("Content-Encoding",)))
    fetched = api.fetch()
    assert fetched.cached.path.name == "03.json.gz"
    assert gzip.decompress(fetched.cached.path.read_bytes()) == numbered_lines("ftx", MINUTE + 3)


def test_minutes_that_are_not_told_are_not_guessed(api: Api) -> None:
    api.server.fail(Fault(drop_headers=("x-slice-size",)))
    with pytest.raises(HistoryError, match="x-slice-size"):
        api.fetch()
    assert len(api.server.calls) == 1


@pytest.mark.parametrize("size", ["0", "-1", "1441", "60000000", "9" * 5000, "1e2", "\u00b2"])
def test_slice_size_beyond_a_day_is_refused(api: Api, size: str) -> None:
    api.server.fail(Fault(headers={"x-slice-size": size}))
    with pytest.raises(HistoryError, match=r"x-slice-size header \(1 to 1440\)") as caught:
        api.fetch()
    assert caught.value.status == 502


@pytest.mark.parametrize(("size", "taken"), [("60000000", 1440), ("9" * 5000, None)])
def test_suggested_slice_size_beyond_a_day_is_cut(api: Api, size: str, taken: int | None) -> None:
    api.server.fail(Fault(headers={"x-suggested-slice-size": size}))
    assert api.fetch().suggested_minutes == taken


@pytest.mark.parametrize("status", [400, 401, 403, 404, 302])
def test_some_statuses_are_final(api: Api, status: int) -> None:
    api.server.fail(Fault(status, '{"code":1,"message":"no such thing"}'))
    with pytest.raises(HistoryError, match="no such thing") as caught:
        api.fetch()
    assert caught.value.status == status
    assert caught.value.exchange == "ftx"
    assert not caught.value.retriable
    assert api.pauses == []


def test_others_are_tried_again_ever_more_slowly(api: Api) -> None:
    api.server.fail(
        Fault(503, "busy"),
        Fault(400, "from must be in ISO 8601 format"),
        Fault(429, "slow down"),
        Fault(500, "oops"),
        Fault(429, "slow down", {"Retry-After": "300"}),
        Fault(502),
        Fault(500),
        Fault(504),
    )
    fetched = api.fetch()
    assert content(fetched) == numbered_lines("ftx", MINUTE + 3)
    assert api.pauses == [2, 4, 8 + 60, 16 * 2, 300, 64, 120 * 2, 120]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(truncate=7),
        Fault(corrupt=True),
        Fault(cut_after=60),
        Fault(cut_after=0),
    ],
    ids=["truncated", "corrupt", "cut", "cut at once"],
)
@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_a_bad_body_is_never_kept(api: Api, fault: Fault, encoding: str, tmp_path: Path) -> None:
    api.server.encoding = encoding
    api.server.fail(fault)
    fetched = api.fetch()
    assert content(fetched) == numbered_lines("ftx", MINUTE + 3)
    assert len(api.pauses) == 1
    assert [path for path in tmp_path.rglob("[!.]*.json.*") if path.is_file()] == [
        fetched.cached.path
    ]


def test_thirty_tries_then_it_is_given_up(api: Api) -> None:
    api.server.fail(*[Fault(503, "still busy")] * 40)
    with pytest.raises(RetriesExhaustedError, match=r"still busy.*30 tries") as caught:
        api.fetch()
    assert caught.value.status == 503
    assert caught.value.retriable
    assert len(api.server.calls) == 30
    assert api.pauses == [2, 4, 8, 16, 32, 64] + [120] * 23


def test_a_server_that_is_not_there(tardis_api: TardisApi, tmp_path: Path) -> None:
    tardis_api.close()
    client = Client(
        Cache(tmp_path), endpoint=tardis_api.endpoint, max_tries=2, sleep=lambda _: None
    )
    request = SliceRequest("ftx", "key", "[]", MINUTE, MINUTE, 1)
    with pytest.raises(RetriesExhaustedError, match=tardis_api.endpoint) as caught:
        client.fetch(request, Abort())
    assert caught.value.status == 502
    assert "object at 0x" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:{port}", "http://nowhere.invalid"])
def test_a_first_request_without_a_connection_is_given_up_soon(
    tardis_api: TardisApi, tmp_path: Path, endpoint: str
) -> None:
    """A replay without data yet would otherwise wait an hour for a connection."""
    tardis_api.close()
    where = endpoint.format(port=tardis_api.endpoint.rpartition(":")[2].partition("/")[0])
    pauses: list[float] = []
    client = Client(Cache(tmp_path), endpoint=where, api_wait_s=1, sleep=pauses.append)
    request = SliceRequest("ftx", "key", "[]", MINUTE, MINUTE, 1)
    told = r"cannot be reached: Failed to (establish|resolve) .* given up after one try"
    with pytest.raises(RetriesExhaustedError, match=told):
        client.fetch(request._replace(first=True), Abort())
    assert not pauses
    with pytest.raises(RetriesExhaustedError, match="given up after 30 tries"):
        client.fetch(request, Abort())


def test_a_first_request_that_is_answered_badly_is_tried_on(
    tardis_api: TardisApi, tmp_path: Path
) -> None:
    client = Client(
        Cache(tmp_path), endpoint=tardis_api.endpoint, api_wait_s=0, sleep=lambda _: None
    )
    tardis_api.fail(Fault(503, "busy"), Fault(cut_after=0))
    request = SliceRequest("ftx", "key", "[]", MINUTE, MINUTE, 1, first=True)
    assert client.fetch(request, Abort()).cached.start == MINUTE


def test_the_key_is_in_no_error_and_no_log(
    tardis_api: TardisApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tardis_api.fail(Fault(503, "busy, Bearer sesame"), Fault(403, "key sesame is not for this"))
    with pytest.raises(HistoryError, match=r"key \*\*\* is not for this") as caught:
        Api(tardis_api, tmp_path, api_key="sesame").fetch()
    everything = str(caught.value) + "".join(str(record.__dict__) for record in caplog.records)
    assert "slice fetch failed" in everything
    assert "sesame" not in everything
    assert "sesame" not in tardis_api.calls[0].query


def test_an_aborted_pause_ends_the_fetch(tardis_api: TardisApi, tmp_path: Path) -> None:
    abort = Abort()
    tardis_api.fail(Fault(503))
    client = Client(Cache(tmp_path), endpoint=tardis_api.endpoint, sleep=lambda _: abort.set())
    with pytest.raises(ReaderClosedError):
        client.fetch(SliceRequest("ftx", "key", "[]", MINUTE, MINUTE, 1), abort)
    assert len(tardis_api.calls) == 1
