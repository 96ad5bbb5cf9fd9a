"""The library where modules of Linux and macOS are missing; what needs them says so."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.tardis_api import TardisApi, sample_lines

ROOT = Path(__file__).parents[2]
# What Windows does not have, of what the package uses. The standard library keeps its own.
HIDING = """
import os, shutil, signal, sys, tempfile
for name in ("fcntl", "resource", "termios", "pwd", "grp", "uvloop"):
    sys.modules[name] = None
shutil._use_fd_functions = False
for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "pread", "pwrite",
             "getuid", "geteuid", "fork", "sched_getscheduler", "posix_fallocate", "statvfs"):
    delattr(os, name)
del signal.SIGHUP
"""
CACHED = """
from tardis_machine import replay_normalized
from tardis_machine.history import History
with History(endpoint=sys.argv[1], cache_dir=sys.argv[2], cache_max_bytes=1 << 30) as history:
    asked = dict(data_types=["trade"], from_="2024-03-01", to="2024-03-01T00:01", history=history)
    print(len(list(replay_normalized("bitmex", **asked))))
    if sys.argv[3:]:
        history.clear_cache()
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDING + program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_library_without_the_modules_of_posix_replays() -> None:
    done = run("from tests.library.smoke import main; main()")
    assert (done.returncode, done.stdout) == (0, "103 trades\n"), done.stderr


def test_cache_without_locks_keeps_sound_slices_and_has_no_bound(
    tardis_api: TardisApi, tmp_path: Path
) -> None:
    tardis_api.lines = sample_lines

    def replay(*clearing: str) -> int:
        done = run(CACHED, tardis_api.endpoint, str(tmp_path / "cache"), *clearing)
        assert (done.returncode, done.stdout) == (0, "103\n"), done.stderr
        assert "cache_max_bytes has no effect on Windows" in done.stderr
        return len(tardis_api.calls)

    assert (replay(), replay()) == (1, 1)
    [cached] = (path for path in tmp_path.rglob("*") if path.is_file())
    cached.write_bytes(cached.read_bytes()[:-9])
    assert replay("clear") == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("part", ["server.app", "journal", "publish", "lake"])
def test_part_that_needs_posix_says_so(part: str) -> None:
    done = run(f"import tardis_machine.{part}")
    assert done.stderr.splitlines()[-1] == (
        "tardis_machine.errors.UnsupportedSystemError: this system has no module fcntl: the "
        "server, the publisher, the journal and the lakehouse need Linux or macOS. Replays and "
        "live streams in Python work here"
    )


@pytest.mark.parametrize("command", ["", "lake", "publish", "check"])
def test_command_that_needs_posix_says_so_without_a_traceback(command: str) -> None:
    done = run(f"from tardis_machine.cli import main; sys.exit(main({command.split()}))")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"tardis-machine {command}".rstrip() + ": this system has no module")
    assert "need Linux or macOS" in line


def test_command_that_needs_no_server_runs_without_posix() -> None:
    done = run("from tardis_machine.cli import main; sys.exit(main(['exchanges']))")
    assert (done.returncode, done.stderr) == (0, "")
