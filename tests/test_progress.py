"""Progress is one line of a terminal, and nothing anywhere else."""

import io

import pytest

from tardis_machine import progress
from tardis_machine.progress import Progress, duration, text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_has_one_line_that_goes_with_the_work(clock: list[float]) -> None:
    terminal = Terminal()
    line = Progress(terminal)
    line.begin("a", "/replay")
    line.advance("a", 0.1, 10)
    assert terminal.getvalue() == "", "what is done at once needs no line"
    clock[0] += 10
    line.begin("b", "/replay-normalized")
    line.advance("a", 0.25, 1000)
    assert terminal.getvalue().endswith(
        "/replay: 25%, 1,000 messages, 100/s, 30 s left (and 1 more)\r"
    )
    shown = terminal.getvalue()
    line.advance("a", 0.26, 1001)
    assert terminal.getvalue() == shown, "not more often than one can read"
    line.end("a")
    line.end("b")
    assert terminal.getvalue().endswith("\r\033[K")
    assert "\n" not in terminal.getvalue()


def test_a_file_has_nothing(clock: list[float]) -> None:
    stream = io.StringIO()
    line = Progress(stream)
    line.begin("a", "/replay")
    clock[0] += 10
    line.advance("a", 0.5, 1000)
    line.end("a")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (7325, "2 h 02 min")]
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_nothing_is_promised_before_anything_is_done() -> None:
    assert text("x", 0.0, 0, 5.0) == "x: 0%, 0 messages, 0/s"
