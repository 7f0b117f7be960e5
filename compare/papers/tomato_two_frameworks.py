"""Tomato leaves with a simple CNN: PyTorch against TensorFlow, serially and in parallel."""

from __future__ import annotations

from functools import cache
from typing import Any

from matplotlib.figure import Figure

from common.machine import machine
from compare.core import statistics
from compare.data.data_report import counted
from compare.execution import launch
from compare.papers import judging
from compare.papers.paper import (
    CORRECTED,
    FAILED,
    SMOKE,
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
    epoch_axes,
    read,
    sentence,
    there,
)
from compare.reporting.tables import Column, Table

NAME = "tomato-two-frameworks"
FRAMEWORKS = tuple(launch.FRAMEWORKS)
EMBEDDED = "leaves:classes=10,images=400,size=64"
WANTED = Wanted(
    names=("tomato-leaf", "tomatoleaf", "tomato"),
    what="the tomato leaf images of the public download, 10,000 in train/<class>/ and 1,000 in val/<class>/ for 10 classes, "
    "JPEG of 256x256 (about 190 MB), as a folder or an archive of these two folders",
)
_FAITHFUL = "faithful"
_IMAGES = 10_000
"""That the report trained on."""
_PIXELS = 256
_REPLICAS = 2

_LEAST = 0.001
"""Of the training images for a test: one of each class."""

_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"image_size": 32, "limit": 160, "epochs": 1, "corrected_limit": 96, "corrected_epochs": 1, "seeds": 1},
    "quick": {"image_size": 64, "limit": 1200, "epochs": 5, "corrected_limit": 1200, "corrected_epochs": 4, "seeds": 5},
    "full": {"image_size": 256, "limit": None, "epochs": None, "corrected_limit": None, "corrected_epochs": None, "seeds": 5},
}


class _Run(Frozen):
    framework: str
    mode: str
    accuracy: float
    loss: float
    seconds: float

    @property
    def id(self) -> str:
        return f"{self.framework}-{self.mode}"


class _Tomato(Published):
    optimizer: str
    augmentation: list[str]
    schedule: str
    loss: str
    epochs: int
    hardware: str
    notes: str
    runs: list[_Run]
    printed: dict[str, dict[str, float]]


@cache
def _file() -> _Tomato:
    return read(NAME, _Tomato)


def published() -> Published:
    return _file()


def images() -> int:
    return _IMAGES


def knows(class_name: str) -> bool:
    return class_name.lower().startswith("tomato")


def hardware() -> str:
    return _file().hardware


def plan(setting: Setting) -> Plan:
    size = _SCALES[setting.scale]
    epochs = size["epochs"] or _file().epochs
    shared: dict[str, Any] = {
        "model": _file().model,
        "data.image_size": size["image_size"],
        "data.duplicates": "allow",
        "optimizer.name": "adam",
        "optimizer.learning_rate": 1e-3,
        "schedule.name": "exponential",
        "schedule.gamma": 0.96,
        "augmentation.horizontal_flip": True,
        "augmentation.shear_degrees": 0.2,
        "augmentation.zoom": 0.2,
        "global_batch_size": 32,
    }
    losses = {"pytorch": "categorical_crossentropy", "tensorflow": "sparse_categorical_crossentropy"}
    epsilons = {"pytorch": 1e-8, "tensorflow": 1e-7}  # the frameworks' own
    rows = [
        setting.row(
            run.id,
            run.framework,
            {
                **shared,
                "data.limit": size["limit"],
                "data.drawn_part": _LEAST,
                "data.seed": 0,
                "data.loading": "streaming",
                "optimizer.native": True,
                "optimizer.epsilon": epsilons[run.framework],
                "loss": losses[run.framework],
                "epochs": epochs,
                **(_parallel() if run.mode != "serial" else {}),
            },
        )
        for run in _file().runs
    ]
    corrected = setting.corrected(
        {
            **shared,
            "data.limit": size["corrected_limit"],
            "epochs": size["corrected_epochs"] or _file().epochs,
        },
        frameworks=tuple(launch.FRAMEWORKS),
        seeds=size["seeds"],
        prove=setting.scale != SMOKE,
    )
    scaled: list[str] = []
    first = rows[0].spec
    if first.data.limit is not None:
        scaled.append(
            f"Images of {first.data.image_size} px and {counted(first.epochs or 0, 'epoch')}, in place of {_PIXELS} px and "
            f"{_file().epochs} epochs."
        )
    devices = {
        0: f"The report's parallel runs were on several GPUs, here they are {_REPLICAS} replicas on CPU cores: their accuracy "
        "is that of the same mathematics, their time is not the report's question.",
        1: "There are no parallel runs: the report's were on several GPUs, and here is one.",
    }.get(setting.gpus, f"The parallel runs are on {_REPLICAS} GPUs.")
    return Plan(
        faithful=[
            Training(
                _FAITHFUL,
                "The four published runs",
                rows,
                repeats=size["seeds"],
                seeds=tuple(range(size["seeds"])),
                oversubscribe=True,
                replicas=_REPLICAS,
            )
        ],
        corrected=corrected,
        chosen=[
            "The network, whose layers are not listed: four 3x3 convolutions of 32, 64, 128 and 128 channels, each with ReLU "
            "and max-pooling, a dense layer of 128 with dropout, a dense layer of the classes.",
            "Adam, each framework's own, at a learning rate of 1e-3; a batch of 32; the exponential decay: by 0.96 an epoch.",
            "Augmentation: zoom 0.2, and the shear of 0.2 that goes with it in Keras' example, which is in degrees.",
            "Accuracy and loss: of the validation split, whose part in the report is not stated.",
            "How learning rates were adjusted for the parallel runs: they follow the number of replicas linearly.",
            "Images for a test, of which the report says nothing: where the data have none, one of each class of the training "
            "images.",
            f"Initial weights: the same in all four runs, of each of {counted(size['seeds'], 'seed')}: the report does not say "
            "that it repeated any.",
            "How images are fed: decoded and scaled from their files in each epoch, by the process that trains.",
            "The size of the images: as the files have it, 256 px, at full scale.",
        ],
        departs=[*scaled, devices],
    )


