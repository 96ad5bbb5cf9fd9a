"""What the tests of the library ask for: a minute or more of the sample data."""

from typing import Any

SPAN: dict[str, Any] = {"from_": "2024-03-01", "to": "2024-03-01T00:01", "sample": True}
WHOLE: dict[str, Any] = {**SPAN, "to": "2024-03-01T00:05"}
