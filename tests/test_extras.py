"""Optional dependencies that are not there."""

import sys

import pytest

from tardis_machine.extras import MissingExtraError, require


def test_what_is_there_is_imported():
    assert require("json.decoder", extra="none").__name__ == "json.decoder"


@pytest.mark.parametrize("module", ["confluent_kafka", "confluent_kafka.admin"])
def test_what_is_missing_is_named_with_its_extra(module: str, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "confluent_kafka"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'tardis-machine\[kafka\]'") as caught:
        require(module, extra="kafka")

    assert (caught.value.module, caught.value.extra) == (module, "kafka")
