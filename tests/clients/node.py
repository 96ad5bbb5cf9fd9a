"""Node.js and its WebSocket client, where Node.js is installed.

Where it is not, the tests for it do not exist: the run's header says so, and they are not
counted as anything.
"""

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.support.servers.folder import SERVERS

_PACKAGE: Final = "ws@8.18.0"
NODE: Final = shutil.which("node") if shutil.which("npm") else None


def node_modules() -> Path:
    """Return the folder with the client in it, installed once."""
    folder = SERVERS / f"node-{_PACKAGE.replace('@', '-')}"
    modules = folder / "node_modules"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            command = ["npm", "install", "--no-save", "--silent", "--prefix", folder, _PACKAGE]
            subprocess.run(command, check=True, timeout=240)
            (folder / "done").touch()
    return modules
