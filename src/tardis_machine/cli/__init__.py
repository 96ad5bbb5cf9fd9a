"""The `tardis-machine` command: the server by default, everything else by its name."""

import errno
import os
import select
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, TextIO

from tardis_machine import __version__
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
BROKEN_PIPE: Final = 141
"""What a shell reports for a program that SIGPIPE ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument, or the server."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given.pop(0) if given and given[0] in COMMANDS else "serve"
    command = "tardis-machine" if name == "serve" else f"tardis-machine {name}"
    logs.escape_unwritable()
    try:
        if version := _requested_version(given):
            print(version)
            return 0
        result: int = import_module(f"{__name__}.{name}").main(given)
        sys.stdout.flush()
    except TardisMachineError as error:
        logs.print_error(f"{command}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        if not _is_deserted(sys.stdout):
            raise
        return BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        logs.print_error(f"{command}: {error.strerror}")
        return 1
    return result


def _requested_version(arguments: Sequence[str]) -> str:
    """Return what --version or -v prints; nothing where neither is given, or help is."""
    if {"--help", "-h"}.isdisjoint(arguments):
        if "--version" in arguments:
            from tardis_machine.engine.choice import kernel  # noqa: PLC0415 - takes a moment

            return f"{__version__} (kernel: {kernel()})"
        if "-v" in arguments:
            return __version__  # alone, as the Node server prints it
    return ""


def _is_deserted(output: TextIO) -> bool:
    """Tell whether nobody reads on, as when `head` has seen enough: nothing is written then."""
    poll = select.poll()
    poll.register(output, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), output.fileno())  # what is left is written at exit
    return True
