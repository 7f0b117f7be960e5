"""The order of runs that are compared: A B, then B A, and so on.

A machine that grows warmer or busier then favours neither side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def turn(items: Sequence[_Item], repeat: int) -> Sequence[_Item]:
    """Return the items in their order for one repeat: forward in even repeats, backward in odd ones."""
    return items if repeat % 2 == 0 else items[::-1]
