"""`lake backfill` refuses a request before it begins, by the flag that is wrong."""

from pathlib import Path

import pytest

from tests.support.command import Run


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (("--exchange", "bitmx"), "invalid --exchange: 'bitmx'. did you mean bitmex?"),
        (("--from", "yesterday"), "invalid --from: 'yesterday', expected an ISO 8601 date"),
        (("--to", "2024-02-01"), "invalid --from and --to: 2024-03-01 to 2024-02-01 holds no"),
    ],
)
def test_refused_request_names_its_flag(
    run: Run, tmp_path: Path, wrong: tuple[str, str], expected: str
) -> None:
    asked = {
        "--exchange": "bitmex",
        "--types": "trade",
        "--from": "2024-03-01",
        "--to": "2024-03-02",
    }
    asked |= {"--to-tables": str(tmp_path), wrong[0]: wrong[1]}
    done = run("lake", "backfill", *(word for pair in asked.items() for word in pair))
    assert done.returncode in {1, 2}
    assert expected in done.stderr
