"""Check of a twin's description of itself: `describe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.spec import MODES
from compare.conformance.trial import Faults, TwinUnderTest

FIELDS: dict[str, type] = {
    "framework": str, "versions": dict, "supported": dict, "libraries": dict, "devices": list, "modes": dict, "options": dict,
    "inputs": dict, "deterministic": bool, "formats": list,
}  # fmt: skip
"""Required fields of `describe` and their types, as `docs/a-new-twin.md` lists them."""
CONDITIONS = ("graph", "layout")
"""Conditions of a run that a switch must name."""
_MODE_KEYS = {"available", "reason", "max_replicas", "resource", "implementation", "mechanism", "batch_norm_statistics"}


def description_faults(description: Mapping[str, Any], framework: str) -> Faults:
    """Yield the faults of a twin's `describe`."""
    for name, kind in FIELDS.items():
        if not isinstance(description.get(name), kind):
            yield f"describe has no {name} of type {kind.__name__}. Received: {description.get(name)!r}"
            return
    if description["framework"] != framework:
        yield f"describe names another framework. Received: {description['framework']!r}, expected {framework!r}"
    if not description["versions"] or not all(isinstance(version, str) for version in description["versions"].values()):
        yield f"versions must name packages and their versions. Received: {description['versions']!r}"
    if not description["devices"] or any(device.keys() != {"name", "kind"} for device in description["devices"]):
        yield f"devices must have a name and a kind each. Received: {description['devices']!r}"
    if not all(isinstance(suffix, str) and suffix.startswith(".") for suffix in description["formats"]):
        yield f"formats must be suffixes that begin with a dot. Received: {description['formats']!r}"
    if not description["modes"].get("serial", {}).get("available"):
        yield "modes must have serial, and it must be available"
    for name, mode in description["modes"].items():
        if name not in MODES.names():
            yield f"modes names {name!r}, which is no mode. Use {', '.join(MODES.names())}"
        elif missing := _MODE_KEYS - mode.keys():
            yield f"modes.{name} lacks {', '.join(sorted(missing))}"
        elif mode["available"] != (mode["reason"] is None):
            yield f"modes.{name} must have a reason if it is not available, and only then. Received: {mode['reason']!r}"
    for name, option in description["options"].items():
        if missing := {"values", "default", "help"} - option.keys():
            yield f"options.{name} lacks {', '.join(sorted(missing))}"
        elif option["default"] not in option["values"]:
            yield f"options.{name} has a default that is none of its values. Received: {option['default']!r}"
    named_conditions = {condition for option in description["options"].values() for condition in option.get("sets", {})}
    if missing := [condition for condition in CONDITIONS if condition not in named_conditions]:
        yield f"options must have a switch whose `sets` names {' and '.join(missing)}. Received: {sorted(named_conditions)}"


def check(trial: TwinUnderTest) -> Faults:
    yield from description_faults(trial.description, trial.contestant.twin)
