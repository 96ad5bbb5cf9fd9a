"""Importing this module says that a part needs Linux or macOS; elsewhere it raises."""

from importlib.util import find_spec

from tardis_machine.errors import UnsupportedSystemError

for _module in ("fcntl", "resource"):
    if find_spec(_module) is None:
        raise UnsupportedSystemError(_module)
