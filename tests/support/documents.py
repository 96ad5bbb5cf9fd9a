"""Normalized messages as JSON documents, and how JavaScript prints them.

Independent of the code under test: the keys are written down from the API's description, and
numbers are printed by the steps of ECMAScript's Number::toString.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from hypothesis import strategies as st

Document = dict[str, Any]

KEYS: Final[Mapping[str, str]] = {
    "trade": "symbol exchange id? price amount side timestamp localTimestamp",
    "book_change": "symbol exchange isSnapshot bids asks timestamp localTimestamp",
    "derivative_ticker": "symbol exchange lastPrice? openInterest? fundingRate? fundingTimestamp? "
    "predictedFundingRate? indexPrice? markPrice? timestamp localTimestamp",
    "book_ticker": "symbol exchange askAmount? askPrice? bidPrice? bidAmount? timestamp "
    "localTimestamp",
    "liquidation": "symbol exchange id? price amount side timestamp localTimestamp",
    "option_summary": "symbol exchange optionType strikePrice expirationDate bestBidPrice? "
    "bestBidAmount? bestBidIV? bestAskPrice? bestAskAmount? bestAskIV? lastPrice? openInterest? "
    "markPrice? markIV? delta? gamma? vega? theta? rho? underlyingPrice? underlyingIndex? "
    "timestamp localTimestamp",
    "book_snapshot": "symbol exchange name depth interval grouping? bids asks timestamp "
    "localTimestamp",
    "trade_bar": "symbol exchange name interval kind open high low close volume buyVolume "
    "sellVolume trades vwap openTimestamp closeTimestamp localTimestamp timestamp",
    "disconnect": "exchange localTimestamp symbols? reason? closeCode?",
    "error": "exchange localTimestamp details subSequentErrorsCount code?",
}

_NOTABLE: Final = (
    0.0,
    61130.0,
    0.00002142,
    0.000001,
    1.5e-6,
    9.99e-7,
    1e-7,
    1.5e-7,
    2.143e-10,
    1e15,
    1e16,
    1.5e16,
    123456789012345680.0,
    1e20,
    1e21,
    1.5e21,
    1e22,
    5e-324,
    2.2250738585072014e-308,
    1.7976931348623157e308,
    0.1 + 0.2,
    4503599627370498.0,
    9007199254740993.0,
)

numbers: Final = st.one_of(
    st.sampled_from(_NOTABLE + tuple(-number for number in _NOTABLE)),
    st.integers(-(10**12), 10**12).map(float),
    st.decimals("-1e6", "1e6", places=5).map(float),
    st.floats(allow_nan=False, allow_infinity=False),
)

texts: Final = st.one_of(
    st.sampled_from(
        (
            "BTCUSDT",
            "",
            "5.0",
            'a":5.0,"b',
            '":1e21,"price":1e21}',
            "x.0,",
            "1e21,",
            ".0},{",
            ".0},{}],",
            'quote"',
            "back\\",
            '\\":5.0,',
            "日本-期权",
            "🚀",
            "\u2028",
            "\x7f\x00\x1f",
            ":-0.0,",
            'a":null,',
        )
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)

_MAX_SECOND: Final = 253_402_300_799


@st.composite
def times(draw: st.DrawFn) -> str:
    recent = st.integers(1_600_000_000, 1_800_000_000)
    seconds = draw(st.one_of(recent, st.integers(0, _MAX_SECOND)))
    text = datetime.fromtimestamp(seconds, UTC).isoformat()[:19]
    if draw(st.booleans()):
        return f"{text}.{draw(st.integers(0, 999)):03d}Z"
    micros = draw(st.one_of(st.integers(0, 999_999), st.integers(0, 999).map(lambda n: n * 1000)))
    return f"{text}.{micros:06d}Z"


def _levels(*, holes: bool) -> st.SearchStrategy[list[Document]]:
    level = st.tuples(numbers, numbers).map(lambda pair: {"price": pair[0], "amount": pair[1]})
    return st.lists(st.one_of(level, st.just({})) if holes else level, max_size=6)


_VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "symbol": texts,
    "exchange": texts,
    "id": st.one_of(texts, numbers),
    "side": st.sampled_from(("buy", "sell", "unknown")),
    "optionType": st.sampled_from(("put", "call")),
    "kind": st.sampled_from(("time", "volume", "tick")),
    "isSnapshot": st.booleans(),
    "underlyingIndex": texts,
    "details": texts,
    "reason": texts.filter(bool),
    "closeCode": st.integers(1, 2**32 - 1),
    "code": st.sampled_from(("WS_CONNECT", "WS_SEND", "SOURCE_AUTH", "SOURCE_RATE_LIMIT")),
    "name": st.one_of(
        texts, st.sampled_from(("quote", "quote_10s", "book_snapshot_5_100ms", "trade_bar_1s"))
    ),
    "depth": st.integers(0, 2**32 - 1),
    "trades": st.integers(0, 2**53),
    "subSequentErrorsCount": st.integers(0, 2**32 - 1),
    "symbols": st.lists(texts, max_size=3),
    "vwap": st.one_of(numbers, st.none()),
}


def _value(message_type: str, key: str) -> st.SearchStrategy[Any]:
    if key in ("bids", "asks"):
        return _levels(holes=message_type == "book_snapshot")
    if key.endswith(("imestamp", "Date")):
        return times()
    return _VALUES.get(key, numbers)


@st.composite
def documents(draw: st.DrawFn, message_type: str | None = None) -> Document:
    chosen = message_type or draw(st.sampled_from(sorted(KEYS)))
    document: Document = {"type": chosen}
    for key in KEYS[chosen].split():
        if not key.endswith("?") or draw(st.booleans()):
            name = key.rstrip("?")
            document[name] = draw(_value(chosen, name))
    return document


def javascript(value: Any) -> str:
    """Print a document as JSON.stringify does."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return javascript_number(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{','.join(map(javascript, value))}]"
    items = (f"{javascript(key)}:{javascript(item)}" for key, item in value.items())
    return f"{{{','.join(items)}}}"


def javascript_number(number: float) -> str:
    """Follow ECMAScript's Number::toString, whose names s, k and n these are."""
    if number == 0:
        return "0"
    if number < 0:
        return f"-{javascript_number(-number)}"
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    s = "".join(map(str, digits))
    k = len(s)
    n = k + int(exponent)
    if k <= n <= 21:
        return s + "0" * (n - k)
    if 0 < n <= 21:
        return f"{s[:n]}.{s[n:]}"
    if -6 < n <= 0:
        return f"0.{'0' * -n}{s}"
    sign = "+" if n > 0 else "-"
    mantissa = s if k == 1 else f"{s[0]}.{s[1:]}"
    return f"{mantissa}e{sign}{abs(n - 1)}"
