"""The kernel's types are those of the library that was compiled."""

import subprocess
import sys
from pathlib import Path


def test_stub_has_the_names_and_parameters_of_the_library(tmp_path: Path) -> None:
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nfollow_imports = skip\n")  # names and parameters need no others
    stubtest = [sys.executable, "-m", "mypy.stubtest", "tardis_machine._kernel", "--concise"]
    done = subprocess.run(
        [*stubtest, "--mypy-config-file", settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
