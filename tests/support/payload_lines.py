"""One normalized message for every payload case."""

from typing import Final

_HEAD: Final = b'"symbol":"XBTUSD","exchange":"bitmex"'
_TAIL: Final = (
    b'"timestamp":"2024-03-01T00:00:00.123Z","localTimestamp":"2024-03-01T00:00:00.123456Z"'
)
_LEVELS: Final = (
    b'"bids":[{"price":61130,"amount":1},{"price":61129.5,"amount":0.5}],'
    b'"asks":[{"price":61131,"amount":2},{}]'
)

LINES: Final = {
    "trade": b'{"type":"trade",%b,"id":"a1","price":61130,"amount":100,"side":"buy",%b}'
    % (_HEAD, _TAIL),
    "bookChange": b'{"type":"book_change",%b,"isSnapshot":true,'
    b'"bids":[{"price":61130,"amount":1}],"asks":[{"price":61131,"amount":0}],%b}' % (_HEAD, _TAIL),
    "bookSnapshot": b'{"type":"book_snapshot",%b,"name":"book_snapshot_2_1.5ms","depth":2,'
    b'"interval":1.5,%b,%b}' % (_HEAD, _LEVELS, _TAIL),
    "quote": b'{"type":"book_snapshot",%b,"name":"quote_10s","depth":1,"interval":10000,'
    b'"bids":[{"price":61130,"amount":1}],"asks":[{}],%b}' % (_HEAD, _TAIL),
    "derivativeTicker": b'{"type":"derivative_ticker",%b,"lastPrice":1,"openInterest":2,'
    b'"fundingRate":-0.0001,"fundingTimestamp":"2024-03-01T08:00:00.000Z",'
    b'"predictedFundingRate":0,"indexPrice":5,"markPrice":6,%b}' % (_HEAD, _TAIL),
    "liquidation": b'{"type":"liquidation",%b,"id":"a1","price":61130,"amount":100,'
    b'"side":"sell",%b}' % (_HEAD, _TAIL),
    "optionSummary": b'{"type":"option_summary",%b,"optionType":"put","strikePrice":50000,'
    b'"expirationDate":"2024-12-27T08:00:00.000Z","bestBidPrice":1,"bestBidAmount":2,'
    b'"bestBidIV":3,"bestAskPrice":4,"bestAskAmount":5,"bestAskIV":6,"lastPrice":7,'
    b'"openInterest":8,"markPrice":9,"markIV":10,"delta":11,"gamma":12,"vega":13,"theta":14,'
    b'"rho":15,"underlyingPrice":16,"underlyingIndex":"SYN.BTC",%b}' % (_HEAD, _TAIL),
    "bookTicker": b'{"type":"book_ticker",%b,"askAmount":1,"askPrice":2,"bidPrice":3,'
    b'"bidAmount":4,%b}' % (_HEAD, _TAIL),
    "groupedBookSnapshot": b'{"type":"book_snapshot",%b,"name":"book_snapshot_2_grouped0.5_0ms",'
    b'"depth":2,"interval":0,"grouping":0.5,%b,%b}' % (_HEAD, _LEVELS, _TAIL),
    "tradeBar": b'{"type":"trade_bar",%b,"name":"trade_bar_10s","interval":10000,"kind":"time",'
    b'"open":1,"high":2,"low":0.5,"close":1.5,"volume":10,"buyVolume":4,"sellVolume":6,"trades":3,'
    b'"vwap":1.25,"openTimestamp":"2024-03-01T00:00:00.123Z",'
    b'"closeTimestamp":"2024-03-01T00:00:09.000001Z",'
    b'"localTimestamp":"2024-03-01T00:00:10.123456Z","timestamp":"2024-03-01T00:00:10.000Z"}'
    % _HEAD,
    "error": b'{"type":"error","exchange":"bitmex",'
    b'"localTimestamp":"2024-03-01T00:00:00.123456Z","details":"no answer",'
    b'"subSequentErrorsCount":3}',
    "disconnect": b'{"type":"disconnect","exchange":"bitmex",'
    b'"localTimestamp":"2024-03-01T00:00:00.123456Z","symbols":["XBTUSD"]}',
}
