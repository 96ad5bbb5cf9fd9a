"""Decoding and encoding of normalized messages, byte for byte as the Node server prints them."""

import re
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Final

import msgspec

from tardis_machine.messages.numbers import of_float
from tardis_machine.messages.types import Message, MessageError, read_time

_DECODER: Final[msgspec.json.Decoder[Message]] = msgspec.json.Decoder(Message, dec_hook=read_time)
_ENCODER: Final = msgspec.json.Encoder(enc_hook=str)

# msgspec and JavaScript print some numbers differently: 61130.0, -0.0, 1e21, 1.5e16, 1e-6. The
# patterns below find these in a whole batch and never match inside a string. In a string each quote
# follows a backslash, so a letter, a quote and a colon are always the end of a key. The quote that
# ends a string is followed by a comma, a bracket or the line's end, so a quote and a letter always
# begin a key. Each pattern begins with fixed characters and looks back last: the search is many
# times faster.
_POINT_ZERO: Final = re.compile(rb'\.0(?=,"[a-zA-Z]|\}(?:,\{\})*(?:,\{"[a-zA-Z]|\],"[a-zA-Z]))')
_NEGATIVE_ZERO: Final = re.compile(rb':-0\.0(?<=[a-zA-Z]":-0\.0)(?=[,}])')
_NULL: Final = re.compile(rb':null(?<=[a-zA-Z]":null)(?<!"vwap":null)(?=[,}])')
_EXPONENT: Final = re.compile(rb"e-?[0-9]+(?=[,}])")
_NUMBER: Final = re.compile(rb'[a-zA-Z]":(-?[0-9]+(?:\.[0-9]+)?)')


def decode_lines(ndjson: bytes) -> list[Message]:
    """Decode normalized NDJSON; raise MessageError with the number of the first invalid line."""
    try:
        return _DECODER.decode_lines(ndjson)
    except (msgspec.MsgspecError, ValueError):
        return [
            decode_line(line, number) for number, line in enumerate(ndjson.split(b"\n")) if line
        ]


def decode_line(line: bytes, number: int | None = None) -> Message:
    """Decode one message; `number` is the line number (from 0) for the error."""
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, ValueError) as error:
        reason, field = explain(error)
        raise MessageError(reason, field=field, line=number) from error


def explain(error: Exception) -> tuple[str, str | None]:
    """Split the text of msgspec's error into the reason and the JSON path, None without one."""
    reason, _, path = str(error).partition(" - at `$.")
    return reason, path.rstrip("`") or None


def encode_lines(messages: Iterable[Message]) -> bytes:
    """Return normalized NDJSON, byte for byte as the server sends it.

    Raise MessageError for a number that is not finite, since JSON has none.
    """
    listed = messages if isinstance(messages, list) else list(messages)
    data = _ENCODER.encode_lines(listed)
    if b":null" in data and _NULL.search(data):
        raise next(error for error in map(_error_of, listed) if error is not None)
    return _as_javascript(data)


def encode_line(message: Message) -> bytes:
    """Return one message as JSON, without the line's end."""
    return encode_lines([message])[:-1]


def _as_javascript(data: bytes) -> bytes:
    """Return NDJSON of msgspec with its numbers printed as JavaScript prints them."""
    if b":-0.0" in data:
        data = _NEGATIVE_ZERO.sub(b":0", data)
    if _EXPONENT.search(data):
        data = _with_exponents(data)
    return _POINT_ZERO.sub(b"", data)


def _with_exponents(data: bytes) -> bytes:
    """Return NDJSON with each number that has an exponent printed as JavaScript prints it."""
    parts: list[bytes] = []
    done = 0
    for exponent in _EXPONENT.finditer(data):
        colon = data.rfind(b":", done, exponent.start())
        if _NUMBER.fullmatch(data, colon - 2, exponent.start()):
            number = float(data[colon + 1 : exponent.end()])
            parts += (data[done : colon + 1], of_float(number).encode())
            done = exponent.end()
    parts.append(data[done:])
    return b"".join(parts)


def _error_of(message: Message) -> MessageError | None:
    """Return an error that names the first field whose number is not finite; None without one."""
    for field, number in _numbers(message):
        if not isfinite(number):
            return MessageError(f"{field} is {number}, which JSON cannot say", field=field)
    return None


def _numbers(struct: msgspec.Struct) -> Iterator[tuple[str, float]]:
    """Yield the path and value of each float in a struct and in its lists: `bids[0].price`."""
    for name, key in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        value = getattr(struct, name)
        if isinstance(value, float):
            yield key, value
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, msgspec.Struct):
                    for inner, number in _numbers(item):
                        yield f"{key}[{index}].{inner}", number
