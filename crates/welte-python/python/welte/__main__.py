"""The command."""

import os
import signal
import sys

from . import _welte, demo_model


def main():
    """Runs the command line of this process."""
    os.environ.setdefault("WELTE_MODEL", demo_model())
    # Python would only note Ctrl-C, and nobody looks while the command runs.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    sys.exit(_welte.command(["welte", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
