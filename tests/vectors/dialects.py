"""Runs the two files about live data: subscribe messages per type, and messages to filters."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tardis_machine import exchanges
from tardis_machine.exchanges import Exchange, catalog
from tardis_machine.exchanges.base.dialect import Secrets
from tardis_machine.history.filters import Filter
from tardis_machine.live.plan import plan
from tests.vectors.compute import Outcome

SUBSCRIPTIONS = "subscriptions.json"
REALTIME = "exchanges.json"
_TOKEN = re.compile(r"[0-9a-f]{48}")
_CHANGING = frozenset(("nonce", "time", "ticket", "timestamp", "signature", "sign"))
# Where the reference client is known to be wrong (D22) and ours is not.
_BETTER = frozenset(
    {(name, "book_ticker") for name in ("serum", "mango", "star-atlas")}
    | {(name, "book_ticker") for name in ("bitfinex", "bitfinex-derivatives")}
)


def subscribed(
    exchange: Exchange, data_type: str, symbols: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Tell what is connected, subscribed and polled, in the file's form."""
    assert exchange.live is not None
    secrets = exchange.live.secrets or Secrets(names=())
    environ = {} if secrets.optional else dict.fromkeys(secrets.names, "c2VjcmV0")
    # What a closed exchange was asked is still compared.
    planned = plan(replace(exchange, closed=""), [data_type], symbols, environ)
    return [
        {
            "url": each.url,
            "subscribe": list(exchange.live.subscribe(each.filters, planned.context())),
        }
        for each in planned.connections
    ] + [{"polling": True} for _ in planned.pollers]


def run(path: Path) -> Iterator[Outcome]:
    """Compare every exchange that has what is compared; the others are left out."""
    file: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    check = _subscriptions if path.name == SUBSCRIPTIONS else _realtime
    for name in exchanges.names():
        if name in file and (outcome := check(exchanges.get(name), file[name])) is not None:
            yield outcome


def _subscriptions(exchange: Exchange, cases: Sequence[Mapping[str, Any]]) -> Outcome | None:
    read = exchange.subscriptions
    if read is None:
        return None
    passed, difference = 0, None
    recorded = catalog.channels(exchange.name)
    for case in cases:
        found = read(case["message"])
        if "error" in case:  # the reference client crashes; ours gives what is asked for
            agrees = bool(found) and all(each.channel in recorded for each in found or ())
            expected: object = "filters of recorded channels"
        elif case["handled"]:
            expected = case["filters"]
            agrees = _builtins(found) == expected
        else:
            expected = None
            agrees = found is None
        passed += agrees
        if not agrees and difference is None:
            difference = f"{case['message']}: expected {expected}, got {found}"
    return Outcome(f"subscriptions of {exchange.name}", passed, len(cases), difference)


def _builtins(filters: Sequence[Filter] | None) -> Any:
    return msgspec.json.decode(msgspec.json.encode(filters))


def _realtime(exchange: Exchange, facts: Mapping[str, Any]) -> Outcome | None:
    if exchange.live is None or "unsupported" in facts["realtime"]:
        return None
    passed = total = 0
    difference = None
    for data_type, expected in facts["realtime"].items():
        if (exchange.name, data_type) in _BETTER:
            continue
        total += 1
        made = subscribed(exchange, data_type, facts["sampleSymbols"])
        if same_sources(made, expected):
            passed += 1
        elif difference is None:
            shown = msgspec.json.encode(made).decode()
            difference = f"{data_type}: expected {msgspec.json.encode(expected).decode()}\n"
            difference += f"    got {shown}"
    return Outcome(f"live {exchange.name}", passed, total, difference)


def same_sources(made: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> bool:
    """Compare sources in any order, without what is different every time."""
    left = list(made)
    for one in expected:
        match = next((each for each in left if _same_source(each, one)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _same_source(made: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    if "polling" in expected or "polling" in made:
        return "polling" in expected and "polling" in made
    # A URL may be found out by REST, or be the base of the one that is connected to.
    if not made["url"].startswith(expected.get("url", "")):
        return False
    if "subscribe" not in expected:
        return True
    return [_settled(each) for each in made["subscribe"]] == [
        _settled(each) for each in expected["subscribe"]
    ]


def _settled(message: Any) -> Any:
    """Blank out what is different every time, and what is said twice."""
    if isinstance(message, Mapping):
        return {
            key: None if key in _CHANGING else _settled(value) for key, value in message.items()
        }
    if isinstance(message, list | tuple):
        settled = [_settled(each) for each in message]
        return [each for at, each in enumerate(settled) if each not in settled[:at]]
    if isinstance(message, str) and _TOKEN.fullmatch(message):
        return None
    return message
