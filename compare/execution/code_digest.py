"""The code of a run as one number. A stored record keeps it, so a later change of the code shows."""

from __future__ import annotations

from collections.abc import Sequence

from common.machine import machine
from common.models import architectures
from compare.execution import contestants, launch


def of(names: Sequence[str], model: str) -> str:
    """SHA-256 over what the twins share, the twins of these contestants, and a user's own model with its package."""
    twins = dict.fromkeys(launch.FRAMEWORKS[contestants.named(name).twin] for name in names)
    folders = [machine.PROJECT_ROOT / folder for folder in ("common", *twins)]
    return machine.code_digest([*folders, *architectures.user_folders(model)])
