"""The lake's commands for spark-submit, which takes a file: `spark-submit submit.py backfill …`."""

import sys
from pathlib import Path

# Python puts the folder of the file it runs first, where this package's own modules would hide
# others of their names.
sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]

from tardis_machine.cli import main  # noqa: E402 - found only then

if __name__ == "__main__":
    sys.exit(main(["lake", *sys.argv[1:]]))
