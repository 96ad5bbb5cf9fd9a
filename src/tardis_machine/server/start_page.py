"""The page at `/`: what this server is, a form to try it, its state. One file, no foreign host."""

import base64
import hashlib
import json
import re
from importlib.resources import files
from typing import Final

from aiohttp import web

import tardis_machine
from tardis_machine import exchanges

_ENDPOINTS: Final = (
    ("/replay", "raw replay"),
    ("/replay-normalized", "normalized replay"),
    ("/health-check", "health"),
    ("/metrics", "Prometheus metrics"),
    ("/ws-replay", "native replay"),
    ("/ws-replay-normalized", "normalized replay"),
    ("/ws-stream-normalized", "normalized live stream"),
)
# The first day of a month needs no API key; the synthetic sample has the times of such a day.
_EXAMPLE: Final = {
    "exchange": "bitmex",
    "symbols": ["XBTUSD"],
    "from": "2024-03-01T00:00",
    "to": "2024-03-01T00:05",
}
_ACCOUNTS: Final = (
    ("accepted", "tardis_machine_publish_accepted"),
    ("delivered", "tardis_machine_publish_delivered_total"),
    ("pending", "tardis_machine_publish_pending"),
    ("dead", "tardis_machine_publish_dead_lettered_total"),
    ("dropped", "tardis_machine_publish_dropped_total"),
)
_JOURNAL: Final = "tardis_machine_publish_journal_used_bytes"
_INLINE: Final = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


class StartPage:
    """The page of one server, made once.

    `sample` describes the synthetic data that the server has in place of history, if it has.
    """

    def __init__(self, sample: str | None = None) -> None:
        text = files(__package__).joinpath("start_page.html").read_text(encoding="utf-8")
        allowed: dict[str, list[str]] = {"style": [], "script": []}
        for kind, inline in _INLINE.findall(text):
            digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
            allowed[kind].append(f"'sha256-{digest}'")
        self._body = text.replace("__FACTS__", _facts(sample)).encode()
        self._headers = {
            "Content-Security-Policy": (
                f"default-src 'none'; script-src {' '.join(allowed['script'])}; "
                f"style-src {' '.join(allowed['style'])}; connect-src 'self'; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            ),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }

    def answer(self) -> web.Response:
        """Give the page."""
        return web.Response(
            body=self._body, content_type="text/html", charset="utf-8", headers=self._headers
        )


def _facts(sample: str | None) -> str:
    """Return the facts for the page's script, as JSON that cannot end its script element."""
    facts = {
        "version": tardis_machine.__version__,
        "exchanges": {name: exchanges.get(name).data_types() for name in exchanges.names()},
        "closed": [name for name in exchanges.names() if exchanges.get(name).closed],
        "example": _EXAMPLE,
        "sample": sample,
        "endpoints": _ENDPOINTS,
        "accounts": _ACCOUNTS,
        "journal": _JOURNAL,
    }
    return json.dumps(facts).replace("<", "\\u003c")
