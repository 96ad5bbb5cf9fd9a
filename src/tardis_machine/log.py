"""Structured logs: an event in a few words, its details as key=value or JSON."""

import io
import json
import logging
import re
import sys
import time
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
        return f"\033[K{text}" if self._color else text  # a progress line may stand there


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
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        JsonFormatter() if log_format == "json" else HumanFormatter(color=target.isatty())
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.INFO if debug else logging.WARNING)


def escape_unwritable() -> None:
    """Have standard output write what its encoding lacks as escapes, as standard error does.

    Where the locale is not UTF-8, help would end in a traceback, and so would a symbol in Chinese.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


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
