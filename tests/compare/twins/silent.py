"""Ends with exit code 0 whatever it is asked for: as a twin, and as a command."""

import sys


def command() -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(0)
