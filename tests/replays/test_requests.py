"""Options are refused before anything starts, with what is allowed."""

import json
import logging
from typing import Any

import pytest

from tardis_machine import exchanges
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import iso_us
from tardis_machine.replays.json_options import read_requests
from tardis_machine.replays.requests import (
    OptionsError,
    ReplayNormalizedOptions,
    ReplayOptions,
    StreamNormalizedOptions,
    parse_time,
    replay_normalized_options,
    replay_options,
    stream_normalized_options,
)

MARCH = 1_709_251_200_000_000
MINUTE = 60_000_000
GOOD: dict[str, Any] = {
    "exchange": "bitmex",
    "from": "2024-03-01",
    "to": "2024-03-01T00:02:30Z",
    "dataTypes": ["trade", "book_snapshot_5_0ms", "trade"],
}


def parse_replay(text: str | None, *, strict: bool = False) -> ReplayOptions:
    return replay_options(read_requests(text)[0], strict=strict)


def parse_replay_normalized(
    text: str | None, *, strict: bool = False
) -> list[ReplayNormalizedOptions]:
    return replay_normalized_options(read_requests(text), strict=strict)


def parse_stream_normalized(text: str | None) -> list[StreamNormalizedOptions]:
    return stream_normalized_options(read_requests(text), strict=False)


def normalized(**changes: Any) -> list[ReplayNormalizedOptions]:
    return parse_replay_normalized(json.dumps(GOOD | changes))


def refused(**changes: Any) -> str:
    with pytest.raises(OptionsError) as caught:
        normalized(**changes)
    assert caught.value.status == 400
    return str(caught.value)


def test_one_or_several() -> None:
    expected = ReplayNormalizedOptions(
        exchange="bitmex",
        from_=MARCH,
        to=MARCH + 2 * MINUTE,
        data_types=("trade", "book_snapshot_5_0ms"),
    )
    assert normalized() == [expected]
    assert parse_replay_normalized(json.dumps([GOOD, GOOD])) == [expected, expected]


def test_symbols_are_all_when_missing_null_or_empty() -> None:
    assert normalized()[0].symbols is None
    assert normalized(symbols=None)[0].symbols is None
    assert normalized(symbols=[])[0].symbols is None
    assert normalized(symbols=["XBTUSD", "XBTUSD"])[0].symbols == ("XBTUSD",)


def test_filter_with_empty_symbols_is_of_all_symbols() -> None:
    filters = [{"channel": "trade", "symbols": []}, {"channel": "quote", "symbols": ["XBTUSD"]}]
    asked = {key: value for key, value in GOOD.items() if key not in {"dataTypes", "symbols"}}
    found = parse_replay(json.dumps(asked | {"filters": filters}))
    assert found.filters == (Filter("trade"), Filter("quote", ("XBTUSD",)))


def test_empty_symbols_are_logged_once_for_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = {"exchange": "bitmex", "dataTypes": ["trade"], "symbols": []}
    empty: list[dict[str, Any]] = [{"channel": name, "symbols": []} for name in ("trade", "quote")]
    raw = {"exchange": "bitmex", "from": "2024-03-01", "to": "2024-03-02", "filters": empty}
    for parse in (
        lambda: parse_replay_normalized(json.dumps([GOOD | {"symbols": []}] * 2)),
        lambda: parse_stream_normalized(json.dumps([asked] * 2)),
        lambda: parse_replay(json.dumps(raw)),
    ):
        caplog.clear()
        parse()
        assert caplog.messages == ['empty "symbols": all symbols are meant']
    caplog.clear()
    normalized(symbols=None)
    assert caplog.messages == []


def test_range_of_no_length_is_taken_and_one_within_a_minute_refused() -> None:
    for time in ("2024-03-01", "2024-03-01T00:00:30.5Z"):
        [options] = normalized(**{"from": time, "to": time})
        assert (options.from_, options.to) == (MARCH, MARCH)
    within = {"from": "2024-03-01T00:00:10Z", "to": "2024-03-01T00:00:40Z"}
    assert "no whole minute" in refused(**within)


