"""Logs: an event and its details, readable by people or machines."""

import io
import json
import logging
import sys

import pytest

from tardis_machine.log import HumanFormatter, JsonFormatter, Throttle, configure, show_warnings


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
