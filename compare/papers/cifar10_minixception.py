"""CIFAR-10 with MiniXception: Keras serially, PyTorch with loader workers, TensorFlow with MirroredStrategy and Dask arrays."""

from __future__ import annotations

from functools import cache
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from common.data.sources import cifar10
from compare.data.data_report import counted
from compare.execution import launch
from compare.papers import judging
from compare.papers.paper import (
    CORRECTED,
    Claim,
    Compared,
    Frozen,
    Here,
    Kind,
    Plan,
    Published,
    Setting,
    Training,
    Verdict,
    Wanted,
    arithmetic,
    beside,
    beyond,
    epoch_axes,
    read,
    sentence,
)
from compare.reporting.tables import Column, Table

NAME = "cifar10-minixception"
FRAMEWORKS = tuple(launch.FRAMEWORKS)
EMBEDDED = "digits"
WANTED = Wanted(
    names=("cifar-10-binary", "cifar-10-python", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar10"),
    what="CIFAR-10: cifar-10-binary.tar.gz or cifar-10-python.tar.gz (170 MB) from https://www.cs.toronto.edu/~kriz/cifar.html "
    "as it comes, or an image folder train/<class>/<image> and test/<class>/<image>, also inside an archive",
)

SEQUENTIAL, PYTORCH, MIRRORED = "sequential", "pytorch_cuda_workers", "tensorflow_mirrored_dask"
_IMAGES = {SEQUENTIAL: 50_000, PYTORCH: 50_000, MIRRORED: 40_000}
"""That each of the report's runs trained on."""
_TABLE = {SEQUENTIAL: 1, PYTORCH: 2, MIRRORED: 3}
_WORDS = {
    SEQUENTIAL: "Keras, sequential",
    PYTORCH: "PyTorch, loader workers",
    MIRRORED: "TensorFlow, MirroredStrategy and Dask",
}
_WORKERS = 4
_LEAST = 0.0002
"""Training images used for validation: one of each class. The report kept none."""

_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "limit": 96, "epochs": 1, "workers": 1,
        "corrected_limit": 128, "corrected_epochs": 1, "seeds": 1, "prove": False,
    },
    "quick": {
        "limit": 1000, "epochs": 3, "workers": _WORKERS,
        "corrected_limit": 1000, "corrected_epochs": 4, "seeds": 5, "prove": True,
    },
    "full": {
        "limit": None, "epochs": 20, "workers": _WORKERS,
        "corrected_limit": None, "corrected_epochs": 20, "seeds": 5, "prove": True,
    },
}  # fmt: skip


class _Run(Frozen):
    id: str
    framework: str
    mode: str
    batch_size: int
    input: str
    split: str | None = None
    epochs: dict[int, tuple[float, float]]
    """Epoch: training accuracy, seconds."""


class _Cifar10(Published):
    optimizer: dict[str, Any]
    loss: str
    runs: list[_Run]
    printed: dict[str, int]


@cache
def _file() -> _Cifar10:
    return read(NAME, _Cifar10)


def published() -> Published:
    return _file()


def images() -> int:
    return _IMAGES[SEQUENTIAL]


def knows(class_name: str) -> bool:
    return class_name in cifar10.CLASS_NAMES


def hardware() -> str:
    return "an unknown CPU for the sequential run, one unknown GPU for the two others"