def test_exact_range_is_fetched_in_the_whole_minutes_around_it() -> None:
    within = {"from": "2024-03-01T00:01:10.000001Z", "to": "2024-03-01T00:01:40Z", "exact": True}
    [options] = normalized(**within)
    assert (options.from_, options.to) == (MARCH + 60_000_000, MARCH + 120_000_000)
    assert options.window == (MARCH + 70_000_001, MARCH + 100_000_000)
    [options] = normalized(**{"from": "2024-03-01", "to": "2024-03-01T00:01", "exact": True})
    assert (options.from_, options.to) == options.window == (MARCH, MARCH + 60_000_000)
    [options] = normalized(**within | {"from": within["to"]})
    assert options.from_ == options.to
    [options] = normalized(**within | {"to": "9999-12-31T23:59:59.999999Z"})
    assert iso_us(options.to) == "9999-12-31T23:59:00.000000Z"
    assert normalized(exact=False) == normalized()
    assert '"to" after "from"' in refused(**within | {"to": "2024-03-01T00:01:10Z"})
    assert 'invalid "exact": "yes"' in refused(exact="yes")


def test_flags() -> None:
    options = normalized(withDisconnectMessages=True, publish=False)[0]
    assert options.with_disconnect_messages
    assert not options.publish


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"exchange": "bitmx"}, ["bitmx", "did you mean bitmex", "deribit"]),
        ({"exchange": None}, ['"exchange"', "null"]),
        ({"exchange": ["bitmex"]}, ['"exchange"']),
        ({"from": "yesterday"}, ['"from"', "yesterday", "ISO 8601"]),
        ({"from": 1709251200000}, ['"from"', "ISO 8601"]),
        ({"to": "2024-13-01"}, ['"to"', "2024-13-01"]),
        ({"to": None}, ['"to"', "null"]),
        ({"from": "1969-12-31T23:59:59"}, ['"from"', "1969", "1970 or later"]),
        ({"from": "1970-01-01T01:00+02:00"}, ['"from"', "1970 or later"]),
        ({"to": "2024-03-01T00:00:59Z"}, ["no whole minute"]),
        ({"to": "2024-02-01"}, ["no whole minute"]),
        ({"dataTypes": ["tarde"]}, ["invalid data type: tarde", "trade", "book_change"]),
        ({"dataTypes": ["option_summary"]}, ["option_summary", "available for bitmex"]),
        ({"dataTypes": ["trade_bar_xs"]}, ["invalid interval: x", "trade_bar_{n}"]),
        ({"dataTypes": ["book_snapshot_x_1s"]}, ["invalid depth: x"]),
        ({"dataTypes": [f"book_snapshot_{'9' * 5000}_1s"]}, ["invalid depth: 9", "1 to"]),
        ({"dataTypes": []}, ['"dataTypes"', "at least one"]),
        ({"dataTypes": "trade"}, ['"dataTypes"', "array"]),
        ({"symbols": "XBTUSD"}, ['"symbols"', "array"]),
        ({"symbols": [1]}, ['"symbols"', "array"]),
        ({"withDisconnectMessages": "yes"}, ['"withDisconnectMessages"', "true or false"]),
        ({"publish": 0}, ['"publish"', "true or false"]),
    ],
)
def test_what_is_refused(changes: dict[str, Any], parts: list[str]) -> None:
    text = refused(**changes)
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("value", "minutes"),
    [
        (None, None),
        (False, None),
        (0, None),
        (True, 30),
        (1, 6),
        (6, 6),
        (7.5, 7.5),
        (525_600, 525_600),
    ],
)
def test_wait_for_data_is_minutes_behind_the_clock(value: object, minutes: float | None) -> None:
    wait = {"waitWhenDataNotYetAvailable": value}
    assert normalized(**wait)[0].lag_minutes == minutes
    raw = {name: value for name, value in GOOD.items() if name != "dataTypes"}
    assert parse_replay(json.dumps(raw | wait), strict=True).lag_minutes == minutes


@pytest.mark.parametrize("value", ["true", -1, 525_601, 1e308, [], {}])
def test_wait_for_data_that_is_none_is_refused(value: object) -> None:
    expected = "expected true, false, or minutes behind the clock, from 0 to 525,600"
    assert expected in refused(waitWhenDataNotYetAvailable=value)


def test_unknown_keys_are_said_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    text = json.dumps(GOOD | {"datatypes": 1})
    with caplog.at_level(logging.WARNING):
        assert parse_replay_normalized(text) == normalized()
    assert caplog.records[0].__dict__["keys"] == "datatypes"
    with pytest.raises(OptionsError, match="unknown option: datatypes, expected one of exchange"):
        parse_replay_normalized(text, strict=True)


def test_the_first_minute_of_1970_is_a_time() -> None:
    assert normalized(**{"from": "1970-01-01"})[0].from_ == 0


