"""The environment of the JAX twin, if there is one."""

import os
from functools import cache
from pathlib import Path

import pytest

from tests.support import processes

PYTHON = ".environments/jax/bin/python"
VARIABLE = "CONVTWINS_JAX_PYTHON"
"""Environment variable that names another interpreter."""


@cache
def interpreter() -> Path | None:
    """Return the first interpreter that has JAX and its twin. None: there is none."""
    for python in filter(None, (os.environ.get(VARIABLE), PYTHON)):
        path = processes.PROJECT / python
        if path.exists() and processes.run([path, "-c", "import jax, jax_impl"]).exit_code == 0:
            return path
    return None


def require() -> Path:
    """Return the interpreter, or skip the test."""
    python = interpreter()
    if python is None:
        pytest.skip(f"JAX and its twin cannot be imported: make their environment (docs/a-new-twin.md), or set {VARIABLE}")
    return python