def plan(setting: Setting) -> Plan:
    size = _SCALES[setting.scale]
    shared: dict[str, Any] = {
        "data.image_size": 32,
        "data.duplicates": "allow",
        "optimizer.name": "adam",
        "optimizer.learning_rate": _file().optimizer["learning_rate"],
    }
    own: dict[str, dict[str, Any]] = {
        SEQUENTIAL: {
            "model": "common.published.keras_mini_xception",
            "optimizer.epsilon": 1e-7,
            "data.drawn_part": _LEAST,
            "device": "cpu",
        },
        PYTORCH: {
            "model": "common.published.pytorch_mini_xception",
            "data.normalization": "half",
            "data.drawn_part": _LEAST,
            "input": "workers",
            "workers": size["workers"],
        },
        MIRRORED: {
            "model": "common.published.keras_mini_xception",
            "optimizer.epsilon": 1e-7,
            "data.drawn_part": 0.2,
            "data.seed": 42,
        },
    }
    faithful = [
        Training(
            run.id,
            _WORDS[run.id],
            [
                setting.row(
                    run.id,
                    run.framework,
                    {
                        **shared,
                        **own[run.id],
                        "data.limit": size["limit"],
                        "optimizer.native": True,
                        "global_batch_size": run.batch_size,
                        "epochs": min(size["epochs"], len(run.epochs)),
                    },
                )
            ],
        )
        for run in _file().runs
    ]
    corrected = setting.corrected(
        {
            **shared,
            "model": _file().model,
            "data.limit": size["corrected_limit"],
            "global_batch_size": 32,  # that of two of the three runs
            "epochs": size["corrected_epochs"],
        },
        frameworks=tuple(launch.FRAMEWORKS),
        seeds=size["seeds"],
        prove=size["prove"],
    )
    scaled: list[str] = []
    most = max(each.rows[0].spec.epochs or 0 for each in faithful)
    if most < max(len(run.epochs) for run in _file().runs):
        scaled.append(f"{sentence(counted(most, 'epoch'))[:-1]} in place of up to 20.")
    fewer = f" ({size['workers']} at this scale)" if size["workers"] < _WORKERS else ""
    return Plan(
        faithful=faithful,
        corrected=corrected,
        chosen=[
            "Initial weights: the defaults, as the notebooks state none (Glorot in Keras, Kaiming with a = sqrt(5) "
            "in PyTorch); the seed: 0, and 42 for the split of the third run, which is stated.",
            "Order of the images: shuffled anew in each epoch.",
            "Validation of the first two runs, which had none: one image of each class is kept apart for it.",
        ],
        departs=[
            *scaled,
            "The second and third run say data parallel, and split nothing (see the caveats): here they are what they were: "
            f"serial runs on one device, the second with {_WORKERS} loader workers{fewer}. The Dask arrays of the third, "
            "which it handed to Keras' fit, became one array there: so they are here.",
            "The two TensorFlow runs were trained by Keras' fit, here by a loop of their own that trains the same "
            "(docs/measurements/modes.md has their paces). Keras' BatchNorm keeps the variance of a batch as it is, here it "
            "keeps the unbiased one, n / (n - 1) times as large.",
            "The report's sequential run was apparently on a CPU, as here, and its two parallel runs on a GPU, kind not stated"
            + (": so are these." if setting.gpus else "; here everything runs on the CPU."),
        ],
    )


def tables(here: Here) -> list[Table]:
    runs = {run.id: run for run in _file().runs}
    made: list[Table] = []
    for name, run in runs.items():
        found = _found(here, name)
        rows = [
            (
                {"epoch": epoch},
                {
                    "accuracy": Compared(accuracy, found.get(epoch, (None, None))[0]),
                    "seconds": Compared(seconds, found.get(epoch, (None, None))[1]),
                },
                beyond(NAME, here.setting, len(found)),
            )
            for epoch, (accuracy, seconds) in run.epochs.items()
        ]
        number = _TABLE[name]
        made.append(
            beside(
                f"table_{number}",
                f"Table {number}: {_WORDS[name]}",
                [Column("epoch", "epoch")],
                [Kind("accuracy", "training accuracy", 4), Kind("seconds", "seconds", 2)],
                rows,
                note=f"Seconds here: of an epoch of the report's {_IMAGES[name]:,} images, at the pace that was measured.",
            )
        )
    made += [_side_by_side(here, 4, "Accuracy side by side", 0, 4), _side_by_side(here, 5, "Seconds side by side", 1, 2)]
    epochs = ("epochs of the sequential run", _file().printed["epochs_of_sequential"], len(runs[SEQUENTIAL].epochs), 0)
    return [*made, arithmetic(NAME, [epochs])]


