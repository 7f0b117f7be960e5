"""A spec from a file or from the words of a command line."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

from common.machine import machine
from common.machine.plain_file import PlainFileError
from common.spec import plain_values, written
from common.spec.errors import SpecError, format_value
from common.spec.modes import MODES
from common.spec.plain_values import MAX_DEPTH, MalformedError, PlainValuesError
from common.spec.schema import build


def read_values(path: str | Path, kind: str = "spec file") -> dict[str, Any]:
    """Read the plain values of a file of fields. They are not validated yet, so that the command line can add to them.

    Args:
        path: a YAML or JSON file.
        kind: what the file is, for the errors.
    """
    path = Path(path)
    try:
        text = plain_values.read_text(path)
        if not text.strip("\ufeff \t\r\n"):  # as a full disk or a broken copy leaves it
            raise SpecError(f"{kind} {path} is empty. Use `field: value` lines.")
        # YAML is a superset of JSON but for tabs and long keys; read each by its own rules.
        values = plain_values.from_json(text) if path.suffix == ".json" else plain_values.from_yaml(text)
    except FileNotFoundError:
        raise SpecError(f"{kind} cannot be read: there is no file {path}. Name a .yaml or .json file that exists.") from None
    except PlainFileError as error:
        raise SpecError(f"{kind} cannot be read: {error}. Name a .yaml or .json file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{kind} cannot be read. Received: {path} ({error}). Use a .yaml or .json file.") from None
    except PlainValuesError as error:
        form = path.suffix.lstrip(".") or "YAML"
        fault = f"is not valid {form}" if isinstance(error, MalformedError) else "is not accepted"
        raise SpecError(f"{kind} {path} {fault}: {error}. Mend the file.") from None
    written.remember(text)
    if values is None:  # comments, or `null`
        values = {}
    if not isinstance(values, dict):
        raise SpecError(
            f"{kind} {path} must hold a mapping of fields. Received: {type(values).__name__}. Use `field: value` lines."
        )
    return cast(dict[str, Any], values)


def overlay(values: dict[str, Any], assignments: dict[str, Any]) -> dict[str, Any]:
    """Set dotted fields, e.g. {"optimizer.learning_rate": 0.01}, over nested values."""
    merged = copy.deepcopy(values)
    for dotted, value in assignments.items():
        *parents, leaf = dotted.split(".")
        if len(parents) >= MAX_DEPTH:
            raise SpecError(f"A field has at most {MAX_DEPTH} parts. Received: {len(parents) + 1} in {dotted[:80]!r}...")
        target = merged
        for depth, parent in enumerate(parents, start=1):
            if target.get(parent) is None:  # missing, or an empty group of a YAML file
                target[parent] = {}
            target = target[parent]
            if not isinstance(target, dict):
                received = format_value(target, parents[:depth])
                raise SpecError(f"{dotted} cannot be set: {parent} is not a group of fields. Received: {received}.")
        target[leaf] = value
    return merged


def with_variant(values: dict[str, Any], variant: str, replicas: int) -> dict[str, Any]:
    """Return nested plain values, set to a variant of `--modes`.

    Args:
        variant: a key of MODES.
        replicas: replicas of a parallel mode; of a hybrid, copies of the model.
    """
    mode = MODES[variant]
    fields = dict([mode.chosen_by] if mode.chosen_by else []) | dict(mode.resets)
    values = overlay(values, {"mode": mode.name, "replicas": replicas if mode.is_parallel else 1, **fields})
    if not mode.is_parallel and values.get("hosts"):
        local_cores, cores = machine.available_cores(), values.get("cores") or machine.available_cores()
        values |= {"hosts": (), "cores": min(cores, local_cores) if isinstance(cores, int) else cores}
    if not mode.is_elastic:
        values.pop("least_replicas", None)
    if mode.is_nested:
        values["replicas"] = replicas * build({"hybrid": values["hybrid"]}).hybrid.inner_replicas
    return values


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """Parse `field=value` words of the command line. Values are YAML, so true and null are no strings.

    YAML 1.1 takes 1e-3 for a string; a field that is a number reads it as one all the same.
    """
    parsed: dict[str, Any] = {}
    for assignment in assignments:
        field, equals, text = assignment.partition("=")
        if not equals or not field:
            raise SpecError(f"--set takes field=value. Received: {assignment!r}. Use e.g. --set optimizer.learning_rate=0.01.")
        try:
            parsed[field] = plain_values.from_yaml(text)
            written.remember(text, field)
        except PlainValuesError as error:
            raise SpecError(
                f"--set {field} has a value that cannot be read. Received: {format_value(text)} ({error})."
            ) from None
    return parsed
