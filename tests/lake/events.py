"""Bronze values made by hand, for what a replay would not give."""

from collections.abc import Sequence

from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb

START_US = 1_709_251_200_000_000
"""2024-03-01 00:00 UTC."""


def trade(
    number: int,
    *,
    price: str = "61130.5",
    amount: str = "100",
    trade_id: str | None = None,
    exchange: str = "bitmex",
    symbol: str = "XBTUSD",
    late_us: int = 0,
    event_id: str | None = None,
    live: bool = False,
) -> bytes:
    """Make the trade of that number; `late_us` is how much later this copy of it arrived."""
    event = pb.NormalizedEvent(
        source="tardis-machine",
        exchange=exchange,
        symbol=symbol,
        event_id=event_id or f"{number:020x}{late_us:012x}",
        position=number,
        origin=pb.ORIGIN_REALTIME if live else pb.ORIGIN_REPLAY,
    )
    event.local_ts.FromMicroseconds(START_US + number * 1000 + late_us)
    event.ingest_ts.FromMicroseconds(START_US + 10**9)
    event.trade.price_str = price
    event.trade.qty_str = amount
    event.trade.side = pb.SIDE_BUY
    event.trade.event_ts.FromMicroseconds(START_US + number * 1000)
    if trade_id is not None:
        event.trade.trade_id = trade_id
    return event.SerializeToString()


def book_change(number: int, bids: Sequence[tuple[str, str]], *, snapshot: bool = False) -> bytes:
    event = pb.NormalizedEvent(
        source="tardis-machine",
        exchange="bitmex",
        symbol="XBTUSD",
        event_id=f"{number:032x}",
        position=number,
    )
    event.local_ts.FromMicroseconds(START_US + number * 1000)
    event.book_change.is_snapshot = snapshot
    event.book_change.event_ts.FromMicroseconds(START_US + number * 1000)
    for price, amount in bids:
        event.book_change.bids.add(price_str=price, qty_str=amount)
    return event.SerializeToString()
