"""Requests to a server under test."""

import json
from typing import Any
from urllib.parse import quote


def query(options: Any) -> str:
    """Return the query string of a request with these options; none for None."""
    if options is None:
        return ""
    text = options if isinstance(options, str) else json.dumps(options)
    return f"?options={quote(text)}"
