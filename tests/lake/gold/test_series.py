"""Series at intervals of local time: funding, basis, open interest; liquidations; options."""

from collections import defaultdict
from typing import Any

import pytest

from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.intervals import seconds
from tardis_machine.lake.tables import SILVER, Tables
from tests.lake.days import MINUTE_US
from tests.lake.rows import numbered

Series = dict[tuple[str, str, int], list[Any]]


def by_minute(tables: Tables, case: str) -> Series:
    """Give Silver's rows by exchange, symbol and minute, in their order."""
    found: Series = defaultdict(list)
    for row in numbered(tables.read(SILVER[case])).orderBy("local_ts", "position").collect():
        found[row.exchange, row.symbol, row.local_ts // MINUTE_US * MINUTE_US].append(row)
    assert found
    return found


def made(tables: Tables, name: str) -> dict[tuple[str, str, int], Any]:
    rows = numbered(tables.read(GOLD[name].table)).collect()
    assert {(row.name, row.origin) for row in rows} == {("1m", "replay")}
    return {(row.exchange, row.symbol, row.start_ts): row for row in rows}


def number(value: Any) -> float | None:
    return None if value is None else float(value)


def test_derivatives_have_the_last_ticker_of_a_minute(sampled: Tables) -> None:
    tickers, series = by_minute(sampled, "derivativeTicker"), made(sampled, "derivatives")
    assert series.keys() == tickers.keys()
    for key, rows in tickers.items():
        held, last = series[key], rows[-1]
        for name in ("last_price", "funding_rate", "open_interest", "mark_price", "index_price"):
            assert held[name] == number(last[name]), name
        assert (held.tickers, held.local_ts) == (len(rows), last.local_ts)
        assert held.funding_ts == last.funding_ts
        if last.mark_price is None or last.index_price is None:
            assert held.basis is None
        else:
            assert held.basis == number(last.mark_price - last.index_price)
            bps = (last.mark_price / last.index_price - 1) * 10_000
            assert held.basis_bps == pytest.approx(float(bps), abs=1e-6)
        if last.open_interest is not None and rows[0].open_interest is not None:
            change = last.open_interest - rows[0].open_interest
            assert held.open_interest_change == number(change)


def test_liquidations_are_added_up(sampled: Tables) -> None:
    liquidations, totals = by_minute(sampled, "liquidation"), made(sampled, "liquidation_totals")
    assert totals.keys() == liquidations.keys()
    for key, rows in liquidations.items():
        held = totals[key]
        for side, count, amount in (
            ("buy", held.buys, held.buy_amount),
            ("sell", held.sells, held.sell_amount),
        ):
            own = [row.amount for row in rows if row.side == side]
            assert (count, amount) == (len(own), float(sum(own)))
        assert held.amount == float(sum(row.amount for row in rows))
        assert held.largest_amount == float(max(row.amount for row in rows))
        assert (held.low, held.high) == (
            float(min(row.price for row in rows)),
            float(max(row.price for row in rows)),
        )


def test_the_surface_has_the_last_summary_of_each_option(sampled: Tables) -> None:
    summaries, surface = by_minute(sampled, "optionSummary"), made(sampled, "option_surface")
    assert surface.keys() == summaries.keys()
    for key, rows in summaries.items():
        held, last = surface[key], rows[-1]
        for name in ("strike_price", "underlying_price", "mark_iv", "delta", "best_bid_iv"):
            assert held[name] == number(last[name]), name
        assert (held.option_type, held.expiration_ts) == (last.option_type, last.expiration_ts)
        assert held.summaries == len(rows)
        if last.underlying_price:
            assert held.moneyness == pytest.approx(float(last.strike_price / last.underlying_price))
        left = (last.expiration_ts - last.local_ts) / (1440 * MINUTE_US)
        assert held.days_to_expiry == pytest.approx(left)


@pytest.mark.parametrize(("written", "length"), [("10s", 10), ("1m", 60), ("4h", 14_400)])
def test_intervals_are_read(written: str, length: int) -> None:
    assert seconds(written) == length


@pytest.mark.parametrize("written", ["", "m", "0m", "7m", "1x", "-1m", "2d", "1.5m"])
def test_what_no_day_is_made_of_is_no_interval(written: str) -> None:
    with pytest.raises(LakeError, match="no interval that a day is made of"):
        seconds(written)
