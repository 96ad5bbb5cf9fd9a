"""Arguments that say nothing are refused as such."""

import pytest

from tests.support.command import Run


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("bronze",),
        ("publish",),
        ("config",),
        ("check",),
        ("exchanges",),
        ("lake",),
        ("lake", "backfill"),
        ("lake", "show", "--tables", "nowhere"),
        ("lake", "show"),
    ],
)
def test_an_empty_argument_is_an_error_and_no_traceback(run: Run, command: tuple[str, ...]) -> None:
    done = run(*command[:2], "", *command[2:])
    assert done.returncode in {1, 2}
    assert "Traceback" not in done.stderr
    assert done.stderr or "fail" in done.stdout
