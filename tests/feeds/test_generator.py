from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.support.feeds.generator import FEEDS, minutes

START = datetime(2024, 3, 1, tzinfo=UTC)


def generate(exchange: str, **options: Any) -> list[tuple[str, dict[str, Any]] | None]:
    """Stamps and decoded messages; None is a disconnect."""
    given = {"per_second": 40.0, "seed": 7, "depth": 30} | options
    data = b"".join(minutes(exchange, START, 2, **given))
    return [
        (line[:28].decode(), msgspec.json.decode(line[29:])) if line else None
        for line in data.split(b"\n")[:-1]
    ]


def test_a_seed_gives_the_same_bytes_another_gives_others() -> None:
    first, again, other = (
        list(minutes("bitmex", START, 1, per_second=20, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("exchange", FEEDS)
def test_stamps_rise_inside_their_minutes(exchange: str) -> None:
    for number, data in enumerate(minutes(exchange, START, 3, per_second=40, seed=1)):
        stamps = [line[:29] for line in data.split(b"\n")[:-1]]
        assert stamps == sorted(stamps)
        assert {stamp[:17] for stamp in stamps} == {f"2024-03-01T00:0{number}:".encode()}
        assert {stamp[27:] for stamp in stamps} == {b"Z "}
        assert 1500 < len(stamps) < 3500


@pytest.mark.parametrize("exchange", FEEDS)
def test_a_disconnect_is_followed_by_fresh_snapshots(exchange: str) -> None:
    data = b"".join(minutes(exchange, START, 1, per_second=40, seed=1, disconnects=(20.5, 40)))
    before, *after = data.split(b"\n\n")
    assert len(after) == 2
    snapshot = {
        "bitmex": b'"orderBookL2","action":"partial"',
        "deribit": b'"type":"snapshot"',
        "binance-futures": b"depthSnapshot",
    }[exchange]
    markets = before.count(snapshot)
    assert markets > 1
    assert [each.count(snapshot) for each in after] == [markets, markets]


def test_bitmex_rows_are_known_by_their_ids_and_books_uncrossed() -> None:
    books: dict[str, dict[int, tuple[str, float, float]]] = {}
    changes = 0
    for entry in generate("bitmex", disconnects=(70,)):
        if entry is None or entry[1]["table"] != "orderBookL2":
            continue
        action = entry[1]["action"]
        for row in entry[1]["data"]:
            book = books.setdefault(row["symbol"], {})
            if action == "partial":
                if row is entry[1]["data"][0]:
                    book.clear()
                assert row["id"] not in book
            else:
                assert (row["id"] in book) == (action != "insert")
                changes += 1
            if action == "delete":
                assert book.pop(row["id"])[0] == row["side"]
            else:
                price = row["price"] if action != "update" else book[row["id"]][1]
                book[row["id"]] = (row["side"], price, row["size"])
        if action == "partial":
            continue
        bids = [price for side, price, _ in book.values() if side == "Buy"]
        asks = [price for side, price, _ in book.values() if side == "Sell"]
        assert max(bids) < min(asks)
        assert len(bids) >= 15
        assert len(asks) >= 15
    assert changes > 1000


def test_binance_updates_follow_one_another_and_reach_back_to_the_snapshot() -> None:
    last: dict[str, int] = {}
    overtaken: dict[str, int] = {}
    for entry in generate("binance-futures", channels=("depth", "depthSnapshot")):
        assert entry is not None
        data = entry[1]["data"]
        if entry[1]["stream"].endswith("@depthSnapshot"):
            symbol = entry[1]["stream"].partition("@")[0].upper()
            assert data["lastUpdateId"] == overtaken[symbol]
            assert len(data["bids"]) >= 30
            assert float(data["bids"][0][0]) < float(data["asks"][0][0])
            continue
        symbol = data["s"]
        if symbol in last:
            assert data["pu"] == last[symbol]
            overtaken.setdefault(symbol, last[symbol])
        assert data["pu"] < data["U"] <= data["u"]
        last[symbol] = data["u"]
    assert set(last) == {"BTCUSDT", "ETHUSDT"}


def test_deribit_changes_follow_one_another() -> None:
    last: dict[str, int] = {}
    for entry in generate("deribit", disconnects=(50,)):
        if entry is None:
            last.clear()
            continue
        params = entry[1]["params"]
        if params["channel"].startswith("book."):
            data = params["data"]
            name = data["instrument_name"]
            assert params["channel"] == f"book.{name}.raw"
            if data["type"] == "snapshot":
                assert name not in last
            else:
                assert data["prev_change_id"] == last[name]
            last[name] = data["change_id"]
    assert len(last) == 9


def test_only_wanted_channels_are_made() -> None:
    tables = {entry[1]["table"] for entry in generate("bitmex", channels=("trade",)) if entry}
    assert tables == {"trade"}
