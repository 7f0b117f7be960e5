"""Comparisons and their results in a notebook. The stable address of `compare.api`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import convtwins

convtwins.add_suite_to_path()

# ruff: noqa: E402
from compare import api
from compare.api import (
    Matrix,
    Plot,
    Results,
    load,
    plot,
    plot_accuracy,
    plot_confusion,
    plot_efficiency,
    plot_input,
    plot_loss,
    plot_phases,
    plot_seconds,
    plot_speedup,
    run,
)

if TYPE_CHECKING:
    from compare.api import match as match

__all__ = [
    "Matrix",
    "Plot",
    "Results",
    "load",
    "match",
    "plot",
    "plot_accuracy",
    "plot_confusion",
    "plot_efficiency",
    "plot_input",
    "plot_loss",
    "plot_phases",
    "plot_seconds",
    "plot_speedup",
    "run",
]


def __getattr__(name: str) -> Any:
    """Return `match`, which is imported only if somebody asks for it."""
    if name != "match":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return api.match