def _parallel() -> dict[str, Any]:
    cores = machine.available_cores()
    return {
        "mode": "data_parallel",
        "replicas": _REPLICAS,
        "cores": cores // _REPLICAS * _REPLICAS or cores,
        "schedule.scaling": "linear",
    }


def tables(here: Here) -> list[Table]:
    titles = {"accuracy": "Accuracy", "loss": "Loss", "seconds": f"Seconds for {_file().epochs} epochs"}
    made: list[Table] = []
    for number, (key, title) in zip(("I", "II", "III"), titles.items(), strict=True):
        rows = []
        alike = key != "seconds" or here.plan.base.data.image_size == _PIXELS
        for run in _file().runs:
            value, reason = _found(here, run, key)
            rows.append(
                ({"framework": run.framework, "mode": run.mode}, {key: Compared(getattr(run, key), value, alike)}, reason),
            )
        made.append(
            beside(
                f"table_{number}",
                f"Table {number}: {title}",
                [Column("framework", "framework"), Column("mode", "mode")],
                [Kind(key, title.lower(), 2 if key == "seconds" else 4)],
                rows,
                note=f"Here: of {_IMAGES:,} training images and {_file().epochs} epochs, at the pace that was measured, of "
                f"{here.plan.base.data.image_size} px{'' if alike else f': no ratio to those of {_PIXELS} px'}."
                if key == "seconds"
                else "Here: of the validation split, after the last epoch.",
            )
        )
    runs = {(run.framework, run.mode): run for run in _file().runs}
    checks: list[tuple[str, float, float, int]] = []
    for framework, lost in _file().printed["points_lost"].items():
        serial, parallel = runs[framework, "serial"], runs[framework, "data_parallel"]
        checks.append((f"points of accuracy that {framework} loses", lost, 100 * (serial.accuracy - parallel.accuracy), 1))
    return [*made, arithmetic(NAME, checks)]


def _found(here: Here, run: _Run, key: str) -> tuple[float | None, str | None]:
    """(the figure, why there is none)."""
    summary = here.summary(_FAITHFUL, run.id)
    needed = there(NAME, here.setting, _REPLICAS) if run.mode != "serial" and here.setting.gpus < _REPLICAS else None
    if summary is None:
        return None, needed if here.setting.gpus == 1 and needed else FAILED
    if key != "seconds":
        scores = summary.validation
        spread = scores.accuracy if key == "accuracy" else scores.loss
        return (spread.median, None) if spread else (None, "not scored")
    if needed:
        return None, needed
    epoch = here.epoch_seconds(_FAITHFUL, run.id, _IMAGES)
    return (epoch * _file().epochs if epoch else None), "too short to be timed"


