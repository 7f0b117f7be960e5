"""Trees of files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write `files` below `folder`, and return it. Folders are made as they are needed.

    Args:
        folder: where the tree stands.
        files: content by path. Text and bytes are written as they are. An array of uint8, [H, W] or [H, W, C], becomes an
            image of the path's kind. Another value becomes JSON, or YAML where the path ends so. None becomes a folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
        match content:
            case None:
                pass
            case bytes():
                path.write_bytes(content)
            case str():
                path.write_text(content, encoding="utf-8")
            case np.ndarray():
                Image.fromarray(content).save(path)
            case _ if path.suffix in (".yaml", ".yml"):
                path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
            case _:
                path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def read(folder: Path) -> dict[str, bytes]:
    """The content of each file below `folder`, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
