"""Arguments: in Python's names or the official clients', several at once, refused by name."""

from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tardis_client
import tardis_dev

from tardis_machine import Channel, replay, replay_normalized, sample_history, stream_normalized
from tardis_machine.config import ConfigError
from tardis_machine.history.filters import Filter
from tardis_machine.replays import RawMessage, RawMessageError
from tardis_machine.replays.recorded import decode_recorded
from tardis_machine.replays.requests import OptionsError
from tests.library.asked import SPAN

END = "2024-03-01T00:01"


class Symbol(Enum):
    BITCOIN = "XBTUSD"


@pytest.mark.parametrize(
    "channel",
    [
        Channel("trade", ["XBTUSD"]),
        Filter("trade", ("XBTUSD",)),
        {"channel": "trade", "symbols": ["XBTUSD"]},
        tardis_dev.Channel("trade", ["XBTUSD"]),
        tardis_client.Channel("trade", ["XBTUSD"]),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_filters_of_every_client_are_taken(channel: Any) -> None:
    expected = list(replay("bitmex", filters=[Filter("trade", ("XBTUSD",))], **SPAN))
    assert len(expected) > 20
    assert list(replay("bitmex", filters=[channel], **SPAN)) == expected


def test_a_channel_may_be_told_by_its_name() -> None:
    expected = list(replay("bitmex", filters=[Channel("trade")], **SPAN))
    assert list(replay("bitmex", filters=["trade"], **SPAN)) == expected
    assert list(replay("bitmex", filters="trade", **SPAN)) == expected


def test_the_official_clients_arguments() -> None:
    channels = [Channel("trade", ["XBTUSD"])]
    ours = list(replay("bitmex", filters=channels, **SPAN))
    by_place = replay("bitmex", "2024-03-01", END, channels, sample=True)
    named = replay(
        exchange="bitmex", from_date="2024-03-01", to_date=END, filters=channels, sample=True
    )
    assert list(by_place) == list(named) == ours
    local_timestamp, message = ours[0]
    assert message["table"] == "trade"
    assert local_timestamp.datetime < datetime(2024, 3, 1, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (date(2024, 3, 1), END),
        (datetime.fromisoformat("2024-03-01"), datetime.fromisoformat(END)),
        (datetime(2024, 3, 1, 2, tzinfo=timezone(timedelta(hours=2))), END),
        (pd.Timestamp("2024-03-01"), pd.Timestamp(END, tz="UTC")),
        (np.datetime64("2024-03-01"), np.datetime64(END)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_times_of_every_kind(start: Any, end: Any) -> None:
    replayed = replay_normalized("bitmex", data_types="trade", from_=start, to=end, sample=True)
    assert list(replayed) == list(replay_normalized("bitmex", data_types=["trade"], **SPAN))


def test_empty_symbols_are_all_symbols() -> None:
    every = list(replay_normalized("bitmex", data_types=["trade"], **SPAN))
    assert list(replay_normalized("bitmex", data_types=["trade"], symbols=[], **SPAN)) == every
    raw = list(replay("bitmex", filters=[Channel("trade")], **SPAN))
    assert len(raw) > 20
    assert list(replay("bitmex", filters=[Channel("trade", [])], **SPAN)) == raw


def test_one_symbol_or_type_is_no_list_of_letters() -> None:
    one = replay_normalized("bitmex", data_types="trade", symbols="XBTUSD", **SPAN)
    listed = replay_normalized("bitmex", data_types=["trade"], symbols=["XBTUSD"], **SPAN)
    assert list(one) == list(listed)


@pytest.mark.parametrize(
    "symbols", [[Symbol.BITCOIN], np.array(["XBTUSD"]), pd.Series(["XBTUSD"]), pa.array(["XBTUSD"])]
)
def test_symbols_of_enumerations_and_libraries_are_text(symbols: Any) -> None:
    one = replay_normalized("bitmex", data_types="trade", symbols=symbols, **SPAN)
    assert list(one) == list(
        replay_normalized("bitmex", data_types="trade", symbols="XBTUSD", **SPAN)
    )
    raw = replay("bitmex", filters=[{"channel": "trade", "symbols": symbols}], **SPAN)
    assert list(raw) == list(replay("bitmex", filters=[Channel("trade", ["XBTUSD"])], **SPAN))


def test_option_is_refused_by_the_name_that_the_caller_wrote() -> None:
    one: Any = {"exchange": "bitmex", "from": "2024-03-01", "to": END, "dataTypes": ["trade"]}
    with pytest.raises(OptionsError, match=r"^invalid dataTypes: \[7\], expected"):
        replay_normalized([one | {"dataTypes": 7}], sample=True)
    with pytest.raises(
        OptionsError, match=r'^invalid from and to: .*, expected "to" after "from"$'
    ):
        replay_normalized([one | {"to": "2024-02-01"}], sample=True)
    with pytest.raises(
        OptionsError, match=r'expected a "to_date" at least .* after "from_", or "ex'
    ):
        replay("bitmex", from_="2024-03-01", to_date="2024-03-01T00:00:30", sample=True)
    with pytest.raises(OptionsError, match=r"^unknown option: with_error_messages, expected"):
        replay_normalized([one | {"with_error_messages": True}], sample=True)


def test_several_are_merged_by_local_time() -> None:
    asked: list[Any] = [
        {"exchange": "bitmex", "from_": "2024-03-01", "to": END, "data_types": ["trade"]},
        {"exchange": "deribit", "from": "2024-03-01", "to": END, "dataTypes": ["trade", "quote"]},
    ]
    merged = list(replay_normalized(asked, sample=True))
    alone = [each for one in asked for each in replay_normalized([one], sample=True)]
    assert {each.exchange for each in merged} == {"bitmex", "deribit"}
    assert merged == sorted(alone, key=lambda each: each.local_timestamp)


def test_several_raw_ones_are_merged_by_local_time() -> None:
    asked: list[Any] = [
        {"exchange": name, "from_date": "2024-03-01", "to_date": END}
        for name in ("bitmex", "deribit")
    ]
    merged = list(replay(asked, sample=True))
    alone = [each for one in asked for each in replay([one], sample=True)]
    assert len(merged) > 100
    assert merged == sorted(alone, key=lambda each: each.local_timestamp)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"from_": None}, "^invalid from_: None, expected an ISO 8601 date"),
        ({"from_": None, "from_date": "x"}, "^invalid from_date: 'x', expected an ISO 8601 date"),
        ({"from_date": "2024-03-01"}, "^from_ is given twice, the second time as from_date"),
        ({"exchange": "bitmax"}, "did you mean bitmex"),
        ({"data_types": None}, "^invalid data_types: None, expected an array of texts"),
        ({"symbols": 7}, r"^invalid symbols: \[7\], expected an array of texts"),
        ({"symbols": [b"XBTUSD"]}, r"^invalid symbols: \[b'XBTUSD'\], expected an array of texts"),
        ({"symbols": [Channel("trade")]}, r"^invalid symbols: \[Channel\(name='trade'"),
        ({"symbols": ["\ud800"]}, "^invalid symbols: invalid text"),
        ({"exchange": ["bitmex"]}, "exchange.*'bitmex', expected text, or a list of dictionaries"),
        ({"exchange": 7}, "exchange.*7, expected text, or a list of dictionaries"),
        ({"from_": pd.NaT}, "^invalid from_: 'NaT', expected an ISO 8601 date"),
        (
            {"from_": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2)))},
            "^invalid from_: .*, expected 1970 or later",
        ),
        ({"symbol": "XBTUSD"}, "^unknown argument: symbol$"),
        ({"history": "sample"}, "history: str, expected a History"),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(change: Any, expected: str) -> None:
    with pytest.raises(OptionsError, match=expected):
        replay_normalized(**{"exchange": "bitmex", "data_types": ["trade"], **SPAN, **change})


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"endpoint": "ftp://api"}, "^endpoint 'ftp://api': expected a URL"),
        ({"api_key": b"sesame"}, r"^api_key '\*\*\*': expected text"),
        ({"api_key": "sesame\n"}, "^api_key: expected a key"),
        ({"cache_dir": b"cache"}, "^cache_dir b'cache': expected a path"),
        ({"cache_max_bytes": -1}, "^cache_max_bytes -1: expected 1 or more"),
        ({"max_slices": 0}, "^max_slices 0: expected 1 or more"),
        ({"api_wait_s": "soon"}, "^api_wait_s 'soon': expected a number"),
    ],
)
@pytest.mark.parametrize("asked", [replay, partial(replay_normalized, data_types="trade")])
def test_where_history_comes_from_is_checked_at_once(
    asked: Any, where: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        asked("bitmex", from_="2024-03-01", to=END, **where)


def test_a_history_has_its_own_source_and_a_typing_error_is_not_lost_beside_it() -> None:
    span = {"from_": "2024-03-01", "to": END}
    with sample_history() as shared:
        with pytest.raises(OptionsError, match="unknown argument: symbol"):
            replay_normalized("bitmex", data_types="trade", symbol="XBTUSD", history=shared, **span)  # type: ignore[call-overload]
        with pytest.raises(OptionsError, match="api_key is given beside a history"):
            replay("bitmex", **span, api_key="sesame", history=shared)  # type: ignore[call-overload]
        assert next(replay("bitmex", **span, history=shared, sample=False))  # type: ignore[call-overload]


def test_nothing_said_of_the_endpoint_is_the_usual_one() -> None:
    assert next(replay("bitmex", **SPAN, endpoint=None, api_wait_s=None, api_key=None))  # type: ignore[call-overload]


def test_numbers_of_numpy_are_numbers_and_a_filter_needs_no_list() -> None:
    one = {"channel": "trade", "symbols": ["XBTUSD"]}
    fast = replay("bitmex", filters=one, speed=np.int64(1_000_000), **SPAN)  # type: ignore[call-overload]
    assert list(fast) == list(replay("bitmex", filters=[one], **SPAN))
    with pytest.raises(OptionsError, match=r"speed.*0, expected a number"):
        replay("bitmex", speed=np.int64(0), **SPAN)  # type: ignore[call-overload]


def test_options_beside_or_inside_a_list() -> None:
    one: Any = {"exchange": "bitmex", "from_": "2024-03-01", "to": END, "data_types": ["trade"]}
    with pytest.raises(OptionsError, match="data_types is given beside options"):
        replay_normalized([one], data_types=["trade"], sample=True)  # type: ignore[call-overload]
    with pytest.raises(OptionsError, match="an empty list of options"):
        replay_normalized([], sample=True)
    known = "exchange, symbols, from_, to, exact, data_types, with_disconnect_messages"
    with pytest.raises(OptionsError, match=f"^unknown option: datatypes, expected one of {known}"):
        replay_normalized([{**one, "datatypes": []}], sample=True)
    raw = {"exchange": "bitmex", "from_": "2024-03-01", "to": END, "with_disconnects": True}
    with pytest.raises(OptionsError, match="with_disconnects"):
        replay([raw, raw], sample=True)  # type: ignore[list-item]


async def test_live_streams_take_one_symbol_or_a_list_and_refuse_what_is_unknown() -> None:
    one = stream_normalized("bitmex", data_types="trade", symbols="XBTUSD")
    assert [(each.symbols, each.data_types) for each in one._options] == [(("XBTUSD",), ("trade",))]
    asked: list[Any] = [{"exchange": each, "data_types": ["trade"]} for each in ("bitmex", "upbit")]
    several = stream_normalized(asked)
    assert [each.exchange for each in several._options] == ["bitmex", "upbit"]
    await several.aclose()
    await one.aclose()
    with pytest.raises(OptionsError, match="did you mean bitmex"):
        stream_normalized(exchange="bitmax", data_types="trade", symbols="XBTUSD")


def test_disconnects_are_none_and_what_is_no_json_is_named_after_what_precedes_it() -> None:
    line = b'{"localTimestamp":"2024-03-01T00:00:00.0000027Z","message":%b}\n'
    assert list(decode_recorded(b"\n" + line % b"[1]" + b"\n")) == [
        None,
        RawMessage(1709251200000002, [1]),  # type: ignore[arg-type]
        None,
    ]
    broken = iter(decode_recorded(line % b"[1]" + line % b"[oops"))
    assert next(broken) is not None
    with pytest.raises(RawMessageError, match=r"not JSON: .*\[oops"):
        next(broken)
