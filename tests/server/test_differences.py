"""The deliberate differences from the Node server: each line of their table has its test."""

import json
import re
from pathlib import Path
from typing import Any, Final

from tests.server.replays import OPTIONS
from tests.support.served import Served, Start
from tests.support.servers.tardis_api import TardisApi

FOLDER: Final = Path(__file__).parents[1]
PAGE: Final = FOLDER.parent / "docs" / "coming-from.md"
SPAN: Final = {"from": "2024-03-01", "to": "2024-03-01T00:01"}
STAMP: Final = "2024-03-01T00:00:01.0000000Z"


async def read(served: Served, options: Any) -> list[dict[str, Any]]:
    async with served.client.get(served.http("/replay-normalized", options)) as response:
        assert response.status == 200
        return [json.loads(line) for line in (await response.text()).splitlines()]


async def replayed(
    start: Start, api: TardisApi, folder: Path, options: dict[str, Any], *messages: object
) -> list[dict[str, Any]]:
    """What a server with an API answers, whose only messages are these."""
    texts = (json.dumps(message, separators=(",", ":")) for message in messages)
    lines = "".join(f"{STAMP} {text}\n" for text in texts).encode()
    api.lines = lambda *_: lines
    served = await start(sample_data=False, endpoint=api.endpoint, cache_dir=folder)
    return await read(served, SPAN | options)


async def test_computed_type_asked_for_twice_is_sent_once(served: Served) -> None:
    once = await read(served, OPTIONS | {"dataTypes": ["trade_bar_10s"]})
    twice = await read(served, OPTIONS | {"dataTypes": ["trade_bar_10s", "trade_bar_10s"]})
    assert once
    assert twice == once


