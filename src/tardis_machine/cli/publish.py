"""`tardis-machine publish`: drain the journal of a stopped server, or resend dead letters."""

import logging
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tardis_machine import log as logs
from tardis_machine.cli.config import sections
from tardis_machine.config import ConfigError, Section, load, setting
from tardis_machine.journal import BoundError, Directory
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.publish.publisher import drain_directory, tune
from tardis_machine.publish.resend import resend
from tardis_machine.server.settings import ServerConfig
from tardis_machine.signals import stop_signals

log = logging.getLogger(__name__)

_PROG: Final = "tardis-machine publish"
_DESCRIPTION: Final = """\
Delivers the messages that stopped servers have left in a journal, then exits: with 0 if none is
pending, else with 1. It tries until a signal stops it, or for --drain-timeout-s if that is set.
With --dead-letters it sends dead letters again instead. Takes the server's flags, environment and
file. A bus whose destination has changed since the messages were journalled is refused, unless
--journal-adopt is set."""
_EPILOG: Final = """\
Examples:
  tardis-machine publish --journal-dir /data/journal --kafka-brokers localhost:9092 \\
    --kafka-topic bronze
  tardis-machine publish --config production.toml --dead-letters /data/journal/dead-letters"""


@dataclass(frozen=True, kw_only=True)
class Command(Section, title="This command"):
    """Settings of this command that the server does not have."""

    dead_letters: Path | None = setting(
        None, help="a file of dead letters, or a directory of them, to be sent again"
    )


def main(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Drain the journal, or resend dead letters; return 1 if messages are left, else 0."""
    loaded = load(
        (Command, *sections()),
        arguments,
        environ,
        prog=_PROG,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    logs.configure(loaded[ServerConfig].log_format, debug=loaded[ServerConfig].debug)
    for warning in loaded.warnings:
        log.warning(warning)
    buses: dict[str, BusConfig] = {}
    for name, bus in BUSES.items():
        config = loaded[bus.config_type]
        if config.enabled:
            config.expect_client()
            buses[name] = config
    if not buses:
        raise ConfigError(
            _PROG, None, f"no bus is configured; expected the flags of one of {', '.join(BUSES)}"
        )
    publish = loaded[PublishConfig]
    letters = loaded[Command].dead_letters
    if letters is not None:
        return _resend(letters, buses, publish)
    path = loaded[JournalConfig].path
    if not path.is_dir():
        raise ConfigError(JournalConfig.flag("dir"), str(path), "expected a journal that exists")
    loaded[JournalConfig].claim()
    publish.claim_dead_letters(path)
    limited = loaded.origins["drain_timeout_s"].kind != "default"
    timeout_s = publish.drain_timeout_s if limited else None
    return _drain(path, buses, publish, timeout_s, adopt=loaded[JournalConfig].adopt)


def _resend(path: Path, buses: Mapping[str, BusConfig], config: PublishConfig) -> int:
    left = 0
    try:
        for result in resend(path, buses, config):
            log.info("dead letters sent again", extra=result.counts())
            left += result.left
    except OSError as error:
        raise _unusable(Command.flag("dead_letters"), path, error) from error
    return 1 if left else 0


def _unusable(flag: str, path: Path, error: OSError) -> ConfigError:
    """Return the error about a directory that this user cannot read and write."""
    reason = error.strerror or str(error)
    return ConfigError(flag, str(path), f"cannot be read and written: {reason}")


def _drain(
    path: Path,
    buses: Mapping[str, BusConfig],
    config: PublishConfig,
    timeout_s: float | None,
    *,
    adopt: bool,
) -> int:
    tune()
    stop = threading.Event()
    for number in stop_signals():
        signal.signal(number, lambda *_: stop.set())
    try:
        snapshot = drain_directory(Directory(path), buses, config, timeout_s, stop, adopt=adopt)
    except BoundError as error:
        raise ConfigError(JournalConfig.flag("dir"), str(path), error.reason) from error
    except OSError as error:
        raise _unusable(JournalConfig.flag("dir"), path, error) from error
    for name, bus in snapshot.buses.items():
        log.info("drained", extra={"bus": name, **bus.ended.counts()})
    if snapshot.left:
        log.warning("messages are kept in the journal", extra={"pending": snapshot.left})
        logging.shutdown()
        os._exit(1)  # a bus client that did not close in time would delay the exit
    return 0
