"""Requests to a server that a command has started."""

import json
import urllib.request
from urllib.parse import quote

OPTIONS = {
    "exchange": "bitmex",
    "from": "2024-03-01",
    "to": "2024-03-01T00:01",
    "dataTypes": ["trade"],
}


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        body: bytes = response.read()
        return body


def replay(port: int) -> bytes:
    return get(port, f"/replay-normalized?options={quote(json.dumps(OPTIONS))}")
