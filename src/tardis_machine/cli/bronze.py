"""`tardis-machine bronze`: a pipe from normalized NDJSON to Bronze envelopes, and back."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader, BufferedWriter
from typing import Any, Final

import msgspec

from tardis_machine import messages
from tardis_machine.bronze import (
    Context,
    Decoded,
    DecodeError,
    EncodeError,
    Encoder,
    Origin,
    Rejected,
    decode,
)
from tardis_machine.bronze.batches import batches
from tardis_machine.bronze.context import REQUEST_META
from tardis_machine.bronze.frames import frame, read_frames
from tardis_machine.cli import BROKEN_PIPE
from tardis_machine.messages import Time

_CHUNK: Final = 256 * 1024
_REPORTED: Final = 20

_DESCRIPTION: Final = """\
Converts normalized messages to Bronze envelopes and back, from standard input to standard output.
An envelope is a lakehouse.bronze.v1.NormalizedEvent; in the stream each has its length before it,
as a varint (what protobuf calls length-delimited). Nothing is lost: decoding gives the bytes that
were encoded, but for the order of keys in some exchanges' book tickers."""
_EPILOG: Final = """\
Examples:
  # ten messages of a running server, as envelopes, and back again
  curl -sG localhost:8000/replay-normalized --data-urlencode 'options={"exchange":"bitmex",
    "symbols":["XBTUSD"],"from":"2024-03-01","to":"2024-03-01T00:01","dataTypes":["trade"]}' |
    head | tardis-machine bronze encode --origin replay > trades.bronze
  tardis-machine bronze decode < trades.bronze

  # event ids and positions
  tardis-machine bronze decode --envelope < trades.bronze | jq -c '[.position,.eventId]'

An invalid line or envelope is reported with its position; the others are converted.
Exit code: 0 if nothing was reported, else 1; 2 for an invalid flag."""

_ENCODE_EPILOG: Final = """\
Example:
  tardis-machine bronze encode --origin replay --meta desk=night < trades.ndjson > trades.bronze"""
_DECODE_EPILOG: Final = """\
Example:
  tardis-machine bronze decode --envelope < trades.bronze | head -1 | jq"""


