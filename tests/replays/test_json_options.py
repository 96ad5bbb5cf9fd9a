"""Text that is no options is refused."""

import pytest

from tardis_machine.replays.json_options import read_requests
from tardis_machine.replays.requests import OptionsError


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "{", "[]", "1", "[1]", '"x"', "null"),
        *("[" * 100_000, '{"options":' * 100_000),
        *("9" * 5000, f'{{"from":{"9" * 5000}}}'),
    ],
)
def test_text_that_is_no_options(text: str | None) -> None:
    with pytest.raises(OptionsError, match="options"):
        read_requests(text)
