"""What is shown of tables, and what cannot be."""

import json
import shutil
from pathlib import Path

import pytest

from tardis_machine.cli.lake import main
from tardis_machine.config import ConfigError
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.tables import SILVER, Tables


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("symbl = 'X'", r"`symbl` cannot be resolved.*\. Expected .*on the columns .*, price, "),
        ("symbol = 'X", r"Syntax error at or near '''\. Expected a condition"),
        ("price", r"is not a boolean\. Expected"),
        ("price = 'abc'", r"'abc' .*cannot be cast"),
    ],
)
def test_a_condition_that_is_none_is_refused_in_a_line(
    tables: Tables, condition: str, said: str
) -> None:
    tables.create(SILVER["trade"])
    with pytest.raises(ConfigError, match=rf"--where .*: .*{said}") as refused:
        main(["show", "trades", "--tables", tables.root, "--where", condition])
    assert "\n" not in str(refused.value)


def test_a_table_of_a_later_delta_is_named_in_a_line(tables: Tables, tmp_path: Path) -> None:
    tables.create(SILVER["trade"])
    later = shutil.copytree(tables.root, tmp_path / "later")
    [first] = Path(later, SILVER["trade"].path, "_delta_log").glob("*0.json")
    features = {"readerFeatures": ["telepathy"], "writerFeatures": ["telepathy"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    changed = [{"protocol": protocol} if "protocol" in line else line for line in lines]
    first.write_text("".join(json.dumps(line) + "\n" for line in changed))
    for checksum in first.parent.glob("*.crc"):
        checksum.unlink()
    with pytest.raises(LakeError, match=r"^Spark: .*later/silver/trades.*telepathy") as refused:
        main(["show", "trades", "--tables", str(later)])
    assert "\n" not in str(refused.value)
