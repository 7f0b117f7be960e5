"""38 plant diseases with ResNet18: preprocessing, loader workers, DataParallel and a search by Optuna, in PyTorch alone."""

from __future__ import annotations

import csv
import statistics as python_statistics
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from common.artifacts.schema import RunResult
from common.data import sources
from common.machine import machine
from common.training.loop import relative_difference
from compare.core import statistics, wording
from compare.core.statistics import Judged, Ratio
from compare.data import preprocess
from compare.data.data_report import counted
from compare.evaluation.final_training import Evaluation
from compare.execution import launch, store
from compare.judgement.summary import DISTURBED_FROM, cores_lost
from compare.papers import judging
from compare.papers.paper import (
    CORRECTED,
    FAILED,
    FOLDER,
    SCALES,
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
    beyond,
    epoch_axes,
    not_at,
    read,
    sentence,
    there,
)
from compare.proof import ladder
from compare.reporting.tables import Cell, Column, Table
from compare.tuning import tuning_findings
from compare.tuning.tuner import Tuning

NAME = "plant-disease-resnet18"
FRAMEWORKS = ("pytorch",)
EMBEDDED = "leaves:classes=4,images=200,size=64"
WANTED = Wanted(
    names=("plant-disease", "new-plant-diseases-dataset"),
    what="the New Plant Diseases data set (augmented), 87,867 JPEG images of 256x256 (about 1.5 GB) in train/<class>/ and "
    "valid/<class>/ for 38 classes, as a folder or an archive of these two folders",
)
_FAITHFUL = "faithful"
_FRAMEWORK = "pytorch"
_CORES = 4
"""Of the report's machine."""
_PIXELS = 256
_GPUS = 2
_GAIN = 1.05
"""Speed-up from which more workers count as a gain, whether it is shown or ruled out."""
_WITH_ALL_ROWS = "quick"
"""The smallest scale with every number of workers and jobs."""
_WARNING = "suggested max number of worker"
"""Of torch's DataLoader, where there are more workers than cores."""

_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "image_size": 32, "limit": 128, "epochs": 1, "workers": (2,), "repeats": 1, "scan_workers": (1,),
        "scan_limit": 128, "scans": 1,
        "corrected_limit": 64, "corrected_epochs": 1, "seeds": 1,
        "trials": 2, "jobs": (1, 2), "tuning_epochs": 1, "final": 1,
    },
    "quick": {
        "image_size": 64, "limit": 320, "epochs": 2, "workers": (2, 4, 8), "repeats": 5, "scan_workers": (1, 2, 4, 8),
        "scan_limit": 3000, "scans": 5, "corrected_limit": 192, "corrected_epochs": 2, "seeds": 5,
        "trials": 8, "jobs": (1, 2, 4, 8), "tuning_epochs": 1, "final": 6,
    },
    "full": {
        "image_size": 256, "limit": None, "epochs": 5, "workers": (2, 4, 8), "repeats": 5, "scan_workers": (1, 2, 4, 8),
        "scan_limit": None, "scans": 5, "corrected_limit": None, "corrected_epochs": 5, "seeds": 5,
        "trials": 8, "jobs": (1, 2, 4, 8), "tuning_epochs": 5, "final": 20,
    },
}  # fmt: skip
_SPACE: dict[str, Any] = {
    "optimizer.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "schedule.step_size": {"low": 1, "high": 5},
    "optimizer.weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
    "optimizer.momentum": {"low": 0.5, "high": 0.99},
}


class _Workers(Frozen):
    seconds: float
    speedup: float


class _Parallel(Frozen):
    gpus: int
    seconds: float
    speedup: float
    best_validation_accuracy: float
    max_gpu_memory_mb: float


class _Serial(Frozen):
    seconds: float
    best_validation_accuracy: float
    max_gpu_memory_mb: float


class _Trained(Frozen):
    serial: _Serial
    loader_workers: dict[int, _Workers]
    data_parallel: dict[int, _Parallel]


class _Searched(Frozen):
    searched: list[str]
    jobs: dict[int, tuple[float, float]]


class _Final(Frozen):
    train_accuracy: float
    validation_accuracy: float
    test_accuracy: float
    reported: list[str]


_SHOWN = 10
"""Classes that a note names."""
_UNSCORED = "the final training failed here"
_BY_CLASS = [Column("class", "class")]

_Curve = dict[int, tuple[float, float, float, float, float]]
"""Epoch: train loss, train accuracy, valid loss, valid accuracy, seconds."""


class _PlantDisease(Published):
    split: dict[str, int]
    cpu: str
    gpu: str
    preprocessing: dict[str, dict[int, tuple[float, float]]]
    training: _Trained
    epochs_serial: _Curve
    epochs_data_parallel_2_gpus: _Curve
    tuning: _Searched
    final: _Final


class _Class(Frozen):
    name: str
    images: int
    precision: float
    recall: float
    f1: float
    support: int


