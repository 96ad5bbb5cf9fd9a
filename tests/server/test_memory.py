"""Freed memory: what is taken and freed again and again does not cost pages each time."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from tardis_machine.server.memory import keep_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = keep_freed() if sys.argv[1] == "kept" else None
for turn in range(60):
    if turn == 10:
        before = faults()
    held = [bytearray(1 << 20) for _ in range(6)]
    del held
print(kept, faults() - before)
"""


def faults(how: str, **environ: str) -> tuple[str, int]:
    """What taking and freeing 6 MB fifty times costs."""
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    kept, count = shown.split()
    return kept, int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system's own way is kept")
def test_what_is_freed_is_used_again() -> None:
    kept, few = faults("kept")
    if kept == "False":
        pytest.skip("this C library has no such setting")
    assert few < 1000
    assert faults("not kept")[1] > 10 * few


def test_who_has_set_it_up_has_it_as_it_was_set() -> None:
    assert faults("kept", MALLOC_ARENA_MAX="2")[0] == "False"
