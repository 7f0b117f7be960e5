"""The code of a run as one number. A stored record keeps it, so a later change of the code shows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from common.machine import machine
from common.models import user_code
from compare.execution import contestants, launch


def of(names: Sequence[str], model: str, moved: Callable[[Path], Path] = lambda folder: folder) -> str:
    """SHA-256 over what the twins share, the twins of these contestants, and a user's own model with its package.

    Args:
        names: of the contestants.
        model: as a spec names it.
        moved: where a folder of the model lies in another checkout of it.
    """
    subjects = {(each.twin, each.python): each.name for each in map(contestants.named, names)}
    own = [folder for twin, folder in launch.FRAMEWORKS.items() if any(twin == each for each, _ in subjects)]
    # Somebody else's twin lies where only its own interpreter finds it, and each interpreter may have another version.
    others = [launch.probe(name)["code"] for (twin, _), name in subjects.items() if twin not in launch.FRAMEWORKS]
    folders = [machine.PROJECT_ROOT / folder for folder in ("common", *own)]
    digest = machine.code_digest([*folders, *map(moved, user_code.folders(model))])
    return hashlib.sha256(" ".join([digest, *others]).encode()).hexdigest() if others else digest
