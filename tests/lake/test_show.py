"""What is shown of tables, and what cannot be."""

import pytest

from tardis_machine.cli.lake import main
from tardis_machine.config import ConfigError
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
