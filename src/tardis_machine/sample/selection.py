"""Which lines of an exchange's feed belong to a channel and a symbol."""

from collections.abc import Callable, Mapping
from typing import Final

_MESSAGE: Final = 29
"""Where a line's message begins, behind stamp and space."""

Label = Callable[[bytes], tuple[str, str]]


def select(piece: bytes, label: Label, wanted: Mapping[str, tuple[str, ...] | None]) -> bytes:
    """Keep a piece's disconnects and the lines of wanted channels and symbols."""
    kept = []
    for line in piece.split(b"\n")[:-1]:
        if line:
            channel, symbol = label(line[_MESSAGE:])
            if channel not in wanted:
                continue
            symbols = wanted[channel]
            if symbols is not None and symbol not in symbols:
                continue
        kept.append(line)
    return b"\n".join([*kept, b""]) if kept else b""


def _bitmex(message: bytes) -> tuple[str, str]:
    return _text(message, b'"table":"'), _text(message, b'"symbol":"')


def _deribit(message: bytes) -> tuple[str, str]:
    channel, _, rest = _text(message, b'"channel":"').partition(".")
    return channel, rest.rpartition(".")[0]


def _binance(message: bytes) -> tuple[str, str]:
    symbol, _, stream = _text(message, b'"stream":"').partition("@")
    return stream.partition("@")[0], symbol


def _text(message: bytes, prefix: bytes) -> str:
    _, _, rest = message.partition(prefix)
    return rest.partition(b'"')[0].decode()


LABELS: Final[dict[str, Label]] = {
    "bitmex": _bitmex,
    "deribit": _deribit,
    "binance-futures": _binance,
}
"""A message's channel and symbol, per exchange, as filters name them."""