@cache
def _file() -> _PlantDisease:
    return read(NAME, _PlantDisease)


@cache
def _classes() -> list[_Class]:
    with (FOLDER / "plant-disease-classes.csv").open(encoding="utf-8", newline="") as file:
        return [
            _Class(
                name=row["class"],
                images=int(row["images_published"]),
                precision=float(row["precision"]),
                recall=float(row["recall"]),
                f1=float(row["f1"]),
                support=int(row["support"]),
            )
            for row in csv.DictReader(file)
        ]


def published() -> Published:
    return _file()


def images() -> int:
    return _file().split["train"]


def knows(class_name: str) -> bool:
    return any(class_name.startswith(each.name) for each in _classes())


def hardware() -> str:
    return f"{_file().cpu}; {_file().gpu}"


def _worker_row(workers: int) -> str:
    return f"workers-{workers}"


def plan(setting: Setting) -> Plan:
    size = _SCALES[setting.scale]
    test = _file().split["test"] / (_file().split["train"] + _file().split["test"])
    shared: dict[str, Any] = {
        "model": _file().model,
        "data.image_size": size["image_size"],
        "data.limit": size["limit"],
        "data.drawn_part": test,
        "data.duplicates": "allow",
        "data.normalization": "dataset",
        "optimizer.name": "sgd",
        "optimizer.learning_rate": 0.01,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 1e-4,
        "schedule.name": "step",
        "schedule.step_size": 3,
        "schedule.gamma": 0.1,
        "global_batch_size": 64,
    }
    as_it_was = {**shared, "optimizer.native": True, "data.loading": "streaming", "epochs": size["epochs"]}
    rows = [setting.row("serial", _FRAMEWORK, as_it_was)]
    rows += [
        setting.row(_worker_row(count), _FRAMEWORK, {**as_it_was, "input": "workers", "workers": count})
        for count in size["workers"]
    ]
    if setting.gpus >= _GPUS:
        rows.append(setting.row("data_parallel", _FRAMEWORK, {**as_it_was, "mode": "data_parallel", "replicas": _GPUS}))
    corrected = setting.corrected(
        {**shared, "data.limit": size["corrected_limit"], "epochs": size["corrected_epochs"]},
        frameworks=tuple(launch.FRAMEWORKS),
        seeds=size["seeds"],
        prove=setting.scale != SMOKE,
    )
    scan = setting.row("scan", _FRAMEWORK, {**shared, "data.limit": size["scan_limit"], "data.normalization": "none"}).spec
    trials = setting.overlaid({**shared, "epochs": size["tuning_epochs"]})
    tuning = Tuning(
        values=trials,
        space=_SPACE,
        space_name=NAME,
        trials=size["trials"],
        jobs=size["jobs"],
        frameworks=(_FRAMEWORK,),
        repeats=5 if setting.scale == "full" else 1,
    )
    final = setting.overlaid({**shared, "epochs": size["final"]})

    def finally_trained(best: dict[str, dict[str, Any]]) -> Evaluation:
        return Evaluation(values=final, frameworks=(_FRAMEWORK,), tuned=best, repeats=1, scores_validation=True)

    ranges = "; ".join(f"{field} {each['low']:g} to {each['high']:g}" for field, each in _SPACE.items())
    scaled: list[str] = []
    first = rows[0].spec
    if first.data.limit is not None:
        scaled.append(
            f"Images of {first.data.image_size} px and {counted(first.epochs or 0, 'epoch')}, in place of {_PIXELS} px and "
            f"{len(_file().epochs_serial)} epochs."
        )
    return Plan(
        faithful=[Training(_FAITHFUL, "Serial, loader workers, DataParallel", rows, repeats=size["repeats"])],
        corrected=corrected,
        chosen=[
            "Training from scratch, as the accuracy of the first epoch says.",
            "SGD at a learning rate of 0.01, momentum 0.9, weight decay 1e-4, batches of 64.",
            "The learning rate falls to a tenth every 3 epochs, as the leap at epoch 4 of the published curve says.",
            "No augmentation; mean and standard deviation of the data set.",
            f"Test images: {test:.1%} of the training images, drawn, where the data have none of their own, as the download.",
            "Initial weights: Kaiming's, as torchvision's ResNet has them, with seed 0; the images shuffled anew in each "
            "epoch, and decoded from their files in each.",
            "Scans: of the training split alone; Dask with threads; from the first task to the last, without the start of the "
            "workers, which stands in a column of its own.",
            "The search: of the least validation loss; its trials and the final training keep their images decoded in memory, "
            "and have the suite's own SGD, which is torch's rule.",
            f"The ranges of the search: {ranges}.",
            f"Epochs of a trial: {size['tuning_epochs']}; of the final training: {size['final']}.",
        ],
        departs=[
            *scaled,
            f"The report trained on a {_file().gpu}, searched on an A100, and had 4 CPU cores; here are "
            f"{machine.available_cores()} cores and {setting.gpus or 'no'} GPU{'' if setting.gpus == 1 else 's'}.",
        ],
        scans=preprocess.Request(("dask", "pytorch"), size["scan_workers"], "threads", size["scans"], scan),
        tuning=tuning,
        final=finally_trained,
    )


