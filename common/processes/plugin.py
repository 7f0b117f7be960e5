"""`python -m common.processes.plugin TWIN COMMAND...`: run a twin that an installed package brings."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from common.machine import plugins
from common.processes.twin import EXIT_USAGE


def main(argv: Sequence[str]) -> int:
    """Run the package of a twin as `python -m` would. The twin itself ends the process if it is found.

    Returns:
        The exit code for a twin that is not installed.
    """
    name, entry_points = argv[0], plugins.installed(plugins.TWINS)
    if name not in entry_points:
        print(
            f"There is no twin {name} here. Received: {sys.executable}, which has {', '.join(entry_points) or 'none'}. Install "
            f"a package with an entry point {name} in the group {plugins.TWINS}.",
            file=sys.stderr,
        )
        return EXIT_USAGE
    sys.argv = list(argv)
    runpy.run_module(entry_points[name].module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
