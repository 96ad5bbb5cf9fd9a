"""The question before rows are deleted or replaced, and the error without a terminal."""

import os
import pty
import subprocess
import sys

import pytest

from tardis_machine.cli.consent import expect_terminal
from tardis_machine.config import ConfigError
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.lake.config import SparkConfig

_ASKS = """
from tardis_machine.cli.consent import confirm, expect_terminal
expect_terminal(["tardis-machine"], ())
raise SystemExit(0 if confirm("Drop it?") else 1)
"""


def test_the_command_to_run_shows_no_secret() -> None:
    command = ["tardis-machine", "lake", "backfill", "--force", "--api-key", "TD.secret"]
    command += ["--spark=spark.hadoop.fs.s3a.secret.key=secret", "--to-tables", "my lake"]
    with pytest.raises(ConfigError) as refused:
        expect_terminal(command, (HistoryConfig, SparkConfig))
    assert str(refused.value).endswith(
        "run: tardis-machine lake backfill --force --api-key ... --spark=... "
        "--to-tables 'my lake' --yes"
    )


@pytest.mark.parametrize(("typed", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1), (b"\x04", 1)])
def test_an_answer_is_read_from_the_terminal(typed: bytes, code: int) -> None:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed)
        done = subprocess.run(
            [sys.executable, "-c", _ASKS],
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.PIPE,
            check=False,
            timeout=60,
        )
        assert done.returncode == code
        assert done.stdout == (b"" if code == 0 else b"Nothing was done.\n")
    finally:
        os.close(theirs)
        os.close(ours)


def test_without_standard_streams_yes_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ConfigError, match="--yes: is needed"):
        expect_terminal(["tardis-machine"], ())
