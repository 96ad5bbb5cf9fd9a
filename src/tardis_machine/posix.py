"""A check by import: on other systems than Linux and macOS it raises UnsupportedSystemError."""

from importlib.util import find_spec

from tardis_machine.errors import UnsupportedSystemError

for _module in ("fcntl", "resource"):
    if find_spec(_module) is None:
        raise UnsupportedSystemError(_module)
