"""The layouts that are planned: every mode with the numbers that a user could choose for it, as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from common import spec
from common.spec import VARIANTS, Spec, SpecError

MOST_INNER = 16
"""Replicas of a hybrid's copy. More would cut layers into slivers."""
MICRO_BATCHES = (2, 4, 8, 16)
EVERY_STEPS = (1, 10, 100, None)
"""Steps between two averages. None: one average an epoch."""


@dataclass(frozen=True)
class Layout:
    """One way to run a spec."""

    words: str
    run: Spec


def all_of(values: dict[str, Any], modes: Sequence[str], replicas: int) -> tuple[list[Layout], dict[str, str]]:
    """(layouts, why a mode has none) of some modes on so many replicas in all.

    Args:
        values: nested plain values of the spec.
        modes: of `spec.VARIANTS`. Serial is always there.
    """
    found, refused = [Layout("serial", spec.build(spec.with_variant(values, "serial", 1)))], dict[str, str]()
    for mode in modes:
        for words, fields, copies in _choices(mode, replicas) if mode != "serial" else ():
            try:
                run = spec.build(spec.with_variant(spec.overlay(values, fields), mode, copies))
            except SpecError as error:
                refused.setdefault(mode, str(error))
                continue
            if run.replicas != replicas:
                continue
            if "pipeline" in mode and run.micro_batches() != run.pipeline.micro_batches:
                continue  # it would be cut into fewer: that layout is listed itself
            found.append(Layout(f"{mode} x{replicas}{words}", run))
        if mode != "serial" and not any(each.run.variant == mode for each in found):
            refused.setdefault(mode, f"no layout of it has {replicas} replicas at batch {found[0].run.global_batch_size}")
    return found, refused


def _choices(mode: str, replicas: int) -> Iterator[tuple[str, dict[str, Any], int]]:
    """(words, fields, replicas as `with_variant` takes them) of each layout of a mode."""
    base = VARIANTS[mode][0]
    inner = [each for each in range(2, min(replicas // 2, MOST_INNER) + 1) if replicas % each == 0] if base == "hybrid" else [1]
    for degree in inner:
        degrees = {"hybrid.inner_replicas": degree} if base == "hybrid" else {}
        words, copies = (f" ({replicas // degree} copies)" if degrees else ""), replicas // degree
        if "pipeline" in mode:
            for number in MICRO_BATCHES:
                yield f"{words}, {number} micro-batches", degrees | {"pipeline.micro_batches": number}, copies
        elif mode == "model_averaging":
            for every in EVERY_STEPS:
                said = "every epoch" if every is None else "every step" if every == 1 else f"every {every} steps"
                yield f"{words}, {said}", degrees | {"averaging.every_steps": every}, copies
        else:
            yield words, degrees, copies
