"""`tardis-machine exchanges`: the data types of each exchange and the channels they come from."""

import argparse
import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tardis_machine import exchanges
from tardis_machine.errors import TardisMachineError
from tardis_machine.exchanges import Exchange, catalog
from tardis_machine.messages.times import iso_ms

_DESCRIPTION: Final = """\
Lists the exchanges of Tardis.dev: the normalized types of each, the channels each type is made
from and until when, whether it can be streamed live and replayed in its own protocol. Every
exchange can be replayed raw. One that is "history only" has closed: it can be streamed live only
from an address that WSS_URL_{EXCHANGE} names."""
_EPILOG: Final = """\
Examples:
  tardis-machine exchanges
  tardis-machine exchanges okex-swap
  tardis-machine exchanges --json | jq 'keys'"""
_PAGE: Final = """\
# Exchanges

What can be replayed, normalized and streamed, generated from the registry (`make docs`). Every
channel can be replayed raw: `tardis-machine exchanges NAME` lists them. An exchange that has closed
is *history only*: a live request is refused, unless
[`WSS_URL_{EXCHANGE}`](serving.md#live) names an address to stream from.

| exchange | normalized types | live | native replay |
|---|---|---|---|
"""
_ERAS: Final = """
## Types whose channels changed

An exchange that changed its messages has other channels before that date than after it. A replay
across the date reads both.

| exchange | type | until (UTC) | channels |
|---|---|---|---|
"""


class UnknownNameError(TardisMachineError):
    """A name that is not an exchange of Tardis.dev."""

    def __init__(self, name: str) -> None:
        self.name = name
        near = difflib.get_close_matches(name, catalog.names(), n=1)
        hint = f"did you mean {near[0]}?" if near else "see tardis-machine exchanges"
        super().__init__(f"unknown exchange {name!r}; {hint}")


def page() -> str:
    """Return the page that documents every exchange."""
    rows = [
        f"| {exchange.name} | {', '.join(f'`{t}`' for t in exchange.data_types())} "
        f"| {_live(exchange)} | {_yes_or_no(exchange.subscriptions)} |"
        for exchange in _exchanges()
    ]
    changes = [
        f"| {exchange.name} | `{data_type}` | {until or 'now'} | {', '.join(channels)} |"
        for exchange in _exchanges()
        for data_type, eras in exchange.types.items()
        if len(eras) > 1
        for until, channels in _eras(exchange, data_type)
    ]
    return _PAGE + "\n".join(rows) + "\n" + _ERAS + "\n".join(changes) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Print the list of exchanges, or the details of one."""
    parser = argparse.ArgumentParser(
        prog="tardis-machine exchanges",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", help="print the details of this exchange")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--markdown", action="store_true", help="the page docs/exchanges.md")
    options = parser.parse_args(arguments)
    if options.markdown:
        print(page(), end="")
        return 0
    if options.name is not None and options.name not in catalog.names():
        raise UnknownNameError(options.name)
    chosen = catalog.names() if options.name is None else (options.name,)
    if options.json:
        print(json.dumps({name: _facts(name) for name in chosen}, indent=2))
    elif options.name is None:
        for name in chosen:
            print(f"{name:26} {_line(name)}")
    else:
        print(_details(options.name))
    return 0


def _exchanges() -> Iterator[Exchange]:
    return (exchanges.get(name) for name in sorted(exchanges.names()))


def _yes_or_no(value: object) -> str:
    return "yes" if value is not None else "no"


def _live(exchange: Exchange) -> str:
    return "history only" if exchange.closed else _yes_or_no(exchange.live)


def _eras(exchange: Exchange, data_type: str) -> Iterator[tuple[str | None, tuple[str, ...]]]:
    """Yield the end (None: now) and the channels of each era of a data type, oldest first."""
    for era in exchange.types[data_type]:
        until = None if era.until is None else iso_ms(era.until // 1000)
        yield until, tuple(channel.name for channel in era.channels)


def _facts(name: str) -> dict[str, Any]:
    """Return what --json prints; an exchange that is not normalized has only channels."""
    channels = list(catalog.channels(name))
    if name not in exchanges.names():
        return {
            "channels": channels,
            "types": {},
            "live": False,
            "historyOnly": False,
            "nativeReplay": False,
        }
    exchange = exchanges.get(name)
    types = {
        data_type: [
            {"until": until, "channels": list(names)} for until, names in _eras(exchange, data_type)
        ]
        for data_type in exchange.data_types()
    }
    return {
        "channels": channels,
        "types": types,
        "live": exchange.live is not None and not exchange.closed,
        "historyOnly": bool(exchange.closed),
        "nativeReplay": exchange.subscriptions is not None,
    }


def _line(name: str) -> str:
    facts = _facts(name)
    if not facts["types"]:
        return "raw only"
    parts = {"live": "live", "historyOnly": "history only", "nativeReplay": "native"}
    ways = [way for fact, way in parts.items() if facts[fact]]
    return " ".join(facts["types"]) + (f"  ({', '.join(ways)})" if ways else "")


def _details(name: str) -> str:
    facts = _facts(name)
    lines = [name, f"  live: {'yes' if facts['live'] else 'no'}"]
    if facts["historyOnly"]:
        lines[-1] += f", history only: {exchanges.get(name).closed}"
    lines.append(f"  native replay: {'yes' if facts['nativeReplay'] else 'no'}")
    for data_type, eras in facts["types"].items():
        lines.append(f"  {data_type}")
        for era in eras:
            until = f"until {era['until']}: " if era["until"] else "now: " if len(eras) > 1 else ""
            lines.append(f"    {until}{', '.join(era['channels'])}")
    lines.append(f"  channels, raw: {', '.join(facts['channels'])}")
    return "\n".join(lines)
