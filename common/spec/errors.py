"""Errors of a spec, and the words that its messages share."""

from __future__ import annotations

import difflib

from common.errors import UserError
from common.spec import written
from common.spec.written import Location

_LONGEST_VALUE = 200

FOREIGN_NAMES = {
    "lr": "optimizer.learning_rate",
    "learning_rate": "optimizer.learning_rate",
    "momentum": "optimizer.momentum",
    "eps": "optimizer.epsilon",
    "epsilon": "optimizer.epsilon",
    "wd": "optimizer.weight_decay",
    "weight_decay": "optimizer.weight_decay",
    "optim": "optimizer",
    "scheduler": "schedule",
    "lr_scheduler": "schedule",
    "warmup": "schedule.warmup_steps",
    "warmup_steps": "schedule.warmup_steps",
    "limit": "data.limit",
    "on_bad": "data.on_bad",
    "duplicates": "data.duplicates",
    "criterion": "loss",
    "bs": "global_batch_size",
    "batch_size": "global_batch_size",
    "train_batch_size": "global_batch_size",
    "accumulate_grad_batches": "accumulation",
    "gradient_accumulation_steps": "accumulation",
    "num_epochs": "epochs",
    "n_epochs": "epochs",
    "max_epochs": "epochs",
    "max_steps": "steps",
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "world_size": "replicas",
    "num_replicas": "replicas",
    "strategy": "mode",
    "dtype": "precision",
    "random_state": "seed",
    "random_seed": "seed",
    "num_threads": "cores",
    "arch": "model",
    "network": "model",
    "dataset": "data.source",
    "data_dir": "data.source",
    "image_size": "data.image_size",
    "img_size": "data.image_size",
    "target_size": "data.image_size",
    "input_shape": "data.image_size",
    "normalize": "data.normalization",
    "early_stopping": "best_epoch.patience",
    "patience": "best_epoch.patience",
    "hflip": "augmentation.horizontal_flip",
    "rotation_range": "augmentation.rotation_degrees",
}
"""Fields of the spec by the names that PyTorch, Lightning, Keras, scikit-learn and many scripts use."""


class SpecError(UserError, ValueError):
    """A spec was refused. The message names the field, the value received, and the fix."""


def alternatives(names: tuple[str, ...]) -> str:
    """Join names as in `a, b or c`."""
    if len(names) > 1:
        return " or ".join((", ".join(names[:-1]), names[-1]))
    return "".join(names) or "nothing: there is none"


def did_you_mean(name: str, names: tuple[str, ...], *, sentence: bool = False) -> str:
    """Return a question with the field that other frameworks give this name, else with the most similar one. Empty: none."""
    field = FOREIGN_NAMES.get(name.lower().replace("-", "_"), "")
    foreign = [
        candidate for candidate, part in ((field, field.partition(".")[0]), (field.rpartition(".")[2],) * 2) if part in names
    ]
    candidates = foreign or difflib.get_close_matches(name, names, n=1)
    if not candidates:
        return ""
    return f" Did you mean {candidates[0]}?" if sentence else f" (did you mean {candidates[0]}?)"


def format_value(value: object, location: Location = ()) -> str:
    """Format a received value for a message. A long one is cut.

    Args:
        location: the field that received it. A value of a file or a command line is shown as it stands there.
    """
    text = (written.find(location, value) if location else None) or repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
