"""The folder of the servers and clients that tests download."""

import os
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).parents[3]

SERVERS: Final = Path(os.environ.get("TM_TEST_SERVERS_DIR") or _REPOSITORY / ".cache" / "servers")
"""Each server or client has a folder of its own here, downloaded once and used offline."""
