"""Settings of live streams: timeouts, retries and buffer sizes."""

from dataclasses import dataclass
from typing import Final

from tardis_machine.config import ConfigError, Section, bytes_size, setting

# Some exchanges refuse a WebSocket handshake without a browser's User-Agent.
_BROWSER: Final = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/100.0.4896.127 Safari/537.36"
)


@dataclass(frozen=True, kw_only=True)
class LiveConfig(Section, title="Live streams", help_topic="live"):
    """Connections to exchanges: when to close one, when to connect again."""

    live_reconnect_s: float = setting(
        1.0,
        help="wait before connecting again, doubled with each failure in a row",
        minimum=0,
        metavar="SECONDS",
    )
    live_reconnect_max_s: float = setting(
        32.0, help="longest wait before connecting again", minimum=0, metavar="SECONDS"
    )
    live_stable_s: float = setting(
        10.0,
        help="data that flowed this long ends a row of failures",
        minimum=0,
        metavar="SECONDS",
    )
    live_silence_s: float = setting(
        20.0,
        help="give a connection up that shows no sign of life for this long, not even an answer "
        "to a ping; 0: never. Silence of data is judged by a request's timeoutIntervalMS",
        minimum=0,
        metavar="SECONDS",
    )
    live_buffer_bytes: int = setting(
        64 * 1024 * 1024,
        help="frames that wait to be normalized; beyond it exchanges have to wait",
        parse=bytes_size,
        minimum=1024,
        metavar="SIZE",
    )
    live_max_frame_bytes: int = setting(
        64 * 1024 * 1024,
        help="largest frame, or answer by REST, of an exchange, unpacked",
        parse=bytes_size,
        minimum=1024,
        metavar="SIZE",
    )

    live_user_agent: str = setting(
        _BROWSER,
        help="User-Agent of WebSocket handshakes with exchanges, some of which refuse what is no "
        "browser",
    )

    def validate(self) -> None:
        """Raise ConfigError for an invalid User-Agent or a longest wait below the first."""
        agent = self.live_user_agent
        if not (agent.strip() and agent.isascii() and agent.isprintable()):
            raise ConfigError(
                self.flag("live_user_agent"), agent, "expected printable ASCII characters"
            )
        if self.live_reconnect_max_s < self.live_reconnect_s:
            raise ConfigError(
                self.flag("live_reconnect_max_s"),
                str(self.live_reconnect_max_s),
                f"expected at least {self.flag('live_reconnect_s')}, {self.live_reconnect_s}",
            )
