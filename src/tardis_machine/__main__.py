"""`python -m tardis_machine`: the command, for systems where its script is not on the PATH."""

import sys

from tardis_machine.cli import main

if __name__ == "__main__":
    sys.exit(main())
