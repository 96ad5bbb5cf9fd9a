"""Confirmation of commands that delete or replace rows: on the terminal, or by `--yes`."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tardis_machine.config import ConfigError, Section, options

_FLAG: Final = "--yes"
_HIDDEN: Final = "..."


def expect_terminal(command: Sequence[str], sections: Iterable[type[Section]]) -> None:
    """Raise ConfigError if there is no terminal to ask on; its text has the command with `--yes`.

    Values of flags that may hold secrets are left out of that command.
    """
    if _can_ask():
        return
    hidden = {
        option.flag
        for section in sections
        for option in options(section)
        if option.setting.secret or option.kind is dict
    }
    typed = shlex.join([*_without_values(command, hidden), _FLAG])
    raise ConfigError(
        _FLAG,
        None,
        "is needed: this command deletes or replaces rows, and there is no terminal to ask on. "
        f"Nothing was done. --dry-run lists what it would do; to do it, run: {typed}",
    )


def confirm(question: str) -> bool:
    """Ask a question on the terminal; return whether the answer is `y` or `yes`."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in {"y", "yes"}:
        return True
    print("Nothing was done.")
    return False


def _can_ask() -> bool:
    # The question is written to stderr, the answer read from stdin. Either may be None in a daemon.
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _without_values(command: Iterable[str], hidden: set[str]) -> Iterator[str]:
    """Yield the words of a command, with `...` for the values of the flags in `hidden`."""
    is_value = False
    for word in command:
        flag, equals, _ = word.partition("=")
        if is_value:
            yield _HIDDEN
        else:
            yield f"{flag}={_HIDDEN}" if equals and flag in hidden else word
        is_value = not is_value and flag in hidden and not equals
