"""`tardis-machine exchanges`: the list, one exchange, and the page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tardis_machine.cli import main
from tardis_machine.exchanges import catalog


def test_every_exchange_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exchanges"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(catalog.names())
    assert next(line for line in lines if line.startswith("bitmex")).endswith("(live, native)")


def test_one_exchange_tells_types_channels_and_dates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exchanges", "binance-futures"]) == 0
    shown = capsys.readouterr().out
    assert "  book_change\n    depth, depthSnapshot\n" in shown
    assert "live: yes" in shown


def test_machines_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exchanges", "deribit", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["deribit"]
    assert facts["types"]["trade"] == [{"until": None, "channels": ["trades"]}]
    assert "ticker" in facts["channels"]


def test_closed_exchange_is_history_only_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exchanges"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("ftx ")).endswith(
        "(history only, native)"
    )
    assert main(["exchanges", "ftx"]) == 0
    assert "  live: no, history only: the exchange has closed\n" in capsys.readouterr().out
    assert main(["exchanges", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ftx"]["live"], facts["ftx"]["historyOnly"]) == (False, True)
    assert (facts["bitmex"]["live"], facts["bitmex"]["historyOnly"]) == (True, False)
    assert (facts["ascendex"]["live"], facts["ascendex"]["historyOnly"]) == (False, False)
    assert main(["exchanges", "--markdown"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert next(row for row in rows if row.startswith("| ftx |")).endswith("| history only | yes |")


def test_an_unknown_name_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exchanges", "bitmax"]) == 1
    said = capsys.readouterr().err
    assert "unknown exchange 'bitmax'; did you mean bitmex?" in said


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_is_no_traceback(unbuffered: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tardis_machine", "exchanges"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_full_disk_is_said_in_a_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tardis_machine", "exchanges"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    said = b"tardis-machine exchanges: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)
