"""Logs: an event and its details, readable by people or machines."""

import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Iterator

import pytest

from tardis_machine.log import (
    HumanFormatter,
    JsonFormatter,
    Throttle,
    configure,
    dropped_lines,
    show_warnings,
)


def record(message: str, **details: object) -> logging.LogRecord:
    return logging.getLogger("tardis_machine.test").makeRecord(
        "tardis_machine.test", logging.WARNING, "", 0, message, (), None, extra=details
    )


def test_human_lines_quote_what_needs_it() -> None:
    text = HumanFormatter().format(record("bus connected", bus="kafka", why="a b", empty=""))
    assert text.endswith('Z warning bus connected bus=kafka why="a b" empty=""')


def test_json_lines_hold_the_details() -> None:
    entry = json.loads(JsonFormatter().format(record("retrying", bus="nats", tries=3)))
    assert entry["event"] == "retrying"
    assert entry["level"] == "warning"
    assert entry["logger"] == "tardis_machine.test"
    assert (entry["bus"], entry["tries"]) == ("nats", 3)
    assert entry["time"].endswith("Z")


def test_exceptions_are_told() -> None:
    error = ValueError("why")
    entry = record("failed")
    entry.exc_info = (type(error), error, None)
    assert "ValueError: why" in HumanFormatter().format(entry)
    assert "ValueError: why" in json.loads(JsonFormatter().format(entry))["exception"]


NASTY = "a\r\n12:00:00Z info forged \x1b[2J\x7f\x9b31m\u202eevil\u2028\udcff\x00 ü"


@pytest.mark.parametrize("formatter", [HumanFormatter(), JsonFormatter()])
def test_no_control_character_passes(formatter: logging.Formatter) -> None:
    error = ValueError(NASTY)
    entry = record(NASTY, value=NASTY)
    entry.exc_info = (type(error), error, None)
    text = formatter.format(entry)
    assert set(NASTY) & set(text) == {c for c in NASTY if c.isprintable()} | (
        {"\n"} if isinstance(formatter, HumanFormatter) else set()
    )
    text.encode()
    # Only this entry begins a line; an exception's lines are indented.
    assert [line for line in text.split("\n")[1:] if not line.startswith("  ")] == []
    assert "ü" in text


def test_json_says_what_it_was() -> None:
    entry = json.loads(JsonFormatter().format(record("odd", value=NASTY)))
    assert entry["value"] == NASTY


@pytest.fixture
def root_logger() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_configure_sends_everything_to_one_place() -> None:
    stream = io.StringIO()
    configure("json", stream=stream)
    logging.getLogger("tardis_machine.any").info("first", extra={"n": 1})
    logging.getLogger("tardis_machine.any").debug("unseen")
    configure("human", debug=True, stream=stream)
    logging.getLogger("tardis_machine.any").debug("seen")
    lines = stream.getvalue().splitlines()
    assert json.loads(lines[0])["n"] == 1
    assert lines[1].endswith("debug   seen")
    assert len(lines) == 2


def test_a_throttle_counts_what_it_holds_back() -> None:
    throttle = Throttle(3600)
    assert throttle.allow() == 0
    assert throttle.allow() is None
    assert throttle.allow() is None
    always = Throttle(0)
    assert [always.allow(), always.allow()] == [0, 0]