def claims(here: Here) -> list[Claim]:
    said = _file().claims
    rows = {framework: judging.pair(here, framework) for framework in launch.FRAMEWORKS}
    serial = (rows["pytorch"][1], rows["tensorflow"][1])
    pairs = [serial, *((parallel, alone) for parallel, alone in rows.values())]
    found = judging.differences(here, CORRECTED, pairs)
    as_published = {framework: (f"{framework}-data_parallel", f"{framework}-serial") for framework in launch.FRAMEWORKS}
    published_serial = (as_published["pytorch"][1], as_published["tensorflow"][1])
    native = judging.differences(here, _FAITHFUL, [published_serial, *as_published.values()], "validation")
    judged: dict[str, tuple[Verdict, list[str]]] = {}

    time = judging.above(
        judging.framework_times(here, CORRECTED, *serial), "epoch seconds of serial TensorFlow over those of serial PyTorch"
    )
    verdict, words = judging.undisturbed(here, CORRECTED, serial, time)
    where = judging.of_devices(here.summary(CORRECTED, serial[0]))
    evidence = [sentence(f"{words}, {where}"), "The report's GPUs, its network and its batch are not stated."]
    if not here.setting.gpus:
        verdict, evidence = "cannot be told here", ["It needs a GPU: the report's runs were on such.", *evidence]
    judged["serial_time"] = verdict, evidence

    accuracies = {(run.framework, run.mode): run.accuracy for run in _file().runs}
    lead = 100 * (accuracies["pytorch", "serial"] - accuracies["tensorflow", "serial"])
    verdict, words = judging.sound(here, judging.more_accurate(found.get(serial), lead))
    was, said_then = judging.more_accurate(native.get(published_serial), lead)
    equal = "The proof says that both are the same training, so that nothing but rounding is left to tell them apart."
    report = here.trainings.get(CORRECTED)
    proof = report.stored.comparison.proof if report else None
    judged["serial_accuracy"] = (
        verdict if verdict == was else "cannot be told here",
        [
            sentence(f"As it was, each framework with its own Adam: {said_then}"),
            judging.budget(here, _FAITHFUL),
            sentence(f"Corrected: {words}"),
            judging.budget(here, CORRECTED),
            *([equal] if proof and proof.verdict == "proved" else []),
        ],
    )

    for framework, (parallel, alone) in rows.items():
        judged[f"parallel_time_{framework}"] = _faster(here, framework, parallel, alone)
        verdict, words = judging.loses(native.get(as_published[framework]), _file().printed["points_lost"][framework])
        alike = found.get((parallel, alone))
        judged[f"parallel_accuracy_{framework}"] = (
            verdict,
            [
                sentence(f"As it was, with a learning rate that follows the replicas: {words}"),
                judging.budget(here, _FAITHFUL),
                *([sentence(f"With one learning rate for both: {alike.words}")] if alike and not judging.unsound(here) else []),
                "The network has no BatchNorm, so that at the same learning rate parallel is serial's mathematics: what is "
                "lost is lost to the learning rate, which the report adjusted and does not state.",
            ],
        )
    judged["parallel_time_more"] = _more(here, rows)
    return [Claim(name, said[name], *judged[name]) for name in said]


def _faster(here: Here, framework: str, parallel: str, alone: str) -> tuple[Verdict, list[str]]:
    gain = judging.above(
        judging.speedup(here, CORRECTED, parallel), f"{framework} data_parallel x{_REPLICAS} over serial on the same cores"
    )
    verdict, words = judging.undisturbed(here, CORRECTED, (parallel, alone), gain)
    if here.setting.gpus < _REPLICAS:
        return "cannot be told here", [f"It needs {_REPLICAS} GPUs.", sentence(f"On CPU cores, {words}")]
    return verdict, [sentence(words)]


def _more(here: Here, rows: dict[str, tuple[str, str]]) -> tuple[Verdict, list[str]]:
    ratios = {framework: judging.speedup(here, CORRECTED, parallel) for framework, (parallel, _) in rows.items()}
    known = {framework: each.ratio for framework, each in ratios.items() if each}
    words = "; ".join(f"{framework} {statistics.interval_words(ratio)} times" for framework, ratio in known.items())
    times = {(run.framework, run.mode): run.seconds for run in _file().runs}
    stated = ", ".join(f"{each} {times[each, 'serial'] / times[each, 'data_parallel']:.2f}" for each in rows)
    doubt = judging.doubt(here, CORRECTED, [row for pair in rows.values() for row in pair])
    evidence = [
        sentence(f"speed-ups by its own Table III: {stated}"),
        sentence(f"speed-ups over serial on the same cores here: {words or 'not measured'}"),
        *([doubt] if doubt else []),
    ]
    if here.setting.gpus < _REPLICAS:
        return "cannot be told here", [f"It needs {_REPLICAS} GPUs.", *evidence]
    if len(known) < len(ratios) or any(not ratio.decided for ratio in known.values()):
        return "cannot be told here", [*evidence, "There are too few repeats to tell."]
    if doubt:
        return "cannot be told here", evidence
    return judging.gains_more(known["tensorflow"], known["pytorch"]), evidence


def draw(figure: Figure, here: Here) -> None:
    accuracy, loss = epoch_axes(figure)
    for number, run in enumerate(_file().runs):
        summary = here.summary(_FAITHFUL, run.id)
        known = summary.epochs if summary else []
        name = f"{run.framework} {run.mode}"
        for axis, end, values in (
            (accuracy, run.accuracy, [(each.epoch, each.validation_accuracy) for each in known]),
            (loss, run.loss, [(each.epoch, each.validation_loss) for each in known]),
        ):
            shown = [(epoch, value) for epoch, value in values if value is not None]
            axis.plot([epoch for epoch, _ in shown], [value for _, value in shown], color=f"C{number}", marker="o", label=name)
            axis.axhline(end, color=f"C{number}", linestyle="--", alpha=0.6)
    accuracy.set(ylabel="validation accuracy", ylim=(0, 1))
    accuracy.set_title(f"dashed: the paper after {_file().epochs} epochs")
    loss.set(ylabel="validation loss")
    accuracy.legend(fontsize=8)
