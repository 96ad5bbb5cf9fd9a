"""The `tardis-machine` command: the server by default, everything else by its name."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from tardis_machine import log as logs
from tardis_machine.errors import TardisMachineError

COMMANDS: Final[dict[str, str]] = {
    "bronze": "convert normalized NDJSON to Bronze envelopes and back",
    "publish": "drain a journal, or send dead letters again",
    "lake": "backfill and stream into Bronze and Silver tables on Spark",
    "exchanges": "list the exchanges: types, channels over time, live or not",
    "config": "print the configuration in force, and where each value came from",
    "check": "validate the configuration and reach every bus and the API",
}
"""Each is the module of that name in this package, with a `main(arguments) -> exit code`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument, or the server."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given.pop(0) if given and given[0] in COMMANDS else "serve"
    logs.escape_unwritable()
    try:
        result: int = import_module(f"{__name__}.{name}").main(given)
    except TardisMachineError as error:
        command = "tardis-machine" if name == "serve" else f"tardis-machine {name}"
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return result
