"""The server's own settings, and those of the history it reads."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from tardis_machine.config import ConfigError, Section, setting


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Section, title="Server"):
    """Where the server listens, who may talk to it, how it logs."""

    port: int = setting(
        8000,
        help="HTTP port; WebSocket on the next; 0: any free",
        minimum=0,
        maximum=65_534,
        env_override="PORT",
    )
    host: str | None = setting(
        None,
        help="address to listen on; default: 127.0.0.1, and ::1 where free; 0.0.0.0 for all",
        metavar="ADDR",
    )
    auth_token: str | None = setting(
        None,
        help="ask every request but /health-check for this bearer token",
        secret=True,
        metavar="TOKEN",
    )
    allow_anonymous: bool = setting(False, help="listen beyond loopback without a token")
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
        False, help="refuse unknown options; end a replay at a message it cannot handle"
    )
    debug: bool = setting(False, help="log more")
    log_format: str = setting("human", help="how logs are written", choices=("human", "json"))

    @property
    def _is_local(self) -> bool:
        return self.host is None or is_loopback(self.host)

    def validate(self) -> None:
        """Refuse empty names."""
        if self.host == "":
            raise ConfigError(self.flag("host"), self.host, "expected an address such as 127.0.0.1")
        if self.auth_token == "":
            raise ConfigError(self.flag("auth_token"), None, "expected a token that is not empty")

    def expect_guard(self, spelled: Callable[[str], str] = str) -> None:
        """Refuse to listen beyond loopback without a token, unless that is explicitly allowed.

        `spelled` turns a setting's name into what the caller is told: by default the name of the
        keyword argument. Only a server needs the guard: other commands read the same settings.
        """
        if self._is_local or self.auth_token is not None or self.allow_anonymous:
            return
        raise ConfigError(
            spelled("host"),
            self.host,
            "without a token other machines and web pages could spend the API key and publish: "
            f"expected {spelled('auth_token')}, or {spelled('allow_anonymous')}",
        )

    def warnings(self) -> list[str]:
        """Warn of an open door."""
        if self._is_local or self.auth_token is not None or not self.allow_anonymous:
            return []
        danger = "whoever reaches this machine can replay with its API key"
        return [f"listening on {self.host} without {self.flag('auth_token')}: {danger}"]


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
