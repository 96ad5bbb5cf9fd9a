"""Settings of history: the API, its key, the cache."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tardis_machine.config import ConfigError, Section, bytes_size, setting
from tardis_machine.config.section import split_url

KEY_EXPECTED: Final = "expected a key of ASCII characters, without line ends"


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(Section, title="History"):
    """The API that history comes from and the cache that keeps it."""

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
        help="where slices are cached, in the official clients' layout; without it "
        "tardis-machine/slices in XDG_CACHE_HOME (~/.cache)",
        metavar="DIR",
    )
    cache_max_bytes: int | None = setting(
        None,
        help="bound of the cache, oldest slices go first; no bound unless set",
        parse=bytes_size,
        minimum=1,
        metavar="SIZE",
    )
    api_wait_s: float | None = setting(
        None,
        help="how long a replay without data yet tries to connect to the API; default: 15 s, and "
        "about an hour in a backfill",
        minimum=0,
    )
    max_slices: int = setting(
        60,
        help="slices that one replay may fetch or find ahead of its client, and keep from eviction",
        minimum=1,
    )
    clear_cache: bool = setting(False, help="empty the cache at start")
    sample_data: bool = setting(
        False, help="serve the bundled sample, offline: synthetic data, generated"
    )

    def validate(self) -> None:
        """Raise ConfigError for an endpoint that is no URL or a key that no HTTP header can carry.

        The HTTP client would raise for such a key with the whole header, secret included, in its
        text.
        """
        parts = split_url(self.endpoint)
        is_http = self.endpoint.startswith(("http://", "https://"))
        if not is_http or parts is None or not parts.hostname:
            raise ConfigError(
                self.flag("endpoint"), self.endpoint, "expected a URL with http:// or https://"
            )
        if not is_key(self.api_key or ""):
            raise ConfigError(self.flag("api_key"), None, KEY_EXPECTED)

    def warnings(self) -> list[str]:
        """Return the warning that sample data is generated, if it is served."""
        if not self.sample_data:
            return []
        return [f"{self.flag('sample_data')} is synthetic: generated, no exchange ever sent it"]


def is_key(text: str) -> bool:
    """Return whether an HTTP header can carry a key; an empty one counts as valid."""
    return text.isascii() and text.isprintable()
