"""The command `convtwins`, and the stable addresses `convtwins.models` and `convtwins.api`.

An installed package has the suite in `_app`, so site-packages gains one name. In a checkout the suite lies beside this folder.
"""

import sys
from contextlib import suppress
from pathlib import Path

_HERE = Path(__file__).resolve().parent
__path__ = [str(_HERE)]  # an editable installation links each file, and lacks those that are new since
APP = _HERE / "_app" if (_HERE / "_app").is_dir() else _HERE.parent


def add_suite_to_path() -> None:
    """Put the suite first on the path, unless it is first."""
    if sys.path[:1] != [str(APP)]:
        sys.path.insert(0, str(APP))


def main() -> None:
    """Run the command line. The suite comes first on the path.

    The caller's folder may hold models of their own. It comes last, so that no file in it is taken for a library.
    """
    add_suite_to_path()
    with suppress(FileNotFoundError):  # the command line says that it was removed
        sys.path.append(str(Path.cwd()))
    from compare.__main__ import main as run_command_line

    run_command_line()
