"""What a twin says of itself: `describe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.spec import MODES
from compare.conformance.trial import Faults, Trial
from compare.execution import contestants

FIELDS: dict[str, type] = {
    "framework": str, "versions": dict, "supported": dict, "libraries": dict, "devices": list, "modes": dict, "options": dict,
    "inputs": dict, "deterministic": bool, "formats": list,
}  # fmt: skip
"""What `describe` must have. `docs/a-new-twin.md` lists the same."""
CONDITIONS = ("graph", "layout")
"""Conditions of a run that a switch must name."""
_MODE_KEYS = {"available", "reason", "max_replicas", "resource", "implementation", "mechanism", "batch_norm_statistics"}


def description_faults(found: Mapping[str, Any], framework: str) -> Faults:
    """What a twin's `describe` lacks."""
    for name, kind in FIELDS.items():
        if not isinstance(found.get(name), kind):
            yield f"describe has no {name} of type {kind.__name__}. Received: {found.get(name)!r}"
            return
    if found["framework"] != framework:
        yield f"describe names another framework. Received: {found['framework']!r}, expected {framework!r}"
    if not found["versions"] or not all(isinstance(version, str) for version in found["versions"].values()):
        yield f"versions must name packages and their versions. Received: {found['versions']!r}"
    if not found["devices"] or any(device.keys() != {"name", "kind"} for device in found["devices"]):
        yield f"devices must have a name and a kind each. Received: {found['devices']!r}"
    if not all(isinstance(suffix, str) and suffix.startswith(".") for suffix in found["formats"]):
        yield f"formats must be suffixes that begin with a dot. Received: {found['formats']!r}"
    if not found["modes"].get("serial", {}).get("available"):
        yield "modes must have serial, and it must be available"
    for name, mode in found["modes"].items():
        if name not in MODES:
            yield f"modes names {name!r}, which is no mode. Use {', '.join(MODES)}"
        elif lacking := _MODE_KEYS - mode.keys():
            yield f"modes.{name} lacks {', '.join(sorted(lacking))}"
        elif mode["available"] != (mode["reason"] is None):
            yield f"modes.{name} must have a reason if it is not available, and only then. Received: {mode['reason']!r}"
    for name, option in found["options"].items():
        if lacking := {"values", "default", "help"} - option.keys():
            yield f"options.{name} lacks {', '.join(sorted(lacking))}"
        elif option["default"] not in option["values"]:
            yield f"options.{name} has a default that is none of its values. Received: {option['default']!r}"
    named = {condition for option in found["options"].values() for condition in option.get("sets", {})}
    if lacking := [condition for condition in CONDITIONS if condition not in named]:
        yield f"options must have a switch whose `sets` names {' and '.join(lacking)}. Received: {sorted(named)}"


def check(trial: Trial) -> Faults:
    yield from description_faults(trial.description, contestants.named(trial.name).twin)