def tables(here: Here) -> list[Table]:
    return [
        _counts(here),
        _preprocessing(here),
        _training(here),
        *(_curve_table(here, *each) for each in _curves()),
        _tuning_table(here),
        _final_table(here),
        _report_table(here),
        _checks(),
    ]


def _counts(here: Here) -> Table:
    base = here.plan.base
    whole = sources.load_files(
        base.data.model_copy(update={"limit": None}), seed=base.split_seed, cache_dir=base.paths.cache_dir
    )
    counts = np.bincount(whole.train.labels, minlength=len(whole.class_names))
    found = dict(zip(whole.class_names, counts.tolist(), strict=True))
    rows: list[tuple[dict[str, Cell], dict[str, Compared], str | None]] = [
        (
            {"class": each.name},
            {"images": Compared(each.images, found.get(_folder(each.name, found)))},
            "not a class of the data here",
        )
        for each in _classes()
    ]
    known = {_folder(each.name, found) for each in _classes()}
    others = [name for name in found if name not in known]
    shown = ", ".join(others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
    note = "Of the training split."
    if others:
        note += f" {counted(len(others), 'class', 'classes')} here that the report does not have: {shown}."
    return beside("class_counts", "Images of each class", _BY_CLASS, [Kind("images", "images", 0)], rows, note=note)


def _folder(name: str, names: Iterable[str]) -> str:
    """The name of a report's class here. The report truncates the longest name."""
    longer = [each for each in names if each.startswith(name)]
    return longer[0] if len(longer) == 1 else name


def _scan(here: Here, engine: str, workers: int) -> dict[str, Any] | None:
    found = [row for row in here.scans or [] if (row["engine"], row["workers"]) == (engine, workers)]
    return found[0] if found and found[0]["status"] == "ok" else None


def _preprocessing(here: Here) -> Table:
    rows: list[tuple[dict[str, Cell], dict[str, Compared], str | None]] = []
    for engine, by_workers in _file().preprocessing.items():
        for workers, (seconds, speedup) in by_workers.items():
            row = _scan(here, engine, workers)
            images = sum(_file().split.values())
            figures = {
                "seconds": Compared(seconds, row["seconds"] * images / row["images"] if row else None, _same_size(here)),
                "speedup": Compared(speedup, row["speedup"] if row else None),
            }
            rows.append(({"engine": engine, "workers": workers}, figures, _not_at(here)))
    labels = [Column("engine", "engine"), Column("workers", "workers")]
    kinds = [Kind("seconds", "seconds", 1), Kind("speedup", "speed-up", 2)]
    note = f"Seconds here: of the report's {sum(_file().split.values()):,} images, at the pace of those read{_of_size(here)}."
    return beside("preprocessing", "Mean and standard deviation", labels, kinds, rows, note=note)


def _training(here: Here) -> Table:
    published = _file().training
    names: dict[str, tuple[float, float]] = {"serial": (published.serial.seconds, 1.0)}
    names |= {_worker_row(count): (each.seconds, each.speedup) for count, each in published.loader_workers.items()}
    names["data_parallel"] = (published.data_parallel[_GPUS].seconds, published.data_parallel[_GPUS].speedup)
    accuracy = {"serial": published.serial.best_validation_accuracy}
    accuracy["data_parallel"] = published.data_parallel[_GPUS].best_validation_accuracy
    memory = {"serial": published.serial.max_gpu_memory_mb, "data_parallel": published.data_parallel[_GPUS].max_gpu_memory_mb}
    images, epochs = _file().split["train"], len(_file().epochs_serial)
    rows: list[tuple[dict[str, Cell], dict[str, Compared], str | None]] = []
    for name, (seconds, speedup) in names.items():
        epoch = here.epoch_seconds(_FAITHFUL, name, images)
        ratio = judging.paired(here, _FAITHFUL, "serial", name)
        summary = here.summary(_FAITHFUL, name)
        scored = [each.validation_accuracy for each in summary.epochs if each.validation_accuracy] if summary else []
        figures = {
            "seconds": Compared(seconds, epoch * epochs if epoch else None, _same_size(here)),
            "speedup": Compared(speedup, 1.0 if name == "serial" and epoch else ratio.value if ratio else None),
            "accuracy": Compared(accuracy.get(name), max(scored, default=None) if name in accuracy else None),
            "memory": Compared(memory.get(name), summary.device_peak_memory_mib if summary and name in memory else None),
        }
        needs = "no GPU here" if name == "serial" and epoch and not here.setting.gpus else _not_at(here)
        rows.append(({"run": name}, figures, _needs_gpus(here) if name == "data_parallel" else needs))
    kinds = [
        Kind("seconds", "seconds", 1),
        Kind("speedup", "speed-up", 3),
        Kind("accuracy", "best validation accuracy", 4),
        Kind("memory", "GPU memory MB", 0),
    ]
    note = (
        f"Seconds here: of {epochs} epochs of the report's {images:,} images, at the pace that was measured{_of_size(here)}. "
        "Memory here: in MiB."
    )
    if doubt := judging.doubt(here, _FAITHFUL, list(names)):
        note += f" Of some of these runs: {doubt[:1].lower()}{doubt[1:]}"
    return beside("training", "Loader workers and DataParallel", [Column("run", "run")], kinds, rows, note=note)


def _curves() -> list[tuple[str, str, _Curve]]:
    return [
        ("serial", "Epochs, serial", _file().epochs_serial),
        ("data_parallel", "Epochs, DataParallel on two GPUs", _file().epochs_data_parallel_2_gpus),
    ]


def _curve_table(here: Here, name: str, title: str, curve: _Curve) -> Table:
    found = {each.epoch: each for each in run.epochs} if (run := _first(here, name)) else {}
    rows: list[tuple[dict[str, Cell], dict[str, Compared], str | None]] = []
    for epoch, (train_loss, train_accuracy, valid_loss, valid_accuracy, seconds) in curve.items():
        record = found.get(epoch)
        train, valid = (record.train, record.validation) if record else (None, None)
        pace = record.seconds * _file().split["train"] / record.epoch_images if record and record.timed_images else None
        figures = {
            "train_loss": Compared(train_loss, train.loss if train else None),
            "train_accuracy": Compared(train_accuracy, train.accuracy if train else None),
            "valid_loss": Compared(valid_loss, valid.loss if valid else None),
            "valid_accuracy": Compared(valid_accuracy, valid.accuracy if valid else None),
            "seconds": Compared(seconds, pace, _same_size(here)),
        }
        needs = _needs_gpus(here, epoch) if name == "data_parallel" and not found else beyond(NAME, here.setting, len(found))
        rows.append(({"epoch": epoch}, figures, needs))
    kinds = [
        Kind("train_loss", "train loss", 4),
        Kind("train_accuracy", "train acc.", 4),
        Kind("valid_loss", "valid. loss", 4),
        Kind("valid_accuracy", "valid. acc.", 4),
        Kind("seconds", "seconds", 1),
    ]
    note = f"Seconds here: of an epoch of the report's images, at the pace that was measured{_of_size(here)}."
    return beside(f"epochs_{name}", title, [Column("epoch", "epoch")], kinds, rows, note=note)


def _same_size(here: Here) -> bool:
    return here.plan.base.data.image_size == _PIXELS


def _of_size(here: Here) -> str:
    return "" if _same_size(here) else f", of {here.plan.base.data.image_size} px: no ratio to those of {_PIXELS} px"


def _first(here: Here, row: str) -> RunResult | None:
    return next(iter(here.runs(_FAITHFUL, row).values()), None)


def _tuning_table(here: Here) -> Table:
    searches = [search for search in here.tuned.searches if search.done] if here.tuned else []
    took = {
        jobs: python_statistics.median(search.seconds for search in searches if search.jobs == jobs)
        for jobs in {search.jobs for search in searches}
    }
    alone = took.get(1)
    rows: list[tuple[dict[str, Cell], dict[str, Compared], str | None]] = []
    for jobs, (seconds, speedup) in _file().tuning.jobs.items():
        here_took = took.get(jobs)
        gain = alone / here_took if alone and here_took else None
        figures = {"seconds": Compared(seconds, here_took, alike=False), "speedup": Compared(speedup, gain)}
        rows.append(({"jobs": jobs}, figures, _not_at(here)))
    return beside(
        "tuning",
        "Optuna, trials side by side",
        [Column("jobs", "jobs")],
        [Kind("seconds", "seconds", 1), Kind("speedup", "speed-up", 2)],
        rows,
        note="Seconds here: of this scale's images and epochs of a trial, median over repeats; no ratio, for how long the "
        "report's trials are it does not state.",
    )


def _final_table(here: Here) -> Table:
    model = next(iter(here.evaluated.models), None) if here.evaluated else None
    kept = here.final_epoch
    found = {
        "train": kept.train.accuracy if kept and kept.train else None,
        "validation": model.validation.accuracy if model and model.validation else None,
        "test": model.scores.accuracy if model and model.scores else None,
    }
    paper = {
        "train": _file().final.train_accuracy,
        "validation": _file().final.validation_accuracy,
        "test": _file().final.test_accuracy,
    }
    rows: list[tuple[dict[str, Cell], dict[str, Compared], str | None]] = [
        ({"split": split}, {"accuracy": Compared(paper[split], found[split])}, _UNSCORED) for split in paper
    ]
    note = "Here: of the best validation epoch; training accuracy is counted while that epoch trains."
    return beside(
        "final", "Tuned and trained finally", [Column("split", "split")], [Kind("accuracy", "accuracy", 4)], rows, note=note
    )


def _report_table(here: Here) -> Table:
    made = here.evaluated
    scores = made.models[0].validation_scores if made and made.models else None
    found = dict(zip(made.class_names, scores.classes, strict=True)) if made and scores else {}
    rows: list[tuple[dict[str, Cell], dict[str, Compared], str | None]] = []
    for each in _classes():
        own = found.get(_folder(each.name, found))
        figures = {
            "precision": Compared(each.precision, own.precision if own else None),
            "recall": Compared(each.recall, own.recall if own else None),
            "f1": Compared(each.f1, own.f1 if own else None),
            "support": Compared(each.support, own.support if own else None, alike=False),
        }
        rows.append(({"class": each.name}, figures, "not a class of the data here" if scores else _UNSCORED))
    note = (
        "Both of the validation split: the sum of the paper's supports says so, though it calls them a test's. That split "
        "chose the hyperparameters, here also the epoch, so these scores flatter."
    )
    kinds = [Kind("precision", "precision", 2), Kind("recall", "recall", 2), Kind("f1", "F1", 2), Kind("support", "support", 0)]
    return beside("class_report", "Scores of each class", _BY_CLASS, kinds, rows, note=note)


def _checks() -> Table:
    file = _file()
    checks: list[tuple[str, float, float, int]] = []
    for engine, by_workers in file.preprocessing.items():
        alone = by_workers[1][0]
        checks += [(f"{engine} x{count}, speed-up", gain, alone / seconds, 2) for count, (seconds, gain) in by_workers.items()]
    serial = file.training.serial.seconds
    checks += [(f"{count} loader workers, speed-up", each.speedup, serial / each.seconds, 4)
               for count, each in file.training.loader_workers.items()]  # fmt: skip
    checks += [(f"{count} GPUs, speed-up", each.speedup, serial / each.seconds, 4)
               for count, each in file.training.data_parallel.items()]  # fmt: skip
    alone = file.tuning.jobs[1][0]
    checks += [(f"{jobs} jobs, speed-up", gain, alone / seconds, 4) for jobs, (seconds, gain) in file.tuning.jobs.items()]
    checks += [
        ("training images, against the sum of the classes", file.split["train"], sum(each.images for each in _classes()), 0),
        ("test images, against the supports of the report", file.split["test"], sum(each.support for each in _classes()), 0),
        ("seconds of serial training, against its epochs", serial, sum(each[4] for each in file.epochs_serial.values()), 0),
    ]
    return arithmetic(NAME, checks)


def _needs_gpus(here: Here, epoch: int = 1) -> str:
    if here.setting.gpus < _GPUS:
        scale = next(each for each in (here.setting.scale, SCALES[-1]) if epoch <= _SCALES[each]["epochs"])
        return there(NAME, here.setting, _GPUS, scale=scale)
    return FAILED


def _not_at(here: Here) -> str:
    return not_at(NAME, here.setting, f"not run at scale {here.setting.scale}, or failed", filled_at=_WITH_ALL_ROWS)


def claims(here: Here) -> list[Claim]:
    said = _file().claims
    judged = {
        "loaders_scale_better": _loaders_scale_better,
        "workers_beyond_cores": _workers_beyond_cores,
        "two_gpus_gain_less": _two_gpus_gain_less,
        "threaded_tuning": _threaded_tuning,
        "workers_keep_losses": _workers_keep_losses,
        "data_parallel_changes_losses": _data_parallel_changes_losses,
    }
    return [Claim(name, text, *judged[name](here)) for name, text in said.items()]


def _loaders_scale_better(here: Here) -> tuple[Verdict, list[str]]:
    most = max((row["workers"] for row in here.scans or []), default=1)
    rows = {(engine, workers): _scan(here, engine, workers) for engine in ("dask", "pytorch") for workers in (1, most)}
    if not all(rows.values()):
        return "cannot be told here", ["The scans were not all made."]
    if most == 1:
        return "cannot be told here", ["No scan was made by more than one worker."]
    seconds = {key: [scan["seconds"] for scan in row["scans"]] for key, row in rows.items() if row}
    gains = {
        engine: [a / b for a, b in zip(seconds[engine, 1], seconds[engine, most], strict=True)]
        for engine in ("dask", "pytorch")
    }
    ratio = statistics.paired_ratio(list(zip(gains["pytorch"], gains["dask"], strict=True)))
    medians = ", ".join(f"{engine} {python_statistics.median(each):.2f} times" for engine, each in gains.items())
    judged = statistics.verdicts([("gain", ratio)])[0] if ratio else None
    verdict, words = judging.above(judged, f"the gain of PyTorch over the gain of Dask, {most} workers against 1")
    own = statistics.paired_ratio(list(zip(seconds["pytorch", 1], seconds["pytorch", most], strict=True)))
    cores = machine.available_cores()
    paces = [f"{engine} x1 {python_statistics.median(seconds[engine, 1]):.2f} s" for engine in gains]
    known = machine.describe()
    lost = max(
        cores_lost(scan["cores_of_others"], min(row["workers"], cores), known)
        for row in rows.values()
        if row
        for scan in row["scans"]
    )
    tasks = min(row["tasks"] for row in rows.values() if row)
    untold = [
        *([f"It needs the {_CORES} cores of the report: here are {cores}."] if cores < _CORES else []),
        *([f"No more than {tasks} of the {most} workers had work: there are no more tasks."] if tasks < most else []),
        *([f"Other work took up to {lost:.2f} cores from a scan."] if lost > DISTURBED_FROM else []),
        *(["What PyTorch gains by itself is not shown."] if verdict == "reproduced" and not _surely_gains(own) else []),
    ]
    return "cannot be told here" if untold else verdict, [
        *untold,
        f"With {most} workers on {wording.count(cores, 'core')}: {medians}; the report had 4 cores.",
        sentence(words),
        f"What scales from a slower start gains more: {', '.join(paces)}.",
    ]


def _surely_gains(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.decided and (ratio.low or 0.0) > 1.0


def _workers_beyond_cores(here: Here) -> tuple[Verdict, list[str]]:
    cores = machine.available_cores()
    counts = sorted(row.spec.workers for row in here.plan.faithful[0].rows if row.spec.workers)
    within, beyond_them = [each for each in counts if each <= cores], [each for each in counts if each > cores]
    if not within or not beyond_them:
        return "cannot be told here", [f"There are no runs with workers up to and beyond the {cores} cores here."]
    base = _worker_row(within[-1])
    run = [count for count in beyond_them if here.runs(_FAITHFUL, _worker_row(count))]
    ratios = {count: ratio for count in run if (ratio := judging.paired(here, _FAITHFUL, base, _worker_row(count)))}
    held = [(f"{count}", statistics.relative_to(ratio, _GAIN)) for count, ratio in ratios.items()]
    judged = dict(zip(ratios, statistics.verdicts(held), strict=True))
    verdicts: list[Verdict] = []
    evidence: list[str] = []
    within_gains = judging.paired(here, _FAITHFUL, "serial", base)
    if within_gains:
        evidence.append(f"{within[-1]} workers: {statistics.interval_words(within_gains)} times as fast as serial.")
    for count in beyond_them:
        verdict, words = judging.undisturbed(
            here, _FAITHFUL, (base, _worker_row(count)), _no_gain(ratios.get(count), judged.get(count))
        )
        verdicts.append(verdict)
        evidence.append(f"{count} workers against {within[-1]} on {wording.count(cores, 'core')}: {words}.")
    silent = [count for count in run if not _warned(here, _worker_row(count))]
    if run:
        evidence.append(
            f"PyTorch did not warn of it in the runs with {', '.join(map(str, silent))} workers."
            if silent
            else f"PyTorch warned of it in the runs with {', '.join(map(str, run))} workers."
        )
    if silent:
        return "not reproduced", evidence
    if within[-1] < cores:  # a gain up to there shows nothing about more workers than cores
        return "cannot be told here", [*evidence, f"There are no runs with as many workers as the {cores} cores here."]
    if "not reproduced" in verdicts:
        return "not reproduced", evidence
    if run and not _surely_gains(within_gains):
        unbound = "No gain is shown of workers up to the cores either, so that it is not the input that these runs wait for."
        return "cannot be told here", [*evidence, unbound]
    return ("reproduced" if set(verdicts) == {"reproduced"} else "cannot be told here"), evidence


def _no_gain(ratio: Ratio | None, judged: Judged | None) -> tuple[Verdict, str]:
    """More workers compared with as many as cores. `judged` compares that ratio with _GAIN."""
    if ratio is None or judged is None:
        return "cannot be told here", "not measured"
    said = f"{statistics.interval_words(ratio)} times as fast"
    if not ratio.decided or ratio.high is None:
        return "cannot be told here", f"{said}; too few repeats to tell"
    least = f"{100 * (_GAIN - 1):.0f} %"
    if ratio.high < _GAIN:
        return "reproduced", f"{said}: a gain of {least} is ruled out"
    if judged.verdict == "above":
        return "not reproduced", f"{said}: they gain more than {least}{statistics.surety(judged)}"
    return "cannot be told here", f"{said}: neither a gain of {least} nor its absence is shown"


def _warned(here: Here, row: str) -> bool:
    folder = here.folders[_FAITHFUL]
    logs = (store.run_folder(folder, row, repeat) / store.LOG_FILE for repeat in here.runs(_FAITHFUL, row))
    return any(_WARNING in log.read_text("utf-8", errors="replace") for log in logs if log.exists())


def _two_gpus_gain_less(here: Here) -> tuple[Verdict, list[str]]:
    ratios = {row.id: judging.paired(here, _FAITHFUL, "serial", row.id) for row in here.plan.faithful[0].rows[1:]}
    known = {name: ratio for name, ratio in ratios.items() if ratio}
    evidence = [f"{name}: {statistics.interval_words(ratio)} times as fast as serial." for name, ratio in known.items()]
    if doubt := judging.doubt(here, _FAITHFUL, ("serial", *known)):
        evidence.append(doubt)
    parallel = known.get("data_parallel")
    if parallel is None:
        words = judging.above(
            judging.speedup(here, CORRECTED, judging.pair(here, _FRAMEWORK)[0]), "replicas on CPU cores over serial on as many"
        )[1]
        missing = "It was not run, or failed" if here.setting.gpus >= _GPUS else f"It needs {_GPUS} GPUs"
        return "cannot be told here", [f"{missing}.", *evidence, sentence(words)]
    if doubt:
        return "cannot be told here", evidence
    others = [ratio for name, ratio in known.items() if name != "data_parallel"]
    if not others or not all(ratio.decided for ratio in (*others, parallel)):
        return "cannot be told here", [*evidence, "There are too few repeats to tell."]
    best = max(others, key=lambda ratio: ratio.value)
    return judging.gains_more(best, parallel), evidence


def _threaded_tuning(here: Here) -> tuple[Verdict, list[str]]:
    if here.tuned is None:
        return "cannot be told here", ["Nothing was searched."]
    most = max(_file().tuning.jobs)
    stated = _file().tuning.jobs[most][1]
    cores = machine.available_cores()
    gains = {gain.jobs: gain.seconds for gain in tuning_findings.find(here.tuned).gains if gain.seconds}
    evidence = [
        f"{jobs} jobs: {statistics.interval_words(each.ratio)} times as fast as 1{statistics.surety(each)}."
        for jobs, each in gains.items()
    ]
    if cores < most and not here.setting.gpus:
        return "cannot be told here", [
            f"{most} jobs need {most} cores, or a GPU that is idle otherwise: here are {cores}.",
            *evidence,
        ]
    found = gains.get(most)
    if found is None or not found.ratio.decided or found.ratio.low is None or found.ratio.high is None:
        return "cannot be told here", [*evidence, "There are too few repeats to tell."]
    if disturbed := tuning_findings.disturbed(here.tuned):
        return "cannot be told here", [*evidence, f"Other work disturbed {counted(len(disturbed), 'search', 'searches')}."]
    evidence.append("The report searched on one A100-80GB beside an AMD EPYC 7543: another machine may gain otherwise.")
    if found.verdict == "above" and found.ratio.low <= stated <= found.ratio.high:
        return "reproduced", [*evidence, f"That holds the {stated:g} times."]
    if found.verdict == "below":
        return "not reproduced", evidence
    shown = "A gain, but not the" if found.verdict == "above" else "It does not tell a gain of the"
    return "cannot be told here", [*evidence, f"{shown} {stated:g} times."]


def _losses(here: Here, training: str, row: str) -> dict[int, list[float]]:
    """Repeat: the training loss of each epoch."""
    return {
        repeat: [epoch.train.loss for epoch in run.epochs if epoch.train] for repeat, run in here.runs(training, row).items()
    }


def _first_loss(here: Here, training: str, row: str) -> dict[int, list[float]]:
    """Repeat: the loss of the first step, which is one number."""
    runs = here.runs(training, row).items()
    return {repeat: [run.first_step_loss] for repeat, run in runs if run.first_step_loss is not None}


def _gaps(serial: dict[int, list[float]], other: dict[int, list[float]]) -> dict[int, list[float]]:
    """Repeat: relative differences of the losses, one by one; of repeats that both have."""
    found = {
        repeat: [relative_difference(a, b) for a, b in zip(serial[repeat], losses, strict=False)]
        for repeat, losses in other.items()
        if repeat in serial
    }
    return {repeat: gaps for repeat, gaps in found.items() if gaps}


def _own_gap(serial: dict[int, list[float]]) -> float | None:
    """The largest relative difference among repeats of serial itself, which have one seed; None where there is one repeat."""
    first, *others = serial.values() if serial else ([],)
    return max((relative_difference(a, b) for other in others for a, b in zip(first, other, strict=False)), default=None)


def _workers_keep_losses(here: Here) -> tuple[Verdict, list[str]]:
    serial = _losses(here, _FAITHFUL, "serial")
    names = [row.id for row in here.plan.faithful[0].rows if row.spec.workers]
    gaps = [gap for name in names for each in _gaps(serial, _losses(here, _FAITHFUL, name)).values() for gap in each]
    if not gaps:
        return "cannot be told here", ["The runs were not all made."]
    said = f"{counted(len(gaps), 'training loss', 'training losses')} of epochs with workers, held against serial's: "
    missing = [name for name in names if not here.runs(_FAITHFUL, name)]
    if not any(gaps):
        if missing:
            return "cannot be told here", [f"{said}all the same number. There is no run of {', '.join(missing)}."]
        return "reproduced", [f"{said}all the same number."]
    own = _own_gap(serial)
    evidence = [f"{said}the largest relative difference is {max(gaps):.1e}."]
    if own == 0.0:
        return "not reproduced", [*evidence, "Repeats of serial have all the same losses."]
    known = "there is one repeat of serial" if own is None else f"repeats of serial differ by up to {own:.1e} among themselves"
    return "cannot be told here", [*evidence, sentence(f"{known}: this device may not repeat itself")]


def _data_parallel_changes_losses(here: Here) -> tuple[Verdict, list[str]]:
    faithful = any(row.spec.mode == "data_parallel" for row in here.plan.faithful[0].rows)
    training, parallel, alone = (
        (_FAITHFUL, "data_parallel", "serial") if faithful else (CORRECTED, *judging.pair(here, _FRAMEWORK))
    )
    serial = _first_loss(here, training, alone)
    first = [gap for each in _gaps(serial, _first_loss(here, training, parallel)).values() for gap in each]
    later = _gaps(_losses(here, training, alone), _losses(here, training, parallel))
    gaps = [gap for each in later.values() for gap in each]
    if not first or not gaps:
        return "cannot be told here", ["The runs were not all made."]
    if not faithful and (unsound := judging.unsound(here)):
        return "cannot be told here", [unsound]
    summary = here.summary(training, parallel)
    how = summary.implementation if summary else None
    evidence = [
        f"{counted(len(gaps), 'training loss', 'training losses')} of epochs ({how or 'two replicas'}), held against serial's: "
        f"relative differences of {min(gaps):.1e} to {max(gaps):.1e}; of the first step, from equal weights: "
        f"{min(first):.1e} to {max(first):.1e}.",
        _of_batch_norm(here, training, parallel),
        *(
            []
            if faithful
            else [f"nn.DataParallel itself needs {_GPUS} GPUs: these replicas are its mathematics, not its speed."]
        ),
    ]
    noise = ladder.FIRST_FLOAT32_TOLERANCE
    if rounding := _rounding(here):
        noise = max(noise, judging.SURELY * rounding)
        evidence.append(
            f"Serial runs of the two frameworks, the same training but for rounding, differ by up to {rounding:.1e} in their "
            f"first step: more than {noise:.0e} counts as another curve."
        )
    if faithful and (own := _own_gap(serial)):
        evidence.append(f"Repeats of serial differ among themselves by up to {own:.1e}.")
        noise = max(noise, own)
    # # In the first step: later, the growth of rounding differences hides everything else.
    changed = [gap > noise for gap in first]
    if all(changed):
        return "reproduced", evidence
    return ("cannot be told here" if any(changed) else "not reproduced"), evidence


def _of_batch_norm(here: Here, training: str, row: str) -> str:
    specs = {(each.name, known.id): known.spec for each in (*here.plan.faithful, here.plan.corrected) for known in each.rows}
    if specs[training, row].batch_norm_statistics == "synchronised":
        return "BatchNorm is synchronised, as it was asked for here, and not in DataParallel: it is serial's mathematics."
    return (
        "Each replica normalises by the statistics of its own part of the batch, as DataParallel does: it is another function. "
        "With `--set batch_norm_statistics=synchronised` the modes that offer it are serial's mathematics."
    )


def _rounding(here: Here) -> float | None:
    """The largest relative difference of the first step's loss between the serial runs of the frameworks: the same training."""
    first, *others = (_first_loss(here, CORRECTED, judging.pair(here, framework)[1]) for framework in launch.FRAMEWORKS)
    return max((gaps[0] for other in others for gaps in _gaps(first, other).values()), default=None)


def draw(figure: Figure, here: Here) -> None:
    loss, accuracy = epoch_axes(figure)
    for number, (name, title, curve) in enumerate(_curves()):
        title = title.removeprefix("Epochs, ")
        run = _first(here, name)
        records = run.epochs if run else []
        for axis, which, values in (
            (loss, 2, [(each.epoch, each.validation.loss) for each in records if each.validation]),
            (accuracy, 3, [(each.epoch, each.validation.accuracy) for each in records if each.validation]),
        ):
            paper = [each[which] for each in curve.values()]
            axis.plot(list(curve), paper, color=f"C{number}", linestyle="--", alpha=0.6, label=f"{title}, paper")
            if values:
                epochs, found = zip(*values, strict=True)
                axis.plot(epochs, found, color=f"C{number}", marker="o", label=f"{title}, here")
    loss.set(ylabel="validation loss")
    accuracy.set(ylabel="validation accuracy", ylim=(0, 1))
    accuracy.legend(fontsize=8)
