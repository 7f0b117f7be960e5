"""What the reports of all commands have alike: how they say where they were made, and their form as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from compare.core import wording
from compare.reporting import tables
from compare.reporting.tables import Table

TABLES_FOLDER, PLOTS_FOLDER = "tables", "plots"

_JSON: TypeAdapter[Any] = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="null"))


def ground(machine: Mapping[str, Any], versions: Mapping[str, Mapping[str, str]], *, cores: int | None = None) -> str:
    """`AMD EPYC 7B13, budget of 2 cores; torch 2.14.1, tensorflow 2.21.0`.

    Args:
        machine: as `machine.describe` has it.
        versions: of packages, by framework.
        cores: of the budget; None: nothing is said of one.
    """
    budget = "" if cores is None else f", budget of {wording.count(cores, 'core')}"
    packages = ", ".join(f"{package} {version}" for each in versions.values() for package, version in each.items())
    return f"{machine.get('processor') or 'unknown processor'}{budget}; {packages}"


def to_json(values: Mapping[str, Any]) -> str:
    """Nested plain values, and models of pydantic, as standard JSON, which has neither NaN nor infinity: they become null."""
    text = _JSON.dump_json(values, indent=1, ensure_ascii=True)
    if b"NaN" in text or b"Infinity" in text:  # models write these as they are told themselves
        text = _JSON.dump_json(_JSON.dump_python(values), indent=1, ensure_ascii=True)
    return text.decode()


def markdown(
    title: str,
    facts: Sequence[str],
    sections: Sequence[tuple[str, Sequence[str]]],
    documents: Sequence[Table],
    plot_names: Sequence[str] | None = None,
    end: Sequence[str] = (),
) -> str:
    """A report for a file beside the folder of its plots.

    Args:
        title: means itself, with no letter that Markdown takes for more.
        facts: a line each, under the title.
        sections: sentences under their headings.
        documents: all its tables.
        plot_names: of the files in PLOTS_FOLDER; None: it never has any.
        end: lines of Markdown behind all that.
    """
    lines = [f"# {title}", "", *(f"{tables.escaped(fact)}  " for fact in facts), ""]
    for heading, sentences in sections:
        lines += [f"## {heading}", "", *(f"- {tables.escaped(sentence)}" for sentence in sentences), ""]
    lines += ["## Tables", "", *map(tables.to_markdown, documents)]
    if plot_names is not None:
        lines += ["## Plots", "", *(f"![{name.replace('_', ' ')}]({PLOTS_FOLDER}/{name}.png)" for name in plot_names)]
    return "\n".join([*lines, *end]).rstrip() + "\n"
