"""Entry of ``deploy/up`` and ``deploy/test``: ``python launch.py up|test [options]``. Standard library only."""

import sys

from launcher import suite, up

COMMANDS = {"up": up.main, "test": suite.main}

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
