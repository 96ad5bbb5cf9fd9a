"""CCXT, a public client of exchanges, installed once among the parts: it is no part of ours."""

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Final

from tardis_machine.parts import parts_dir

_VERSION: Final = "4.5.90"


def installed() -> Path:
    """Give the folder to import CCXT from; it has dependencies of its own, pinned to the digit."""
    folder = parts_dir() / f"ccxt-{_VERSION}"
    parts_dir().mkdir(parents=True, exist_ok=True)
    with (parts_dir() / ".ccxt-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            uv = Path(sys.executable).with_name("uv")
            command = [uv, "pip", "install", "--quiet", "--python", sys.executable]
            subprocess.run(
                [*command, "--target", folder, "--upgrade", f"ccxt=={_VERSION}"], check=True
            )
            (folder / "whole").touch()
    return folder
