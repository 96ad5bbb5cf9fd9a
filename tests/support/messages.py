"""A normalized message of each kind, as the server sends it, and a context to encode it in."""

from tardis_machine.bronze import Context, Origin

CONTEXT = Context(
    producer_id="here",
    origin=Origin.REALTIME,
    ingest_us=1_709_251_200_000_001,
    request_id="r",
    session_id="s",
    transport="ws",
    route="/ws-stream-normalized",
    meta={"team": "desk"},
)
TRADE = (
    b'{"type":"trade","symbol":"XBTUSD","exchange":"bitmex","id":"a1","price":61130,'
    b'"amount":100,"side":"buy","timestamp":"2024-03-01T00:00:00.123Z",'
    b'"localTimestamp":"2024-03-01T00:00:00.123456Z"}'
)
BAR = (
    b'{"type":"trade_bar","symbol":"XBTUSD","exchange":"bitmex","name":"trade_bar_0.5vol",'
    b'"interval":0.5,"kind":"volume","open":1,"high":2,"low":1,"close":2,"volume":3,"buyVolume":1,'
    b'"sellVolume":2,"trades":2,"vwap":1.5,"openTimestamp":"2024-03-01T00:00:00.123Z",'
    b'"closeTimestamp":"2024-03-01T00:00:01.123Z","localTimestamp":"2024-03-01T00:00:01.123456Z",'
    b'"timestamp":"2024-03-01T00:00:02.000Z"}'
)
QUOTE = (
    b'{"type":"book_snapshot","symbol":"XBTUSD","exchange":"bitmex","name":"quote","depth":1,'
    b'"interval":0,"bids":[{"price":1,"amount":2}],"asks":[{}],'
    b'"timestamp":"2024-03-01T00:00:00.123Z","localTimestamp":"2024-03-01T00:00:00.123456Z"}'
)
DISCONNECT = (
    b'{"type":"disconnect","exchange":"bitmex","localTimestamp":"2024-03-01T00:00:00.123456Z"}'
)
