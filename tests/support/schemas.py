"""Holds what is written against the JSON Schemas of the tool `schema`."""

import importlib
from typing import Any

from compare.cli import tools


def faults(which: str, values: Any) -> list[str]:
    """Fields that a schema lacks, or that it requires and the values lack. Empty where the tool `schema` was taken away.

    Args:
        which: name of the schema.
        values: the values, as JSON gives them.
    """
    if (module := tools.commands().get("schema")) is None:
        return []
    schema = importlib.import_module(module).schemas()[which]
    first = values[0] if "items" in schema else values
    required = (schema["$defs"]["HistoryPoint"] if "items" in schema else schema)["required"]
    return unknown(values, schema, schema) + sorted(set(required) - first.keys())


def unknown(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "") -> list[str]:
    """Fields that a closed object of the schema does not know."""
    options = [schema, *schema.get("anyOf", [])]
    options = [root["$defs"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each for each in options]
    if isinstance(value, list):
        items = next((each["items"] for each in options if isinstance(each.get("items"), dict)), {})
        return [fault for each in value for fault in unknown(each, items, root, f"{path}[]")]
    known = next((each for each in options if "properties" in each), None)
    if not isinstance(value, dict) or known is None:
        return []
    faults = [f"{path}.{name}" for name in value if name not in known["properties"]]
    return faults + [
        fault
        for name, each in value.items()
        if name in known["properties"]
        for fault in unknown(each, known["properties"][name], root, f"{path}.{name}")
    ]
