"""Where the locale's encoding is not UTF-8: what it lacks is written as an escape."""

import pytest

from tests.support.command import ASCII, Run


@pytest.mark.parametrize("command", [(), ("publish",), ("lake", "show")])
def test_help_is_printed(run: Run, command: tuple[str, ...]) -> None:
    done = run(*command, "--help", **ASCII)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert r",\u2026" in done.stdout
