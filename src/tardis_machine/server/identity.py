"""Who asked: the ids of a request and of its session, for headers, logs and envelopes."""

import uuid
from contextvars import ContextVar
from typing import Final, NamedTuple

_REQUEST: Final = "X-Request-Id"
_SESSION: Final = "X-Session-Id"
EXPOSED: Final = f"{_REQUEST}, {_SESSION}"


class Identity(NamedTuple):
    """One request, and the session it belongs to.

    A session is a client's connection over WebSocket. Over HTTP, where connections are no
    client's, it is whatever got this id in its answer.
    """

    request_id: str
    session_id: str

    @property
    def headers(self) -> dict[str, str]:
        """Give the headers that tell the client."""
        return {_REQUEST: self.request_id, _SESSION: self.session_id}

    @property
    def logged(self) -> dict[str, str]:
        """Give the details that logs tell."""
        return self._asdict()


_current: ContextVar[Identity] = ContextVar("identity")


def begin() -> Identity:
    """Take up a request; what its task does from here on is for it."""
    identity = Identity(uuid.uuid4().hex, uuid.uuid4().hex)
    _current.set(identity)
    return identity


def current() -> Identity:
    """Give the ids of the request that is being answered."""
    return _current.get()
