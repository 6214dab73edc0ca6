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
    script = os.path.abspath(sys.argv[0])
    is_program = os.access(script, os.X_OK) and not script.endswith(".py")
    own = [script] if is_program else [sys.executable, "-m", "welte"]
    sys.exit(_welte.command(["welte", *sys.argv[1:]], own))


if __name__ == "__main__":
    main()