def test_a_program_without_logging_sees_warnings_with_their_details(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = logging.getLogger("tardis_machine")
    monkeypatch.setattr(ours, "handlers", [])
    show_warnings()
    show_warnings()
    told = logging.getLogger("tardis_machine.history")
    told.warning("shown to whoever set it up")
    assert "shown" not in capsys.readouterr().err  # pytest has set it up
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    told.warning("slice fetch failed", extra={"attempt": 1, "error": "no network"})
    told.info("a detail")
    (line,) = capsys.readouterr().err.splitlines()
    elsewhere = io.StringIO()
    monkeypatch.setattr(sys, "stderr", elsewhere)
    told.warning("shown in a notebook")
    assert "shown in a notebook" in elsewhere.getvalue()
    assert line.endswith('warning slice fetch failed attempt=1 error="no network"')


class Pipe:
    """A pipe as standard error that is read only when the test says so."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.reader = os.fdopen(reading, "rb", buffering=0)
        self.stream = os.fdopen(writing, "w", buffering=1)

    def fill(self) -> int:
        """Leave no room in the pipe; returns how many bytes that took."""
        descriptor, filled = self.stream.fileno(), 0
        os.set_blocking(descriptor, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                filled += os.write(descriptor, b"." * 4096)
        os.set_blocking(descriptor, True)
        return filled

    def read_lines(self, count: int) -> list[bytes]:
        data = b""
        while data.count(b"\n") < count:
            data += self.reader.read(1 << 16)
        return data.lstrip(b".").splitlines()

    def close(self) -> None:
        self.reader.close()
        self.stream.close()


@pytest.fixture
def pipe(root_logger: object) -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def test_stalled_reader_does_not_hold_up_logging_and_dropped_lines_are_reported(
    pipe: Pipe,
) -> None:
    pipe.fill()
    configure("json", stream=pipe.stream)
    ours = logging.getLogger("tardis_machine.test")
    for number in range(4000):
        ours.warning("refused", extra={"n": number, "why": "x" * 1000})
    lost = dropped_lines()
    assert 0 < lost < 4000
    entries = [json.loads(line) for line in pipe.read_lines(4000 - lost + 1)]
    assert [e["n"] for e in entries if "n" in e] == list(range(4000 - lost))
    assert sum(e["lines"] for e in entries if e["event"] == "log lines dropped") == lost
    ours.warning("read again")
    assert json.loads(pipe.read_lines(1)[0])["event"] == "read again"


def test_lines_are_written_in_order_before_shutdown_returns(pipe: Pipe) -> None:
    configure(stream=pipe.stream)
    for number in range(100):
        logging.getLogger("tardis_machine.test").info("line", extra={"n": number})
    logging.getLogger().handlers[0].flush()
    assert [line.split(b"n=")[1] for line in pipe.read_lines(100)] == [
        str(number).encode() for number in range(100)
    ]


def test_flush_ends_although_reader_is_stalled(pipe: Pipe) -> None:
    pipe.fill()
    configure(stream=pipe.stream)
    logging.getLogger("tardis_machine.test").info("unread")
    logging.getLogger().handlers[0].flush()


def test_reader_that_is_gone_costs_lines_only(pipe: Pipe) -> None:
    configure(stream=pipe.stream)
    pipe.reader.close()
    for number in range(10):
        logging.getLogger("tardis_machine.test").info("line", extra={"n": number})
    logging.getLogger().handlers[0].flush()
    assert dropped_lines() == 10


def test_descriptor_that_does_not_block_is_waited_for(pipe: Pipe) -> None:
    pipe.fill()
    os.set_blocking(pipe.stream.fileno(), False)
    configure(stream=pipe.stream)
    logging.getLogger("tardis_machine.test").info("x" * 100_000)
    assert pipe.read_lines(1)[0].endswith(b"x" * 100_000)
    assert dropped_lines() == 0


def test_record_that_cannot_be_formatted_is_named(pipe: Pipe) -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError

    configure(stream=pipe.stream)
    logging.getLogger("tardis_machine.test").warning("odd", extra={"value": Odd()})
    (line,) = pipe.read_lines(1)
    assert b"log record cannot be formatted logged_by=tardis_machine.test" in line


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_writes_its_own_lines_once(pipe: Pipe) -> None:
    configure("json", stream=pipe.stream)
    ours = logging.getLogger("tardis_machine.test")
    filled = pipe.fill()
    ours.info("parent's, waiting")
    child = os.fork()
    if child == 0:
        ours.info("child's")
        assert pipe.reader.read(filled)
        logging.shutdown()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    events = sorted(json.loads(line)["event"] for line in pipe.read_lines(2))
    assert events == ["child's", "parent's, waiting"]