def _side_by_side(here: Here, number: int, title: str, which: int, digits: int) -> Table:
    runs = {run.id: run for run in _file().runs}
    found = {name: _found(here, name) for name in runs}
    rows = [
        (
            {"epoch": epoch},
            {
                name: Compared(run.epochs[epoch][which], found[name].get(epoch, (None, None))[which])
                for name, run in runs.items()
                if epoch in run.epochs
            },
            _open(here, {name: len(each) for name, each in found.items() if epoch in runs[name].epochs}, epoch),
        )
        for epoch in range(1, 1 + max(len(run.epochs) for run in runs.values()))
    ]
    kinds = [Kind(name, _WORDS[name], digits) for name in runs]
    return beside(f"table_{number}", f"Table {number}: {title}", [Column("epoch", "epoch")], kinds, rows)


def _open(here: Here, trained: dict[str, int], epoch: int) -> str:
    """Why cells of an epoch are open, for runs of so many epochs."""
    reasons = dict[str, list[str]]()
    for name, epochs in trained.items():
        if epochs < epoch:
            reasons.setdefault(beyond(NAME, here.setting, epochs), []).append(_WORDS[name])
    if len(reasons) == 1 and len(*reasons.values()) == len(trained):
        return next(iter(reasons))
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())


def _found(here: Here, name: str) -> dict[int, tuple[float | None, float | None]]:
    """Epoch: training accuracy, seconds of an epoch of the report's images; only epochs that were trained."""
    runs = list(here.runs(name, name).values())
    if not runs:
        return {}
    return {
        record.epoch: (
            record.train.accuracy if record.train else None,
            record.seconds * _IMAGES[name] / record.epoch_images if record.timed_images else None,
        )
        for record in runs[0].epochs
    }


def _ratios() -> tuple[float, float]:
    """Mean sequential seconds of an epoch divided by the fastest and the slowest epoch on a GPU."""
    runs = {run.id: [seconds for _, seconds in run.epochs.values()] for run in _file().runs}
    fast = runs[PYTORCH] + runs[MIRRORED]
    return mean(runs[SEQUENTIAL]) / min(fast), mean(runs[SEQUENTIAL]) / max(fast)


def claims(here: Here) -> list[Claim]:
    said = _file().claims
    judged = {"epoch_time": _epoch_time, "most_accurate": _most_accurate, "fastest": _fastest, "loses_none": _loses_none}
    return [Claim(name, said[name], *judge(here)) for name, judge in judged.items()]


def _epoch_time(here: Here) -> tuple[Verdict, list[str]]:
    most, least = _ratios()
    evidence = [f"Its tables give {least:.1f} to {most:.1f} times."]
    seconds = {name: here.epoch_seconds(name, name, _IMAGES[SEQUENTIAL]) for name in _IMAGES}
    known = {name: each for name, each in seconds.items() if each is not None}
    if known:
        words = ", ".join(f"{_WORDS[name]}: {each:.1f} s" for name, each in known.items())
        evidence.append(f"An epoch of 50,000 images here, at the pace of {here.setting.scale}: {words}.")
    evidence.append(
        "The report's sequential run was apparently on a CPU and the two others on a GPU, the second of other code and another "
        "network: the ratio is that of two machines, and none of anything that is parallel in the runs, which split nothing."
    )
    return "cannot be told here", [
        *evidence,
        "It takes the report's CPU and its GPU, and neither is named."
        + ("" if here.setting.gpus else " Here is no GPU beside the CPU either."),
    ]


def _at(epoch: int) -> dict[str, tuple[float, float]]:
    return {run.id: run.epochs[epoch] for run in _file().runs if epoch in run.epochs}


