"""`tardis-machine lake` as a file for spark-submit: `spark-submit submit.py backfill …`."""

import sys
from pathlib import Path

# Python puts this folder first in sys.path. Its modules would hide others of the same name.
_FOLDER = Path(__file__).resolve().parent
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != _FOLDER]

from tardis_machine.cli import main  # noqa: E402 - after sys.path is set

if __name__ == "__main__":
    sys.exit(main(["lake", *sys.argv[1:]]))
