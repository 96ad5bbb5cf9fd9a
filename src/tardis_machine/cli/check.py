"""`tardis-machine check`: a connection test of the API and every configured bus."""

from collections.abc import Mapping, Sequence
from typing import Final

import urllib3

from tardis_machine.cli.config import sections
from tardis_machine.config import ConfigError, load
from tardis_machine.config.section import without_password
from tardis_machine.errors import TardisMachineError
from tardis_machine.history.client import pool_manager
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.publish.buses import BUSES
from tardis_machine.server.settings import ServerConfig

_PROG: Final = "tardis-machine check"
_DESCRIPTION: Final = """\
Validates the server's configuration, then reaches the API and every bus that is configured,
without sending them anything. One line each; exit code 0 if all is well, else 1. Takes the
server's flags, environment and file."""
_EPILOG: Final = """\
Examples:
  tardis-machine check --config production.toml
  tardis-machine check --kafka-brokers localhost:9092 --kafka-topic bronze"""
_FREE_MINUTE: Final = (
    "/data-feeds/bitmex?from=2020-01-01T00:00:00.000Z&offset=0&compression=gzip"
    "&filters=%5B%7B%22channel%22%3A%22trade%22%2C%22symbols%22%3A%5B%22XBTUSD%22%5D%7D%5D"
)
_TIMEOUT_S: Final = 10.0


def main(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Check the configuration, the API and every configured bus; return 1 if one failed, else 0."""
    try:
        loaded = load(
            sections(), arguments, environ, prog=_PROG, description=_DESCRIPTION, epilog=_EPILOG
        )
        loaded[ServerConfig].expect_guard(ServerConfig.flag)
    except ConfigError as error:
        _print_line("fail", "config", str(error))
        return 1
    _print_line("ok", "config", "valid")
    for warning in loaded.warnings:
        _print_line("warn", "config", warning)
    failures = 0
    try:
        _print_line("ok", "api", _reach_api(loaded[HistoryConfig]))
    except _ApiError as error:
        failures += 1
        _print_line("fail", "api", str(error))
    for name, bus in BUSES.items():
        config = loaded[bus.config_type]
        if not config.enabled:
            continue
        try:
            config.expect_client()
            _print_line("ok", name, bus(config).check())
        except TardisMachineError as error:
            failures += 1
            _print_line("fail", name, str(error).removeprefix(name).lstrip(": "))
    return 1 if failures else 0


class _ApiError(TardisMachineError):
    """An API that cannot be reached, or that refuses the request."""


def _reach_api(config: HistoryConfig) -> str:
    """Request a minute that needs no key, and close at the response's status.

    Return the text of the report; raise _ApiError for another status than 200.
    """
    if config.sample_data:
        return "not needed, the synthetic sample data is served"
    shown = without_password(config.endpoint)
    headers = {"Accept-Encoding": "gzip"}
    if config.api_key:
        headers["Authorization"] = f"Bearer {config.api_key}"
    with pool_manager(config.endpoint, retries=False, timeout=_TIMEOUT_S) as pool:
        try:
            response = pool.request(
                "GET", config.endpoint + _FREE_MINUTE, headers=headers, preload_content=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise _ApiError(f"{shown} cannot be reached: {error}") from None
        response.close()
    if response.status == 401:
        raise _ApiError(f"{shown} refuses the key of --api-key")
    if response.status != 200:
        raise _ApiError(f"{shown} answers with status {response.status}")
    return f"{shown}, {'with a key' if config.api_key else 'without a key'}"


def _print_line(verdict: str, part: str, text: str) -> None:
    print(f"{verdict:<5} {part:<8} {' '.join(text.split())}", flush=True)
