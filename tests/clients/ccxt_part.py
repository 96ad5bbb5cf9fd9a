"""CCXT, a public client of exchanges, installed once into a folder of its own."""

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.servers.folder import SERVERS

_VERSION: Final = "4.5.90"


def installed() -> Path:
    """Return the folder to import CCXT from; it pins dependencies of its own."""
    folder = SERVERS / f"ccxt-{_VERSION}"
    SERVERS.mkdir(parents=True, exist_ok=True)
    with (SERVERS / ".ccxt-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            uv = Path(sys.executable).with_name("uv")
            command = [uv, "pip", "install", "--quiet", "--python", sys.executable]
            subprocess.run(
                [*command, "--target", folder, "--upgrade", f"ccxt=={_VERSION}"], check=True
            )
            (folder / "whole").touch()
    return folder
