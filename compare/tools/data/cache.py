"""`convtwins cache`: list the cache folder, and remove from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from common.data import cache
from common.data.cache_items import CacheItem, clear_items, list_items, prune_items
from compare.cli import commands, wording
from compare.reporting.document import Report
from compare.reporting.tables import Column, Table

DEFAULT_DAYS = 30.0


@commands.command()
def command(
    prune: Annotated[bool, typer.Option("--prune", help="Remove what was not used for long. Items in use stay.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all items that are not in use, also downloads.")] = False,
    older_than: Annotated[float, typer.Option(min=0, help="With --prune: days without use. 0 removes all.")] = DEFAULT_DAYS,
    cache_dir: Annotated[Path | None, typer.Option(help="The folder, if it is not the usual one.")] = None,
) -> Report:
    """List the cache folder, or remove items that were not used for long."""
    root = cache.folder(None if cache_dir is None else str(cache_dir))
    items = clear_items(root) if clear else prune_items(root, older_than) if prune else list_items(root)
    return report(root, items)


_COLUMNS = (
    Column("kind", "what"),
    Column("source", "source", fold=40, pick=lambda item: wording.one_line(item.source)),
    Column("detail", "detail", fold=30),
    Column("mib", "MiB", 1, pick=lambda item: item.num_bytes / 2**20),
    Column("used", "last used (UTC)", pick=lambda item: f"{datetime.fromtimestamp(item.last_used, UTC):%Y-%m-%d %H:%M}"),
    Column("status", "status"),
)


def report(root: Path, items: Sequence[CacheItem]) -> Report:
    """List the items, and the bytes that they take on the disk."""
    num_bytes = sum(item.num_bytes for item in items if item.status != "removed")
    removed_bytes = sum(item.num_bytes for item in items if item.status == "removed")
    removed = f", {removed_bytes / 2**20:,.1f} MiB removed" if removed_bytes else ""
    return Report(
        title="Cache",
        facts=[f"{root}: {num_bytes / 2**20:,.1f} MiB{removed}"],
        tables=[Table.from_items("cache", "Cache", _COLUMNS, items)] if items else [],
        elsewhere="--json",
        values={
            "cache_dir": str(root),
            "num_bytes": num_bytes,
            "removed_bytes": removed_bytes,
            "items": [
                {**asdict(item), "last_used": datetime.fromtimestamp(item.last_used, UTC).isoformat(timespec="seconds")}
                for item in items
            ],
        },
    )
