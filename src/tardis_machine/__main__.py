"""The command as `python -m tardis_machine`, for where its script is not on the PATH."""

import sys

from tardis_machine.cli import main

if __name__ == "__main__":
    sys.exit(main())
