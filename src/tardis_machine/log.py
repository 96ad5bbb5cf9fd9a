"""Structured logs: an event in a few words, with details as key=value or JSON."""

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
# Characters that are escaped: control characters change the terminal, line ends forge log lines,
# direction marks reorder the text, and a lone surrogate cannot be encoded.
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
    """A formatter of lines for people: time, level, event, details."""

    def __init__(self, *, color: bool = False) -> None:
        super().__init__()
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        level = record.levelname.lower().ljust(7)
        if self._color and record.levelname in _COLORS:
            level = f"{_COLORS[record.levelname]}{level}\033[0m"
        details = "".join(
            f" {name}={_detail_text(value)}" for name, value in _details(record).items()
        )
        text = f"{moment}Z {level} {_escaped(record.getMessage())}{details}"
        if record.exc_info:
            for line in self.formatException(record.exc_info).split("\n"):
                text += f"\n  {_escaped(line)}"
        return text


class JsonFormatter(logging.Formatter):
    """A formatter of one JSON object per line, for log collectors."""

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
        return _escaped(json.dumps(entry, default=str, ensure_ascii=False))


def configure(
    log_format: str = "human", *, debug: bool = False, stream: TextIO | None = None
) -> None:
    """Send the logs of this process to `stream` (default: standard error) in the given format."""
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


def print_error(text: str) -> None:
    """Write a text to standard error as it is, after the log lines that were queued before."""
    for handler in _descriptor_handlers():
        if handler.stream is sys.stderr:
            handler.write(f"{text}\n")
            return
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def dropped_lines() -> int:
    """Return how many log lines of this process were dropped, unwritten."""
    return sum(handler.dropped for handler in _descriptor_handlers())


def escape_unwritable() -> None:
    """Make standard output write characters that its encoding lacks as backslash escapes.

    Standard error does so by default. In a locale other than UTF-8, `--help` and symbols in
    Chinese would otherwise raise UnicodeEncodeError.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class LineWriter:
    """A bounded queue of lines, and a thread that writes them to a file descriptor.

    `put` never waits for the reader of the descriptor: a line that does not fit into the queue is
    dropped and counted. The thread starts with the first line and ends after 5 s without one.
    """

    def __init__(
        self, descriptor: int, report: Callable[[int], bytes], max_bytes: int = _MAX_WAITING_BYTES
    ) -> None:
        """Create an empty queue; `max_bytes` is its limit.

        The thread calls `report` with the number of lines dropped since the last report, and writes
        the line that it returns. `report` must not raise: the thread would end.
        """
        self._descriptor = descriptor
        self._report = report
        self._max_bytes = max_bytes
        self.reset()

    def reset(self) -> None:
        """Empty the queue; called in a forked process, which has its parent's lines, no thread."""
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._thread: threading.Thread | None = None
        self.dropped = 0
        self._reported = 0
        self._report_at = 0.0
        self._writable = True

    def put(self, line: bytes) -> None:
        """Queue a line, or count it as dropped if the queue is full."""
        with self._changed:
            if self._size + len(line) > self._max_bytes:
                self.dropped += 1
                return
            self._lines.append(line)
            self._size += len(line)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="log", daemon=True)
                # If the system has no thread left, the next line tries again.
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._thread = thread
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> None:
        """Wait until all lines are written, at most `timeout_s`; return if no thread writes."""
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
        """Return the next line without removing it; None after 5 s without one ends the thread."""
        with self._changed:
            self._report_dropped()
            if not self._changed.wait_for(lambda: self._lines, _IDLE_S):
                self._thread = None
                return None
            return self._lines[0]

    def _report_dropped(self) -> None:
        """Put the report of dropped lines first in the queue.

        With lines in the queue, this happens at most every 10 s. While writes fail, it waits.
        """
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
                except BlockingIOError:  # another process made the shared pipe non-blocking
                    waiting = select.poll()
                    waiting.register(self._descriptor, select.POLLOUT)
                    waiting.poll()
        except OSError:  # the reader has left, or the disk is full
            return False
        return True


class DescriptorHandler(logging.Handler):
    """A log handler that formats in the calling thread and writes in a thread of its own.

    `logging.shutdown` calls `flush` at exit: a reader that has stopped reading delays the exit by
    two seconds at most.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self._encoding = stream.encoding or "utf-8"
        self._writer = LineWriter(stream.fileno(), self._dropped_line)

    @property
    def dropped(self) -> int:
        """The number of lines dropped in this process."""
        return self._writer.dropped

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001 - str() of a detail may raise anything
            text = self.format(
                _new_record(
                    "log record cannot be formatted", logged_by=record.name, error=type(error)
                )
            )
        self.write(f"{text}\n")

    def write(self, text: str) -> None:
        """Queue a text for the writing thread as it is, without time and level."""
        self._writer.put(self._encoded(text))

    def flush(self) -> None:
        self._writer.flush(_FLUSH_S)

    def reset(self) -> None:
        """Empty the queue in a forked process."""
        self._writer.reset()

    def _dropped_line(self, count: int) -> bytes:
        return self._encoded(f"{self.format(_new_record('log lines dropped', lines=count))}\n")

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._encoding, "backslashreplace")


class FallbackHandler(logging.StreamHandler[TextIO]):
    """A handler that prints warnings with details in programs that have not configured logging."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self.setFormatter(HumanFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr  # which notebooks and tests replace
            super().emit(record)


def show_warnings() -> None:
    """Print this package's warnings, for programs that use it as a library without logging.

    Importing `tardis_machine.replays` calls this: a user sees why a replay waits.
    """
    ours = logging.getLogger("tardis_machine")
    if not any(isinstance(handler, FallbackHandler) for handler in ours.handlers):
        ours.addHandler(FallbackHandler())


class Throttle:
    """A rate limit that allows one event per interval and counts the suppressed ones."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval = interval_s
        self._next = 0.0
        self._suppressed = 0

    def allow(self) -> int | None:
        """Return None to suppress an event, else how many were suppressed since the last one."""
        now = time.monotonic()
        if now < self._next:
            self._suppressed += 1
            return None
        self._next = now + self._interval
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


def _new_record(event: str, **details: object) -> logging.LogRecord:
    return logging.getLogger(__name__).makeRecord(
        __name__, logging.WARNING, "", 0, event, (), None, extra=details
    )


def _has_descriptor(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0
    except OSError:  # tests and notebooks write to memory, which never blocks
        return False


def _descriptor_handlers() -> Iterator[DescriptorHandler]:
    handlers = logging.getLogger().handlers
    return (handler for handler in handlers if isinstance(handler, DescriptorHandler))


def _after_fork() -> None:
    for handler in _descriptor_handlers():
        handler.reset()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)


def _details(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _detail_text(value: object) -> str:
    text = str(value)
    if not text or any(character in text for character in ' "=') or _CONTROL.search(text):
        text = json.dumps(text, ensure_ascii=False)
    return _escaped(text)


def _escaped(text: str) -> str:
    """Return text with the characters of `_CONTROL` escaped as in JSON."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
