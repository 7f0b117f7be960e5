"""Where the Keras twin runs: torch and TensorFlow in the suite's interpreter, JAX in an environment of its own."""

import os
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.support import processes

BACKENDS = ("torch", "tensorflow", "jax")
TWINS = tuple(f"keras-{backend}" for backend in BACKENDS)
PLUGINS = ("jax_twin", "keras_twin")
JAX_PYTHON = ".environments/keras-jax/bin/python"
VARIABLE = "CONVTWINS_KERAS_JAX_PYTHON"
"""Environment variable that names another interpreter with Keras and JAX."""


@cache
def interpreter(backend: str) -> Path | None:
    """Return an interpreter that has Keras and a backend. None: there is none."""
    named = (sys.executable,) if backend != "jax" else (os.environ.get(VARIABLE), JAX_PYTHON)
    # TensorFlow is installed under several names, so its module is looked for, and not imported.
    needed = f"from importlib.util import find_spec; raise SystemExit(not (find_spec('keras') and find_spec('{backend}')))"
    for python in filter(None, named):
        path = processes.PROJECT / python
        if path.exists() and processes.run([path, "-c", needed]).exit_code == 0:
            return path
    return None


def require(backend: str) -> Path:
    """Return the interpreter, or skip the test."""
    python = interpreter(backend)
    if python is None:
        pytest.skip(f"Keras on {backend} is not installed: see docs/a-new-twin.md, or set {VARIABLE}")
    return python


def install(folder: Path) -> str:
    """Write what an installation of the plug-ins leaves in an environment. Returns the PYTHONPATH that finds them.

    So the tests need no installation, and run the code of this checkout.
    """
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    for name in PLUGINS:
        plugin = processes.PROJECT / "plugins" / name
        project = tomllib.loads((plugin / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
        )
        lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
                 for group, entries in project["entry-points"].items()]  # fmt: skip
        (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        paths.append(str(plugin))
    return os.pathsep.join(paths)