def _most_accurate(here: Here) -> tuple[Verdict, list[str]]:
    last = min(len(run.epochs) for run in _file().runs)
    at = _at(last)
    order = sorted(at, key=lambda name: -at[name][0])
    words = ", ".join(f"{_WORDS[name]} {at[name][0]:.4f}" for name in order)
    evidence = [f"Its table 4, training accuracy after {last} epochs, the last that all three have: {words}."]
    ends = {run.id: run.epochs[len(run.epochs)][0] for run in _file().runs}
    evidence.append(
        "Each at its own last epoch: " + ", ".join(f"{_WORDS[name]} {accuracy:.4f}" for name, accuracy in ends.items()) + "."
    )
    found = {name: rows[last] for name in at if last in (rows := _found(here, name))}
    if len(found) == len(at):
        evidence.append("Here: " + ", ".join(f"{_WORDS[name]} {accuracy:.4f}" for name, (accuracy, _) in found.items()) + ".")
    claimed = order[:2] == [SEQUENTIAL, PYTORCH] or sorted(ends, key=lambda name: -ends[name])[:2] == [SEQUENTIAL, PYTORCH]
    return ("cannot be told here" if claimed else "contradicted by the paper's own table"), [
        *evidence,
        "The networks, batches and numbers of images differ, and it is training accuracy: no order of them would say which "
        "framework is the more accurate.",
    ]


def _fastest(here: Here) -> tuple[Verdict, list[str]]:
    spans = {run.id: [seconds for _, seconds in run.epochs.values()] for run in _file().runs}
    words = ", ".join(
        f"{_WORDS[name]} {min(each):.1f} to {max(each):.1f} s (mean {mean(each):.1f})" for name, each in spans.items()
    )
    fastest = min(spans, key=lambda name: mean(spans[name]))
    per_image = {name: 1e3 * mean(each) / _IMAGES[name] for name, each in spans.items()}
    evidence = [
        f"Its table 5: {words}.",
        "By the images that each trains on: "
        + ", ".join(f"{_WORDS[name]} {each:.2f} ms an image" for name, each in per_image.items())
        + ": the third run's epochs are a fifth shorter.",
        *_framework_times(here),
    ]
    return ("cannot be told here" if fastest == MIRRORED else "contradicted by the paper's own table"), evidence


def _framework_times(here: Here) -> list[str]:
    report = here.trainings.get(CORRECTED)
    return [f"Identical models here: {sentence}" for sentence in report.findings.frameworks] if report else []


def _loses_none(here: Here) -> tuple[Verdict, list[str]]:
    pairs = [judging.pair(here, framework) for framework in launch.FRAMEWORKS]
    found = judging.differences(here, CORRECTED, pairs)
    judged = [judging.sound(here, judging.loses_none(found.get(pair))) for pair in pairs]
    verdicts = {verdict for verdict, _ in judged}
    evidence = ["Its own runs cannot show it: none of them splits anything.", *(sentence(words) for _, words in judged)]
    evidence.append(judging.budget(here, CORRECTED))
    if "not reproduced" in verdicts:
        return "not reproduced", evidence
    return ("reproduced" if verdicts == {"reproduced"} else "cannot be told here"), evidence


def draw(figure: Figure, here: Here) -> None:
    accuracy, seconds = epoch_axes(figure)
    for number, run in enumerate(_file().runs):
        colour, found = f"C{number}", _found(here, run.id)
        for axis, which in ((accuracy, 0), (seconds, 1)):
            axis.plot(list(run.epochs), [each[which] for each in run.epochs.values()], color=colour, linestyle="--", alpha=0.6)
            known = [(epoch, value) for epoch, each in found.items() if (value := each[which]) is not None]
            axis.plot(
                [epoch for epoch, _ in known], [value for _, value in known], color=colour, marker="o", label=_WORDS[run.id]
            )
    accuracy.set(ylabel="training accuracy", title="solid: here; dashed: the paper", ylim=(0, 1))
    seconds.set(ylabel="seconds of an epoch of the paper's images", yscale="log")
    accuracy.legend(fontsize=8)
