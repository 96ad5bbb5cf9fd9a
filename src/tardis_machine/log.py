"""Structured logs: an event in a few words, its details as key=value or JSON."""

import contextlib
import io
import json
import logging
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, TextIO

_STANDARD: Final = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}
# Terminals obey control characters, lines of a log are forged with line ends, and text that runs
# the other way hides what it says. A lone surrogate cannot even be written.
_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_MAX_WAITING_BYTES: Final = 1 << 20
_FLUSH_S: Final = 2.0
_IDLE_S: Final = 5.0
_REPORT_S: Final = 10.0
_COLORS: Final = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}
_QUIET: Final = (
    "aiohttp.access",
    "aiohttp.server",
    "asyncio",
    "boto3",
    "botocore",
    "matplotlib",
    "py4j",
    "pyspark",
    "urllib3",
)


class HumanFormatter(logging.Formatter):
    """One line a person can scan: time, level, event, details."""

    def __init__(self, *, color: bool = False) -> None:
        super().__init__()
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        level = record.levelname.lower().ljust(7)
        if self._color and record.levelname in _COLORS:
            level = f"{_COLORS[record.levelname]}{level}\033[0m"
        details = "".join(f" {name}={_plain(value)}" for name, value in _details(record).items())
        text = f"{moment}Z {level} {_harmless(record.getMessage())}{details}"
        if record.exc_info:
            for line in self.formatException(record.exc_info).split("\n"):
                text += f"\n  {_harmless(line)}"
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object per line, for machines that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_details(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return _harmless(json.dumps(entry, default=str, ensure_ascii=False))


def configure(
    log_format: str = "human", *, debug: bool = False, stream: TextIO | None = None
) -> None:
    """Send the logs of this process to standard error, in the given format."""
    target = sys.stderr if stream is None else stream
    handler: logging.Handler
    if _has_descriptor(target):
        handler = DescriptorHandler(target)
    else:
        handler = logging.StreamHandler(target)
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else HumanFormatter(color=target.isatty())
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.INFO if debug else logging.WARNING)


def tell(text: str) -> None:
    """Write a text to standard error as it is, after the log lines that came before it."""
    for handler in _queued():
        if handler.stream is sys.stderr:
            handler.write(f"{text}\n")
            return
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def dropped() -> int:
    """Return how many log lines of this process could not be written."""
    return sum(handler.dropped for handler in _queued())


