"""Every test of the emitter runs with every implementation that there is."""

from collections.abc import Iterator

import pytest

from tardis_machine import emit
from tardis_machine.emit.implementations import VARIABLE


@pytest.fixture(autouse=True, scope="module", params=list(emit.implementations()))
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, request.param)
        yield request.param
