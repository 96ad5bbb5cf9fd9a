"""One readable line per event."""

import io
import sys

import pytest

from tardis_machine.bronze import Encoder
from tardis_machine.publish.buses.console import ConsoleConfig, ConsoleEventBus
from tests.support.events import CONTEXT, events, lines, records, routed


@pytest.mark.parametrize("output", ["stdout", "stderr"])
def test_each_event_is_a_line_with_its_message(output: str, capsys: pytest.CaptureFixture[str]):
    bus = ConsoleEventBus(ConsoleConfig(output=output))
    [first, *_] = events(4)

    result = bus.send(records(bus, 4), 1)

    assert (result.delivered, result.failures) == (4, [])
    printed = getattr(capsys.readouterr(), output[3:]).splitlines()
    message = lines(1).decode().replace('": ', '":').replace(', "', ',"').rstrip()
    assert len(printed) == 4
    head, _, text = printed[0].partition(" {")
    assert head == f"trade bitmex|S0|trade {first.event_id}"
    assert sorted(text.rstrip("}").split(",")) == sorted(message.strip("{}").split(","))


def test_a_closed_stream_is_trouble_that_passes(monkeypatch: pytest.MonkeyPatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    bus = ConsoleEventBus(ConsoleConfig(output="stdout"))

    result = bus.send(records(bus, 2), 1)

    assert [failure.error.retriable for failure in result.failures] == [True, True]


def test_what_a_terminal_cannot_show_holds_nothing_up(monkeypatch: pytest.MonkeyPatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    bus = ConsoleEventBus(ConsoleConfig(output="stdout"))
    line = lines(1).replace(b"S0", "币安".encode())
    made = Encoder(CONTEXT).encode_lines(line).events()

    result = bus.send(routed(bus, made), 1)

    assert result.delivered == 1
    assert b"bitmex|\\u5e01\\u5b89|trade" in shown.getvalue()
