"""Streams of messages for a merge to interleave."""

from collections.abc import Sequence
from concurrent.futures import Future

from tardis_machine.engine import Taken

Message = tuple[int, str]
"""A message's local time in microseconds, and its text; a text in brackets is hidden."""


class Stream:
    """A stream of messages, `size` a run; an empty text stands for a line without a message."""

    def __init__(
        self, messages: Sequence[Message], size: int = 2, failure: Exception | None = None
    ) -> None:
        self._messages = list(messages)
        self._size = size
        self._fails = failure
        self._run: list[Message] = []
        self._hidden: Message | None = None
        self.failure: Exception | None = None
        self.ended = False

    @property
    def reached(self) -> str | None:
        if self.ended:
            return None
        return min((local_time(us) for us, _ in self._messages), default="")

    @property
    def needs_block(self) -> bool:
        return not self._messages and not self.ended

    def pending(self) -> Future[object] | None:
        return None

    def read(self) -> None:
        self.ended = True
        self.failure = self._fails

    @property
    def pours(self) -> bool:
        return False

    def run(self, *, is_next: bool) -> None:
        for _ in range(self._size):
            if not self._messages:
                return
            us, text = self._messages.pop(0)
            if text == "raise":
                raise ValueError(us)
            if text.startswith("("):
                self._hidden = us, text
                return
            if text:
                self._run.append((us, text))

    def take(self) -> Taken:
        taken, self._run = _taken(self._run), []
        return taken

    def take_hidden(self) -> Taken | None:
        hidden, self._hidden = self._hidden, None
        return None if hidden is None else _taken([hidden])


def local_time(us: int) -> str:
    return f"2024-03-01T00:00:00.{us:06}Z"


def _taken(messages: Sequence[Message]) -> Taken:
    stamps: list[str] = []
    ends: list[int] = []
    counts: list[int] = []
    data = b""
    for number, (us, text) in enumerate(messages, 1):
        data += text.encode() + b"\n"
        if stamps and stamps[-1] == local_time(us):
            stamps.pop(), ends.pop(), counts.pop()
        stamps.append(local_time(us))
        ends.append(len(data))
        counts.append(number)
    return Taken(data, len(messages), stamps, ends, counts)


def named(times: Sequence[Sequence[int | None]]) -> list[list[Message]]:
    """Return messages whose text is their place; a time of None is a line without a message."""
    return [
        [(us or 0, "" if us is None else f"{stream}.{at}.{us}") for at, us in enumerate(each)]
        for stream, each in enumerate(times)
    ]
