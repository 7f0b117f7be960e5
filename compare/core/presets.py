"""Named comparisons. Each is a small function that returns a complete one."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from typing import Any

from common.spec import SpecError
from compare.core.statistics import VERDICT_PAIRS
from compare.core.until_decided import UntilDecided


@dataclass(frozen=True)
class Preset:
    """Spec values, and the settings of the matrix. The command line overrides both."""

    values: dict[str, Any] = field(default_factory=dict[str, Any])
    modes: tuple[str, ...] = ("serial", "data_parallel", "multi_process")
    replicas: int = 2
    one_core: bool = True
    """Whether serial also runs on one core, as the baseline of the speed-up. False: it runs on the cores of the parallel modes
    only."""
    repeats: int = 1
    workers: tuple[int, ...] = ()
    """Numbers of input workers, each with its own rows. Empty: the number in the values."""
    levels: tuple[str, ...] = ()
    """Levels of switches, each with its own rows. Empty: the level in the values."""
    seeds: tuple[int, ...] = ()
    """Seeds of the repeats, in a cycle. Empty: all repeats have the seed in the values."""
    until: UntilDecided | None = None
    """Stopping rule for repeats. None: exactly `repeats` are made."""
    stated_settings: tuple[str, ...] = ()
    """Names among `modes`, `one_core` and `repeats` that a spec file sets. A command with other defaults uses them for the
    rest."""
    contestants: dict[str, Any] = field(default_factory=dict[str, Any])
    """Contestants by name, as the spec file has them."""


def digits() -> Preset:
    """Handwritten digits and a plain CNN: no download, a few minutes on two cores."""
    return Preset(
        values={
            "model": "simple_cnn",
            "data": {"source": "digits"},
            "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
            "epochs": 3,
            "global_batch_size": 64,
        },
    )


def verdict() -> Preset:
    """Digits again, with the fewest rows that tell both which framework is faster and whether going parallel pays."""
    return replace(digits(), modes=("serial", "data_parallel"), one_core=False, repeats=VERDICT_PAIRS)


def cifar10_minixception() -> Preset:
    """The published CIFAR-10 report: MiniXception, Adam, batch 64, here with every run on the same images."""
    return Preset(
        values={
            "model": "mini_xception",
            "data": {"source": "cifar10"},
            "optimizer": {"name": "adam", "learning_rate": 1e-3},
            "epochs": 8,
            "global_batch_size": 64,
        },
    )


PRESETS = {"digits": digits, "verdict": verdict, "cifar10-minixception": cifar10_minixception}


def preset(name: str) -> Preset:
    """Return a preset by its name."""
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise SpecError(f"preset is unknown. Received: {name!r}. Use one of {', '.join(PRESETS)}.{hint}")
    return PRESETS[name]()
