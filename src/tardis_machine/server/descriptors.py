"""How many files and connections the server's process may have open."""

import contextlib
import resource
from typing import Final

from tardis_machine.history.fetches import MAX_FETCHES
from tardis_machine.server.limits import LimitsConfig
from tardis_machine.server.listener import MAX_REFUSALS, SPARE_CONNECTIONS

_OWN: Final = 100
"""Listening sockets, journal, publisher, cache, log, threads' wake-ups, the other processes."""


def raise_limit() -> None:
    """Let this process and those that it starts open as many files as the system allows them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def needed(limits: LimitsConfig) -> int:
    """Return how many descriptors a server has open that is at all of its limits.

    Each WebSocket client is taken to stream from one connection to an exchange, each replay to
    read one slice.
    """
    clients = 2 * (limits.max_connections + MAX_REFUSALS) + SPARE_CONNECTIONS
    exchanges = limits.max_connections
    slices = limits.max_replays
    fetches = 2 * MAX_FETCHES  # a connection and a file
    return clients + exchanges + slices + fetches + _OWN


def warnings(limits: LimitsConfig) -> list[str]:
    """Warn of limits that the process could not reach: connections would be cut without a word."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed(limits)
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return []
    remedy = f"raise it (ulimit -Hn, LimitNOFILE), or lower {limits.flag('max_connections')}"
    return [f"the limits need {wanted} open files, beyond the process's limit of {soft}: {remedy}"]
