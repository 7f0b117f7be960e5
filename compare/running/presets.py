"""Named comparisons. Each is a small function that returns a complete one."""

from __future__ import annotations

import difflib

from common.spec import SpecError
from compare.running.comparison_settings import ComparisonSettings
from compare.statistics.statistics import VERDICT_PAIRS


def digits() -> ComparisonSettings:
    """Handwritten digits and a plain CNN: no download, a few minutes on two cores."""
    return ComparisonSettings(
        values={
            "model": "simple_cnn",
            "data": {"source": "digits"},
            "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
            "epochs": 3,
            "global_batch_size": 64,
        },
    )


def verdict() -> ComparisonSettings:
    """Digits again, with the fewest rows that tell both which framework is faster and whether going parallel pays."""
    return digits().updated(modes=("serial", "data_parallel"), one_core=False, repeats=VERDICT_PAIRS)


def cifar10_minixception() -> ComparisonSettings:
    """The published CIFAR-10 report: MiniXception, Adam, batch 64, here with every run on the same images."""
    return ComparisonSettings(
        values={
            "model": "mini_xception",
            "data": {"source": "cifar10"},
            "optimizer": {"name": "adam", "learning_rate": 1e-3},
            "epochs": 8,
            "global_batch_size": 64,
        },
    )


PRESETS = {"digits": digits, "verdict": verdict, "cifar10-minixception": cifar10_minixception}


def preset(name: str) -> ComparisonSettings:
    """Return a preset by its name."""
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise SpecError(f"preset is unknown. Received: {name!r}. Use one of {', '.join(PRESETS)}.{hint}")
    return PRESETS[name]()