def escape_unwritable() -> None:
    """Have standard output write what its encoding lacks as escapes, as standard error does.

    Where the locale is not UTF-8, help would end in a traceback, and so would a symbol in Chinese.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class LineWriter:
    """A thread that writes lines to a file descriptor, behind a queue of bounded size.

    `put` never waits for the descriptor's reader: a line for which there is no room is dropped and
    counted. The thread starts with the first line and ends when there was none for a while.
    """

    def __init__(
        self, descriptor: int, report: Callable[[int], bytes], max_bytes: int = _MAX_WAITING_BYTES
    ) -> None:
        """`report` makes the line that says how many were dropped; the thread calls it."""
        self._descriptor = descriptor
        self._report = report
        self._max_bytes = max_bytes
        self.start_anew()

    def start_anew(self) -> None:
        """Forget everything: in a forked process the thread is gone, the lines are its parent's."""
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._thread: threading.Thread | None = None
        self.dropped = 0
        self._reported = 0
        self._report_at = 0.0
        self._writable = True

    def put(self, line: bytes) -> None:
        """Queue a line, or count it as dropped."""
        with self._changed:
            if self._size + len(line) > self._max_bytes:
                self.dropped += 1
                return
            self._lines.append(line)
            self._size += len(line)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="log", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread to be had: the next line tries
                    thread.start()
                    self._thread = thread
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> None:
        """Wait until all lines are written, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines or self._thread is None, timeout_s)

    def _run(self) -> None:
        while (line := self._next()) is not None:
            self._writable = self._write(line)
            with self._changed:
                self._lines.popleft()
                self._size -= len(line)
                self.dropped += not self._writable
                self._changed.notify_all()

    def _next(self) -> bytes | None:
        """Wait for a line; it stays in the queue until it is written. None ends the thread."""
        with self._changed:
            self._report_dropped()
            if not self._changed.wait_for(lambda: self._lines, _IDLE_S):
                self._thread = None
                return None
            return self._lines[0]

    def _report_dropped(self) -> None:
        """Queue the line about dropped ones once the others are written, or it is high time."""
        if self.dropped == self._reported or not self._writable:
            return
        now = time.monotonic()
        if self._lines and now < self._report_at:
            return
        line = self._report(self.dropped - self._reported)
        self._reported = self.dropped
        self._report_at = now + _REPORT_S
        self._lines.appendleft(line)
        self._size += len(line)

    def _write(self, line: bytes) -> bool:
        try:
            while line:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except BlockingIOError:  # another process has the same pipe, and made it so
                    waiting = select.poll()
                    waiting.register(self._descriptor, select.POLLOUT)
                    waiting.poll()
        except OSError:  # its reader is gone, or its disk is full
            return False
        return True


class DescriptorHandler(logging.Handler):
    """Formats records where they are logged, and has a thread write them to a stream's descriptor.

    `logging.shutdown`, which runs at exit, calls `flush`: a reader that stands still holds the exit
    up for two seconds at most.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self._encoding = stream.encoding or "utf-8"
        self._writer = LineWriter(stream.fileno(), self._dropped_line)

    @property
    def dropped(self) -> int:
        """How many lines were dropped in this process."""
        return self._writer.dropped

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001 - the text of a detail is any object's own code
            text = self.format(
                _made("log record cannot be formatted", logged_by=record.name, error=type(error))
            )
        self.write(f"{text}\n")

    def write(self, text: str) -> None:
        """Queue a text to be written as it is."""
        self._writer.put(self._encoded(text))

    def flush(self) -> None:
        self._writer.flush(_FLUSH_S)

    def start_anew(self) -> None:
        """Begin again in a process that was forked."""
        self._writer.start_anew()

    def _dropped_line(self, count: int) -> bytes:
        return self._encoded(f"{self.format(_made('log lines dropped', lines=count))}\n")

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._encoding, "backslashreplace")


class LastResort(logging.StreamHandler[TextIO]):
    """Shows warnings with their details in programs that have not set up logging themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self.setFormatter(HumanFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr  # which notebooks and tests replace
            super().emit(record)


def show_warnings() -> None:
    """Make sure that whoever uses this package as a library sees why it waits."""
    ours = logging.getLogger("tardis_machine")
    if not any(isinstance(handler, LastResort) for handler in ours.handlers):
        ours.addHandler(LastResort())


class Throttle:
    """Lets one event per interval through and counts the rest: rates, not floods."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval = interval_s
        self._next = 0.0
        self._held_back = 0

    def allow(self) -> int | None:
        """Return how many were held back since the last that passed, or None: hold this one."""
        now = time.monotonic()
        if now < self._next:
            self._held_back += 1
            return None
        self._next = now + self._interval
        held_back, self._held_back = self._held_back, 0
        return held_back


def _made(event: str, **details: object) -> logging.LogRecord:
    return logging.getLogger(__name__).makeRecord(
        __name__, logging.WARNING, "", 0, event, (), None, extra=details
    )


def _has_descriptor(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0
    except OSError:  # of a test or a notebook: it is memory, which nothing holds up
        return False


def _queued() -> Iterator[DescriptorHandler]:
    return (each for each in logging.getLogger().handlers if isinstance(each, DescriptorHandler))


def _after_fork() -> None:
    for handler in _queued():
        handler.start_anew()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)


def _details(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _plain(value: object) -> str:
    text = str(value)
    if not text or any(character in text for character in ' "=') or _CONTROL.search(text):
        text = json.dumps(text, ensure_ascii=False)
    return _harmless(text)


def _harmless(text: str) -> str:
    """Write control characters as JSON does."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
