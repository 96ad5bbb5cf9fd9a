"""The `tardis-machine` command: runs the server, or the subcommand that it begins with."""

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
"""Subcommands and their help. Each is a module of this package with `main(arguments) -> int`."""
BROKEN_PIPE: Final = 141
"""The exit code that a shell reports for a program that SIGPIPE ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the first argument names, else the server; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words.pop(0) if words and words[0] in COMMANDS else "serve"
    command = "tardis-machine" if name == "serve" else f"tardis-machine {name}"
    logs.escape_unwritable()
    try:
        if version := _requested_version(words):
            print(version)
            return 0
        result: int = import_module(f"{__name__}.{name}").main(words)
        sys.stdout.flush()
    except TardisMachineError as error:
        logs.print_error(f"{command}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        if not _discard_if_unread(sys.stdout):
            raise
        return BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        logs.print_error(f"{command}: {error.strerror}")
        return 1
    return result


def _requested_version(arguments: Sequence[str]) -> str:
    """Return the text for --version or -v; '' without either of them, or with --help."""
    if {"--help", "-h"}.isdisjoint(arguments):
        if "--version" in arguments:
            from tardis_machine.engine.choice import kernel  # noqa: PLC0415 - takes a moment

            return f"{__version__} (kernel: {kernel()})"
        if "-v" in arguments:
            return __version__  # the Node server prints nothing else either
    return ""


def _discard_if_unread(output: TextIO) -> bool:
    """Return whether the reader of the output has left, as `head` does; if so, discard the rest.

    Python flushes the output at exit, which would raise BrokenPipeError once more.
    """
    poll = select.poll()
    poll.register(output, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    with Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), output.fileno())
    return True
