"""The server: HTTP on a port, WebSocket on the next, and the class that holds them together."""

import tardis_machine.posix  # noqa: F401 - raises on other systems
