"""Enumerates the layouts to plan: every mode with each setting that a user could choose for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from common import spec
from common.spec import MODES, Mode, Spec, SpecError

MAX_INNER_REPLICAS = 16
"""Largest number of replicas that share one copy of a hybrid's model. More would cut layers too small."""
MICRO_BATCHES = (2, 4, 8, 16)
SERIAL_WORDS = "serial"
"""Words of the layout that all others are compared with: serial on the cores of one device."""
EVERY_STEPS = (1, 10, 100, None)
"""Steps between two averages. None: one average an epoch."""


@dataclass(frozen=True)
class PlannedLayout:
    """One way to run a spec."""

    words: str
    run: Spec


def enumerate_layouts(
    values: dict[str, Any], modes: Sequence[str], replicas: int
) -> tuple[list[PlannedLayout], dict[str, str]]:
    """Return (layouts, reasons why a mode has none) of some modes on a total number of replicas.

    Args:
        values: nested plain values of the spec.
        modes: words of `spec.MODES`. Serial is always included.
    """
    layouts, refusals = [PlannedLayout(SERIAL_WORDS, spec.build(spec.with_variant(values, "serial", 1)))], dict[str, str]()
    for mode in modes:
        traits = MODES[mode]
        for words, fields, copies in _choices(traits, replicas) if traits.is_parallel else ():
            try:
                run = spec.build(spec.with_variant(spec.overlay(values, fields), mode, copies))
            except SpecError as error:
                refusals.setdefault(mode, str(error))
                continue
            if run.replicas != replicas:
                continue
            if traits.cuts_batches and run.micro_batches() != run.pipeline.micro_batches:
                continue  # it would be cut into fewer: that layout is listed itself
            layouts.append(PlannedLayout(f"{mode} x{replicas}{words}", run))
        if traits.is_parallel and not any(layout.run.variant == mode for layout in layouts):
            refusals.setdefault(mode, f"no layout of it has {replicas} replicas at batch {layouts[0].run.global_batch_size}")
    return layouts, refusals


def _choices(mode: Mode, replicas: int) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield (words, fields, replicas as `with_variant` takes them) of each layout of a mode."""
    inner = (
        [number for number in range(2, min(replicas // 2, MAX_INNER_REPLICAS) + 1) if replicas % number == 0]
        if mode.is_nested
        else [1]
    )
    for degree in inner:
        degrees = {"hybrid.inner_replicas": degree} if mode.is_nested else {}
        words, copies = (f" ({replicas // degree} copies)" if degrees else ""), replicas // degree
        if mode.cuts_batches:
            for number in MICRO_BATCHES:
                yield f"{words}, {number} micro-batches", degrees | {"pipeline.micro_batches": number}, copies
        elif mode.trains_apart:
            for every in EVERY_STEPS:
                interval = "every epoch" if every is None else "every step" if every == 1 else f"every {every} steps"
                yield f"{words}, {interval}", degrees | {"averaging.every_steps": every}, copies
        else:
            yield words, degrees, copies