async def test_message_without_symbol_or_time_is_left_out(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    good = {
        "timestamp": "2024-03-01T00:00:01.000Z",
        "symbol": "XBTUSD",
        "side": "Buy",
        "size": 1,
        "price": 2,
    }
    nameless = {name: value for name, value in good.items() if name != "symbol"}
    timeless = {name: value for name, value in good.items() if name != "timestamp"}
    trades = await replayed(
        start,
        tardis_api,
        tmp_path,
        {"exchange": "bitmex", "dataTypes": ["trade"]},
        *(
            {"table": "trade", "action": "insert", "data": [each]}
            for each in (nameless, timeless, good)
        ),
    )
    assert [each["symbol"] for each in trades] == ["XBTUSD"]


async def test_id_beyond_2_to_the_53_keeps_its_digits(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    trade = {
        "e": "trade",
        "E": 1709251201000,
        "T": 1709251201000,
        "s": "BTCUSDT",
        "t": 2552833547970376692,
        "p": "1",
        "q": "1",
        "X": "MARKET",
        "m": False,
    }
    [sent] = await replayed(
        start,
        tardis_api,
        tmp_path,
        {"exchange": "binance-futures", "dataTypes": ["trade"]},
        {"stream": "btcusdt@trade", "data": trade},
    )
    assert sent["id"] == "2552833547970376692"


async def test_replay_of_cached_data_needs_no_api(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    raw = {"exchange": "bitmex", **SPAN}
    bodies = []
    for _ in range(2):
        async with served.client.get(served.http("/replay", raw)) as response:
            assert response.status == 200
            bodies.append(await response.read())
        tardis_api.close()
    assert bodies[0] == bodies[1] != b""


async def test_other_path_has_a_json_body(served: Served) -> None:
    async with served.client.get(served.http("/nope")) as response:
        assert response.status == 404
        assert response.content_type == "application/json"
        assert "no such resource" in (await response.json())["message"]


async def test_health_check_names_its_charset_and_no_heap(served: Served) -> None:
    async with served.client.get(served.http("/health-check")) as response:
        assert response.headers["Content-Type"] == "application/json; charset=utf-8"
        assert set((await response.json())["memoryInfo"]) == {"rssMB", "peakRssMB"}


TESTS: Final[dict[str, tuple[str, ...]]] = {
    "Addresses": (
        "server/test_sockets.py::test_without_a_host_both_loopback_addresses_listen",
        "server/test_app.py::test_other_host_than_loopback_without_token_is_refused",
        "cli/test_serve.py::test_listening_beyond_loopback_without_a_token_is_refused",
    ),
    "`Origin` and `Sec-Fetch-Site`, on both ports": (
        "server/test_access.py::test_browsers_of_others_are_refused",
    ),
    "`Host`": ("server/test_access.py::test_browsers_of_others_are_refused",),
    "`--auth-token`": (
        "server/test_http.py::test_a_token_is_asked_for",
        "server/test_websocket.py::test_a_token_is_asked_for_at_the_handshake",
    ),
    "`--port 0`": (
        "server/test_sockets.py::test_port_0_listens_on_two_adjacent_ports_of_every_address",
    ),
    "`-v`, `--version`": (
        "cli/test_serve.py::test_v_prints_the_version_alone",
        "cli/test_serve.py::test_version_names_the_kernel",
    ),
    "Default cache directory": (
        "history/test_trust.py::test_slices_are_kept_in_the_users_cache_by_default",
    ),
    "Cache directory that others may write to": (
        "cli/test_serve.py::test_cache_that_everyone_may_write_to_is_refused_by_its_flag",
    ),
    "Data that is cached": ("server/test_differences.py::test_replay_of_cached_data_needs_no_api",),
    "Options that cannot be served": (
        "server/test_http.py::test_bad_options_answer_400",
        "server/test_websocket.py::test_bad_options_close_1011_with_a_reason_that_fits",
    ),
    "Options with unknown keys": (
        "server/test_http.py::test_unknown_options_are_refused_when_strict",
    ),
    "Lines that cannot be normalized": (
        "server/test_http.py::test_bad_lines_are_left_out_or_end_the_replay",
    ),
    "Messages without symbol or time": (
        "server/test_differences.py::test_message_without_symbol_or_time_is_left_out",
    ),
    "One computed type asked for twice": (
        "server/test_differences.py::test_computed_type_asked_for_twice_is_sent_once",
    ),
    "Ids beyond 2^53": ("server/test_differences.py::test_id_beyond_2_to_the_53_keeps_its_digits",),
    "Error after the first message": (
        "server/test_http.py::test_an_error_after_the_first_byte_cuts_the_response",
    ),
    "Other paths": ("server/test_differences.py::test_other_path_has_a_json_body",),
    "`/health-check`": (
        "server/test_differences.py::test_health_check_names_its_charset_and_no_heap",
        "server/test_publishing.py::test_a_bus_that_cannot_be_reached_degrades_the_health_check",
    ),
    "`/` and `/metrics`": (
        "server/test_start_page.py::test_the_page_is_whole_and_asks_nothing_of_other_hosts",
        "server/test_http.py::test_metrics",
    ),
    "`X-Request-Id`, `X-Session-Id`": (
        "server/test_publishing.py::test_an_answer_that_is_no_stream_has_its_ids_too",
    ),
    "Requests with a body": (
        "server/test_bodies.py::test_request_with_body_is_refused_and_closed",
    ),
    "Replays at once": ("server/test_limits.py::test_replays_at_once",),
    "Connections at once": ("server/test_limits.py::test_connection_beyond_limit_is_told_so",),
    "Size of a request": (
        "server/test_limits.py::test_streams_of_one_request",
        "server/test_limits.py::test_what_one_request_may_ask_for",
    ),
    "Connection without a request": (
        "server/test_limits.py::test_a_connection_without_a_request_is_not_kept",
    ),
    "Replay that its client does not read": (
        "server/test_http.py::test_a_client_that_stalls_is_cut",
        "server/test_websocket.py::test_a_client_that_stalls_is_cut",
    ),
    "`speed`": (
        "server/test_paced.py::test_over_http",
        "server/test_paced.py::test_over_websocket",
    ),
    "`waitWhenDataNotYetAvailable` beyond a year, or negative": (
        "server/test_waiting.py::test_native_replay_refuses_a_wait_that_is_none",
        "server/test_waiting.py::test_answer_begins_while_nothing_is_due_and_ends_with_its_client",
    ),
    "`publish`": ("server/test_publishing.py::test_both_flows_are_published",),
    "`exact`": (
        "server/test_http.py::test_exact_answers_have_the_lines_between_from_and_to",
        "server/test_publishing.py::test_exact_responses_publish_what_they_send",
        "server/test_native.py::test_exact_replay_has_the_messages_between_from_and_to",
    ),
    "`/ws-replay?all=true`": ("server/test_native.py::test_all_asks_for_everything",),
    "`/ws-replay?session=` with `--cluster-mode`": (
        "cli/test_serve.py::test_native_session_of_a_cluster_is_refused_with_the_reason",
    ),
    "`/ws-replay`: messages that are no subscriptions": (
        "server/test_native.py::test_whatever_else_is_said_does_no_harm",
    ),
    "Live: an exchange that has closed": (
        "server/test_stream.py::test_stream_of_closed_exchange_is_refused_with_reason",
    ),
    "Live: several clients of one stream": (
        "server/test_stream.py::test_client_that_joins_later_gets_the_current_book",
    ),
    "Live: a connection that is cut": (
        "live/test_defects.py::test_d12_a_cut_connection_resets_its_own_state_only",
    ),
    "Live: a book that loses an update": (
        "live/test_defects.py::test_d18_lost_update_requests_the_snapshot_again",
    ),
    "Live: exchanges that end connections after a day": (
        "live/test_overlap.py::test_connection_is_replaced_before_its_end_if_both_send_the_same",
    ),
}
"""The tests of each difference, by the first cell of its line in the table."""


def test_each_difference_has_its_line_and_its_test() -> None:
    table = PAGE.read_text().partition("### Differences\n")[2]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert rows[0] == ["| what", "Node server", "here |"]
    assert all(len(row) == 3 for row in rows)
    assert [row[0].removeprefix("| ") for row in rows[1:]] == list(TESTS)


def test_each_test_of_a_difference_exists() -> None:
    named = {test for tests in TESTS.values() for test in tests}
    missing = [test for test in sorted(named) if not _exists(*test.split("::"))]
    assert not missing


def _exists(path: str, name: str) -> bool:
    source = (FOLDER / path).read_text(encoding="utf-8")
    return re.search(rf"^(async )?def {name}\(", source, re.MULTILINE) is not None