def main(arguments: Sequence[str]) -> int:
    """Run `encode` or `decode`; return the exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace, BufferedReader, BufferedWriter], int] = options.run
    try:
        with open(0, "rb", closefd=False) as source, open(1, "wb", closefd=False) as sink:
            code = run(options, source, sink)
    except BrokenPipeError:
        return BROKEN_PIPE
    except OSError as error:  # a full disk, or a closed stream
        print(f"tardis-machine bronze: {error.strerror}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tardis-machine bronze",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="encode|decode")
    encode_command = commands.add_parser(
        "encode",
        help="normalized NDJSON to length-delimited envelopes",
        description="Reads normalized NDJSON, writes length-delimited NormalizedEvents.",
        epilog=_ENCODE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    encode_command.set_defaults(run=_encode)
    encode_command.add_argument("--source", default="tardis-machine", help="default: %(default)s")
    encode_command.add_argument("--producer-id", default="", help="the instance that publishes")
    encode_command.add_argument(
        "--origin",
        default="unspecified",
        choices=[origin.name.lower() for origin in Origin],
        help="where the messages came from; default: %(default)s",
    )
    encode_command.add_argument(
        "--ingest-time",
        type=_time,
        metavar="TIME",
        help="such as 2024-03-01T00:00:00.123456Z; default: now, for each batch that is read",
    )
    for name in REQUEST_META:
        flag = f"--{name.replace('_', '-')}"
        encode_command.add_argument(flag, default="", help=f"kept in the envelope's meta as {name}")
    encode_command.add_argument(
        "--meta",
        type=_entry,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an entry of the envelope's meta; may be given several times",
    )
    decode_command = commands.add_parser(
        "decode",
        help="length-delimited envelopes to NDJSON",
        description="Reads length-delimited NormalizedEvents, writes normalized NDJSON.",
        epilog=_DECODE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    decode_command.set_defaults(run=_decode)
    decode_command.add_argument(
        "--envelope",
        action="store_true",
        help="write all of the envelope, with the message in it under `message`",
    )
    return parser


def _time(text: str) -> int:
    try:
        return Time.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _entry(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not (key and separator):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


class _Reports:
    """The errors of a run, of which the first 20 are printed."""

    def __init__(self, command: str) -> None:
        self._command = command
        self.count = 0

    def add(self, where: str, error: Exception) -> None:
        self.count += 1
        if self.count <= _REPORTED:
            self._print(f"{where}: {error}")

    def exit_code(self) -> int:
        """Print how many errors were left out; return 1 if there was any, else 0."""
        if self.count > _REPORTED:
            self._print(f"and {self.count - _REPORTED} more, {self.count} in all")
        return 1 if self.count else 0

    def _print(self, text: str) -> None:
        print(f"tardis-machine bronze {self._command}: {text}", file=sys.stderr)


def _chunks(source: BufferedReader, sink: BufferedWriter) -> Iterator[bytes]:
    """Yield input as it arrives; flush the output before waiting for more input."""
    while chunk := source.read1(_CHUNK):
        yield chunk
        sink.flush()


def _encode(options: argparse.Namespace, source: BufferedReader, sink: BufferedWriter) -> int:
    reports = _Reports("encode")
    context = Context(
        source=options.source,
        producer_id=options.producer_id,
        origin=Origin[options.origin.upper()],
        ingest_us=options.ingest_time,
        meta=dict(options.meta),
        **{name: getattr(options, name) for name in REQUEST_META},
    )
    encoder = Encoder(context)
    position = lines = 0
    try:
        for batch in batches(_chunks(source, sink)):
            if options.ingest_time is None:
                encoder.context = msgspec.structs.replace(context, ingest_us=time.time_ns() // 1000)
            results = encoder.encode_lines(batch, position)
            envelopes = []
            for result in results.in_order():
                if isinstance(result, Rejected):
                    number = lines + _line_number(batch, result.position - position)
                    reports.add(f"line {number}", result.error)
                else:
                    envelopes.append(frame(result.value))
            sink.write(b"".join(envelopes))
            position += results.messages
            lines += batch.count(b"\n")
    except EncodeError as error:
        reports.add(f"after line {lines}", error)
    return reports.exit_code()


def _line_number(batch: bytes, message: int) -> int:
    """Return the line (from 1) of a message (from 0): empty lines are lines, but no messages."""
    numbers = (n for n, line in enumerate(batch.split(b"\n"), 1) if line and not line.isspace())
    return next(number for index, number in enumerate(numbers) if index == message)


def _decode(options: argparse.Namespace, source: BufferedReader, sink: BufferedWriter) -> int:
    reports = _Reports("decode")
    write_one = _envelope_line if options.envelope else _message_line
    record = 0
    frames = read_frames(_chunks(source, sink))
    try:
        for record, (value, offset) in enumerate(frames, 1):
            try:
                sink.write(write_one(decode(value)))
            except DecodeError as error:
                reports.add(f"record {record} at byte {offset}", error)
    except DecodeError as error:
        reports.add(f"after record {record}", error)
    return reports.exit_code()


def _message_line(decoded: Decoded) -> bytes:
    return messages.encode_lines([decoded.message])


def _envelope_line(decoded: Decoded) -> bytes:
    """Return an envelope as a line of JSON, without the fields that are not known."""
    message, envelope = decoded
    context = envelope.context
    named = {name: getattr(context, name) for name in REQUEST_META}
    fields: dict[str, Any] = {
        "eventId": envelope.event_id,
        "position": envelope.position,
        "payloadCase": envelope.payload_case,
        "source": context.source,
        "producerId": context.producer_id,
        "origin": context.origin.name.lower(),
        "exchange": message.exchange,
        "symbol": getattr(message, "symbol", ""),
        "localTimestamp": str(message.local_timestamp),
        "ingestTimestamp": None if context.ingest_us is None else str(Time(context.ingest_us)),
        "meta": {name: value for name, value in named.items() if value} | context.meta,
        "message": msgspec.Raw(messages.encode_line(message)),
    }
    present = {key: value for key, value in fields.items() if value is not None}
    return msgspec.json.encode(present) + b"\n"
