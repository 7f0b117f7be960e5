"""Digest of the code of a run. Stored records keep it, so that a later change of the code is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from common.machine import machine
from common.models import user_code
from compare.running import launch
from compare.running.contestants import Contestant


def compute(
    contestants: Iterable[Contestant],
    model: str,
    *,
    code_of: Callable[[Contestant], str] = lambda contestant: launch.probe(contestant)["code"],
) -> str:
    """Compute SHA-256 over the twins' shared code, the twins of these contestants, and a user's own model with its package.

    Args:
        contestants: the contestants.
        model: the model as a spec names it.
        code_of: returns the digest of somebody else's twin, from its contestant.
    """
    by_twin = {(contestant.twin, contestant.python): contestant for contestant in contestants}
    twin_folders = [folder for twin, folder in launch.FRAMEWORKS.items() if any(twin == used_twin for used_twin, _ in by_twin)]
    # Somebody else's twin lies where only its own interpreter finds it, and each interpreter may have another version.
    other_digests = [code_of(contestant) for (twin, _), contestant in by_twin.items() if twin not in launch.FRAMEWORKS]
    folders = [machine.PROJECT_ROOT / folder for folder in ("common", *twin_folders)]
    digest = machine.code_digest([*folders, *user_code.folders(model)])
    return hashlib.sha256(" ".join([digest, *other_digests]).encode()).hexdigest() if other_digests else digest