def test_raw_replays_take_every_recorded_exchange() -> None:
    options = parse_replay(
        json.dumps(
            {
                "exchange": "kraken",
                "from": "2024-03-01",
                "to": "2024-03-02",
                "filters": [{"channel": "trade", "symbols": ["XBT/USD"]}, {"channel": "book"}],
                "withDisconnects": True,
            }
        )
    )
    assert options == ReplayOptions(
        exchange="kraken",
        from_=MARCH,
        to=MARCH + 1440 * MINUTE,
        filters=(Filter("trade", ("XBT/USD",)), Filter("book")),
        with_disconnects=True,
    )


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"exchange": "nowhere"}, "Expected one of"),
        ({"filters": [{"channel": "trads"}]}, "did you mean trade"),
        ({"filters": [{"symbols": ["x"]}]}, "channel"),
        ({"filters": {"channel": "trade"}}, "array"),
        ({"withDisconnects": "yes"}, "true or false"),
        ({"filters": [{"channel": "trade", "symbols": "x"}]}, "filters"),
    ],
)
def test_what_a_raw_replay_refuses(changes: dict[str, Any], part: str) -> None:
    given = {"exchange": "bitmex", "from": "2024-03-01", "to": "2024-03-02"} | changes
    with pytest.raises(OptionsError) as caught:
        parse_replay(json.dumps(given))
    assert part in str(caught.value)


def test_an_exchange_without_mappers_is_told_from_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchanges, "names", lambda: ("binance-futures", "bitmex"))
    given = {
        "exchange": "binance",
        "from": "2024-03-01",
        "to": "2024-03-02",
        "dataTypes": ["trade"],
    }
    with pytest.raises(OptionsError) as caught:
        parse_replay_normalized(json.dumps(given))
    said = str(caught.value)
    assert said.startswith('invalid "exchange": "binance" is not normalized yet; its raw messages')
    assert "did you mean" not in said


def test_what_would_be_right_fits_into_a_close_frame() -> None:
    given = {
        "exchange": "x" * 500,
        "from": "2024-03-01",
        "to": "2024-03-02",
        "dataTypes": ["trade"],
    }
    with pytest.raises(OptionsError) as caught:
        parse_replay_normalized(json.dumps(given))
    assert "Expected one of" in str(caught.value)[:123]


def test_live_options() -> None:
    given = {"exchange": "bitmex", "dataTypes": ["trade"], "withErrorMessages": True}
    assert parse_stream_normalized(json.dumps(given)) == [
        StreamNormalizedOptions(exchange="bitmex", data_types=("trade",), with_error_messages=True)
    ]
    [found] = parse_stream_normalized(json.dumps(given | {"timeoutIntervalMS": 1e3}))
    assert found.timeout_interval_ms == 1000
    for wrong in ("1s", 0.5, -1, 10**400, [10**400]):
        with pytest.raises(OptionsError, match=r'invalid "timeoutIntervalMS": .*, expected milli'):
            parse_stream_normalized(json.dumps(given | {"timeoutIntervalMS": wrong}))


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2024-03-01", MARCH),
        ("2024-03-01T00:01", MARCH + MINUTE),
        ("2024-03-01 00:01", MARCH + MINUTE),
        ("2024-03-01T00:00:00.123456Z", MARCH + 123_456),
        ("2024-03-01T00:00:00.1234567Z", MARCH + 123_456),
        ("2024-03-01T02:00:00+02:00", MARCH),
        ("2024-02-29T19:00:00-0500", MARCH),
        ("2024-02-29T24:00", MARCH),
        ("2024-02-29T24:00:00.000Z", MARCH),
        ("2024/03/01", MARCH),
        ("2024/3/1 0:01", MARCH + MINUTE),
        ("2024-3-1", MARCH),
        ("2024-3-1T00:01:00.000Z", MARCH + MINUTE),
        ("2024-03-01Z", MARCH),
        ("2024-03", MARCH),
        ("2024/03", MARCH),
        ("2024", MARCH - 60 * 1440 * MINUTE),
        ("2024-03-01 ", MARCH),
        (" 2024-03-01T00:01 \n", MARCH + MINUTE),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text: str, us: int) -> None:
    assert parse_time(text, "from") == us


@pytest.mark.parametrize(
    "text",
    [
        *("20240301", "2024-W09-5", "2024-03-01T25:00", "2024-03-01T24:00:01", "", "now", " "),
        *("2024-02-30", "2024-13", "2024/03-01", "2024-03-0100", "2024-03-01T24:01", "24-3-1"),
        *("2024-0-1", "2024-03-", "03/01/2024", "2024-03-01T", "\u0662\u0660\u0662\u0664-03-01"),
    ],
)
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(OptionsError, match="ISO 8601"):
        parse_time(text, "from")
