"""How a client behaves, and what it gets."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

Sent = Callable[[], None]
"""Blocks until the server has nothing left to send but its goodbye."""


@dataclass(frozen=True)
class Manners:
    """Prompt unless told otherwise."""

    rest_every: int = 0
    """Rest for a moment after so many messages."""
    late: bool = False
    """Read nothing before the server has sent everything, and ping then."""
    leave_after: int = 0
    """Close politely after so many messages."""

    rest_s = 0.02

    def rests(self, count: int) -> bool:
        return self.rest_every > 0 and count % self.rest_every == 0

    def leaves(self, count: int) -> bool:
        return 0 < self.leave_after <= count


PROMPT = Manners()
SLOW = Manners(rest_every=40)
LATE = Manners(late=True)
LATE_AND_SLOW = Manners(late=True, rest_every=40)


class Answer(NamedTuple):
    """What a connection brought."""

    messages: list[str]
    code: int | None
    reason: str

    @property
    def body(self) -> bytes:
        return "".join(f"{message}\n" for message in self.messages).encode()


Reader = Callable[[str, Manners, Sent], Awaitable[Answer]]
