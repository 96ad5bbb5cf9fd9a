"""The server's own settings, and those of the history it reads."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from tardis_machine.config import ConfigError, Section, bytes_size, setting


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Section, title="Server"):
    """Where the server listens, who may talk to it, how it logs."""

    port: int = setting(
        8000,
        help="HTTP port; WebSocket listens on the next one",
        minimum=1,
        maximum=65534,
        env_override="PORT",
    )
    host: str = setting("127.0.0.1", help="address to listen on; 0.0.0.0 for all", metavar="ADDR")
    auth_token: str | None = setting(
        None,
        help="ask every request but /health-check for this bearer token",
        secret=True,
        metavar="TOKEN",
    )
    allow_origin: tuple[str, ...] = setting(
        (), help="browser origins that may connect; * for any", metavar="ORIGIN,…"
    )
    allow_host: tuple[str, ...] = setting(
        (),
        help="names this server is reached by, besides loopback and the address it listens on; "
        "* for any",
        metavar="NAME,…",
    )
    cluster_mode: bool = setting(False, help="one process per core, sharing both ports")
    cluster_restarts: int = setting(
        10, help="processes of the cluster that may die within ten minutes", minimum=0
    )
    strict: bool = setting(
        False, help="refuse unknown options; end a replay at the first message it cannot handle"
    )
    debug: bool = setting(False, help="log more")
    log_format: str = setting("human", help="how logs are written", choices=("human", "json"))

    def validate(self) -> None:
        """Refuse empty names."""
        if not self.host:
            raise ConfigError(self.flag("host"), self.host, "expected an address such as 127.0.0.1")
        if self.auth_token == "":
            raise ConfigError(self.flag("auth_token"), None, "expected a token that is not empty")

    def warnings(self) -> list[str]:
        """Warn of an open door."""
        if is_loopback(self.host) or self.auth_token is not None:
            return []
        danger = "anyone who reaches this machine can replay with its API key"
        return [f"listening on {self.host} without --auth-token: {danger}"]


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(Section, title="History"):
    """Where history comes from and where it is kept."""

    api_key: str | None = setting(
        None,
        help="Tardis.dev API key; without one the first day of each month is free",
        secret=True,
        metavar="KEY",
    )
    endpoint: str = setting(
        "https://api.tardis.dev/v1", help="base URL of the historical API", metavar="URL"
    )
    cache_dir: Path | None = setting(
        None,
        help="where slices are cached, in the official clients' layout; without it .tardis-cache "
        "among the system's temporary files",
        metavar="DIR",
    )
    cache_max_bytes: int | None = setting(
        None,
        help="bound of the cache, oldest slices go first; no bound unless set",
        parse=bytes_size,
        minimum=1,
        metavar="SIZE",
    )
    max_slices: int = setting(
        60,
        help="slices that one replay may fetch or find ahead of its client, and keep from eviction",
        minimum=1,
    )
    clear_cache: bool = setting(False, help="empty the cache at start")
    sample_data: bool = setting(False, help="serve the bundled sample data, offline")

    def validate(self) -> None:
        """Refuse an endpoint that is no URL."""
        if not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                self.flag("endpoint"), self.endpoint, "expected a URL with http:// or https://"
            )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
