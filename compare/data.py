"""`python -m compare data`: what is in a data set, what is wrong with it, and how it looks."""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from common import datasets, results, spec
from common.datasets import DataRefused, Dataset, Manifest, leaves
from common.datasets.dataset import MAX_NAMED
from common.spec import SpecError
from compare import duplicates, sheet, store, tables
from compare.duplicates import NearTwins
from compare.progress import display
from compare.store import FolderError
from compare.tables import Cell, Column, Table

KIND = "data exploration"
SCHEMA_VERSION = 1
RESULTS_FILE, REPORT_FILE, COUNTS_FILE, FILES_FILE = "data.json", "report.md", "counts.csv", "files.csv"
SHEET_FILE, BALANCE_NAME = "sample_sheet.png", "class_balance"

EXIT_USAGE, EXIT_DATA_REFUSED, EXIT_INTERRUPTED = 2, 4, 130

_SPLITS = ("train", "validation", "test")
_FALLBACK_PX = 64
_OPTIONS = {"on_bad=skip": "--on-bad skip", "duplicates=allow": "--allow-duplicates", "image_size=64": "--image-size 64"}
_MAX_CLASSES_SHOWN = 60
_MAX_KINDS_SHOWN = 12
_NAME_END = 28  # characters
_WIDTH_WITHOUT_TERMINAL = 120


@dataclass(frozen=True, kw_only=True)
class ClassCount:
    name: str
    plant: str | None
    condition: str | None
    counts: dict[str, int]
    """Images in each split."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """Files alike in format, mode and size."""

    format: str
    mode: str
    width_px: int
    height_px: int
    files: int


@dataclass(frozen=True, kw_only=True)
class BadFile:
    path: str
    problem: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What the manifest says about a source's files."""

    files: int
    usable: int
    total_bytes: int
    median_bytes: int
    largest_bytes: int
    kinds: list[FileKind]
    """The most frequent first."""
    bad: list[BadFile]
    empty_class_folders: list[str]


@dataclass(frozen=True, kw_only=True)
class ExactDuplicates:
    groups: int
    """Sets of images that are equal pixel for pixel."""
    images: int
    """How many images stand in such a set."""
    groups_across_splits: int
    groups_across_classes: int
    named: list[list[str]]
    """Up to 20 of the sets, those across splits first, then those across classes."""


@dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    rule: str
    images: int
    pairs: int
    pairs_across_splits: int
    named: list[tuple[str, str, int]]
    """Up to 20 pairs and the bits in which they differ, those across splits first, then the nearest."""


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Everything that was found out about a data set."""

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    name: str
    source: str
    refusal: str | None
    """Why it cannot be trained on as it was asked for; None where it can."""
    image_size: int | None
    content_hash: str | None
    splits: dict[str, int]
    """Number of images in each."""
    classes: list[ClassCount]
    names_tell: bool
    """Whether class names name a plant and its condition."""
    files: FileFacts | None
    """None where the source holds no image files."""
    exact: ExactDuplicates
    near: NearDuplicates | None
    """None where the images could not be brought to one size."""
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 0 if self.refusal is None else EXIT_DATA_REFUSED


@dataclass(frozen=True, eq=False, kw_only=True)
class _Examples:
    """The images that are trained on and scored on, split after split."""

    names: list[str]
    digests: list[bytes]
    splits: NDArray[np.int64]
    """[N], places in split_names."""
    labels: NDArray[np.int64]
    split_names: tuple[str, ...]
    class_names: tuple[str, ...]


def command(
    data: Annotated[
        str, typer.Argument(help="digits, cifar10, fashion_mnist, leaves[:classes=..,images=..], an image folder or archive.")
    ],
    on_bad: Annotated[
        Literal["strict", "skip"], typer.Option(help="Refuse data with files that are no usable images, or leave these out.")
    ] = "strict",
    allow_duplicates: Annotated[bool, typer.Option("--allow-duplicates", help="Let splits share equal images.")] = False,
    limit: Annotated[int | None, typer.Option(help="Training examples to keep.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Resize images to this many pixels.")] = None,
    seed: Annotated[int, typer.Option(help="Of the splits that are drawn and of the limit.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the report, counts, files and plots.")] = None,
    write: Annotated[Path | None, typer.Option(help="With leaves: write them to this folder, and no more.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what is in a data set, what is wrong with it, and how it looks."""
    try:
        wanted = spec.build(
            {
                "seed": seed,
                "data": {
                    "source": data,
                    "on_bad": on_bad,
                    "duplicates": "allow" if allow_duplicates else "refuse",
                    "limit": limit,
                    "image_size": image_size,
                },
            }
        )
        code = _write_leaves(data, write) if write is not None else run(wanted, out, as_json=as_json)
    except (SpecError, FolderError) as error:
        typer.echo(str(error), err=True)
        code = EXIT_USAGE
    except DataRefused as error:
        typer.echo(str(error), err=True)
        code = EXIT_DATA_REFUSED
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    raise typer.Exit(code)


def run(wanted: spec.Spec, out: Path | None, *, as_json: bool) -> int:
    """Explore a data set, print what was found, and write it to a folder where one is given.

    Returns:
        The exit code: 0, or 4 where the data cannot be trained on as it was asked for.

    Raises:
        DataRefused: nothing at all can be said about it.
        FolderError: the folder holds something else, or cannot be written.
    """
    if out is not None:
        _refuse_other_folder(out)
    with display(Console(stderr=True)) as shown:
        shown.say("reading the data")
        exploration, dataset, manifest = explore(wanted.data, seed=wanted.seed, cache_dir=wanted.paths.cache_dir)
        if out is not None:
            shown.say("report")
            with store.locked(out):
                _write(out, exploration, dataset, manifest)
    if as_json:
        typer.echo(json.dumps(to_plain(exploration), indent=1))
    else:
        console = Console(highlight=False)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console = Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
        print_to(console, exploration)
        if out is not None:
            console.print(Text(f"Report: {out / REPORT_FILE}"), soft_wrap=True)
    if exploration.refusal is not None:
        typer.echo(exploration.refusal, err=True)
    return exploration.exit_code


def explore(data: spec.Data, *, seed: int, cache_dir: str | None = None) -> tuple[Exploration, Dataset | None, Manifest | None]:
    """Find out what is in a data set.

    Data that is refused is shown all the same: without its bad files, with its duplicates and, where its images are not
    square and of one size, at 64 pixels.

    Returns:
        (what was found, the images that are shown, the manifest); None where there are no such.

    Raises:
        DataRefused: there is no such data, or it is hostile or of another layout.
    """
    refusal: str | None = None
    dataset: Dataset | None = None
    try:
        dataset = datasets.load(data, seed=seed, cache_dir=cache_dir)
        manifest = dataset.manifest
    except DataRefused as error:
        refusal = _in_options(str(error))
        manifest = datasets.load_manifest(data, cache_dir=cache_dir)
        data = _lenient(data, manifest)
        try:
            dataset = datasets.load(data, seed=seed, cache_dir=cache_dir)
        except DataRefused:
            if manifest is None:
                raise
    if dataset is None:
        assert manifest is not None
        examples = _from_manifest(manifest)
    elif manifest is None:
        examples = _from_arrays(dataset)
    else:
        examples = _from_files(dataset, manifest, data, seed, cache_dir)
    near = _near(dataset, examples) if dataset is not None else None
    pairs = plants_and_conditions(examples.class_names)
    counts = _counts(examples)
    exploration = Exploration(
        name=dataset.name if dataset is not None else Path(data.source).name,
        source=data.source,
        refusal=refusal,
        image_size=dataset.image_size if dataset is not None else None,
        content_hash=dataset.content_hash if dataset is not None and refusal is None else None,
        splits={split: int(counts[place].sum()) for place, split in enumerate(examples.split_names)},
        classes=[
            ClassCount(
                name=name,
                plant=pairs[label][0] if pairs else None,
                condition=pairs[label][1] if pairs else None,
                counts=dict(zip(examples.split_names, counts[:, label].tolist(), strict=True)),
            )
            for label, name in enumerate(examples.class_names)
        ],
        names_tell=pairs is not None,
        files=_file_facts(manifest) if manifest is not None else None,
        exact=_exact(examples),
        near=near,
        notes=[*_leniency(refusal, dataset, data), *(dataset.notes if dataset is not None else ())],
    )
    return exploration, dataset, manifest


def plants_and_conditions(class_names: Sequence[str]) -> list[tuple[str, str]] | None:
    """What class names such as `Tomato___Late_blight` and `Tomato_healthy` tell: the plant and its condition.

    Each name is cut at its longest row of underscores. Names tell where all can be cut so and either all have three
    underscores or a plant comes up again or is healthy; `ankle_boot` and `t_shirt` do not.
    """
    pairs: list[tuple[str, str]] = []
    longest = 3
    for name in class_names:
        rows = [match for match in re.finditer("_+", name) if match.start() > 0 and match.end() < len(name)]
        if not rows:
            return None
        cut = max(rows, key=lambda match: match.end() - match.start())
        longest = min(longest, cut.end() - cut.start())
        pairs.append((_words(name[: cut.start()]), _words(name[cut.end() :])))
    plants = {plant for plant, _ in pairs}
    told = longest == 3 or len(plants) < len(pairs) or any(condition == "healthy" for _, condition in pairs)
    return pairs if told else None


def to_plain(exploration: Exploration) -> dict[str, Any]:
    """Everything, JSON-ready."""
    return asdict(exploration) | {"exit_code": exploration.exit_code}


def print_to(console: Console, exploration: Exploration) -> None:
    """For a reader on a terminal."""
    console.print(Text(_heading(exploration), style="bold"))
    for table in _tables(exploration):
        console.print()
        console.print(tables.to_rich(table, console.width))
        if table.note:
            console.print(Text(table.note, style="dim"))
    for title, sentences in _sections(exploration, _shortened, max_named=5):
        console.print()
        console.print(Text(title, style="bold"))
        for sentence in sentences:
            indent = 4 if sentence.startswith(" ") else 2
            console.print(Padding(Text(tables.one_line(sentence)), (0, 0, 0, indent), expand=False))
    console.print()


def _lenient(data: spec.Data, manifest: Manifest | None) -> spec.Data:
    image_size = data.image_size
    if manifest is not None and image_size is None:
        sizes = {(int(manifest.widths_px[row]), int(manifest.heights_px[row])) for row in manifest.good}
        if len(sizes) != 1 or any(width != height for width, height in sizes):
            image_size = _FALLBACK_PX
    return data.model_copy(update={"on_bad": "skip", "duplicates": "allow", "image_size": image_size})


def _leniency(refusal: str | None, dataset: Dataset | None, shown: spec.Data) -> list[str]:
    if refusal is None or dataset is None:
        return []
    resized = f", images resized to {shown.image_size} x {shown.image_size} pixels" if shown.image_size else ""
    return [f"refused as it was asked for; shown with bad files left out, duplicates allowed{resized}"]


def _in_options(refusal: str) -> str:
    """A refusal in the words of this command, which has options for what others take from a spec."""
    for assignment, option in _OPTIONS.items():
        refusal = refusal.replace(f"--set data.{assignment}", option)
    return refusal


def _from_files(dataset: Dataset, manifest: Manifest, data: spec.Data, seed: int, cache_dir: str | None) -> _Examples:
    files = datasets.load_files(data, seed=seed, cache_dir=cache_dir)
    offsets = np.concatenate([getattr(files, split).encoded.offsets for split in _SPLITS])
    good = manifest.good[np.argsort(manifest.offsets[manifest.good])]
    rows = good[np.searchsorted(manifest.offsets[good], offsets)]  # no two usable files start at one place
    return _Examples(
        names=[manifest.paths[row] for row in rows],
        digests=[manifest.pixel_sha256[row].tobytes() for row in rows],
        **_in_splits(dataset),
    )


def _from_arrays(dataset: Dataset) -> _Examples:
    parts = [(split, getattr(dataset, split)) for split in _SPLITS]
    return _Examples(
        names=[f"{split} {place}" for split, part in parts for place in range(len(part))],
        digests=[digest for _, part in parts for digest in duplicates.pixel_digests(part.images)],
        **_in_splits(dataset),
    )


def _from_manifest(manifest: Manifest) -> _Examples:
    """Every usable file where it lies: the data cannot be divided."""
    rows = manifest.good
    class_names = tuple(sorted({manifest.classes[row] for row in rows}))
    split_names = tuple(split for split in (*_SPLITS, "all") if any(manifest.splits[row] == split for row in rows))
    return _Examples(
        names=[manifest.paths[row] for row in rows],
        digests=[manifest.pixel_sha256[row].tobytes() for row in rows],
        splits=np.array([split_names.index(manifest.splits[row]) for row in rows], np.int64),
        labels=np.array([class_names.index(manifest.classes[row]) for row in rows], np.int64),
        split_names=split_names,
        class_names=class_names,
    )


def _in_splits(dataset: Dataset) -> dict[str, Any]:
    parts = [getattr(dataset, split) for split in _SPLITS]
    return {
        "splits": np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        "labels": np.concatenate([part.labels for part in parts]),
        "split_names": _SPLITS,
        "class_names": dataset.class_names,
    }


def _counts(examples: _Examples) -> NDArray[np.int64]:
    """[splits, classes]."""
    counts = np.zeros((len(examples.split_names), len(examples.class_names)), np.int64)
    np.add.at(counts, (examples.splits, examples.labels), 1)
    return counts


def _exact(examples: _Examples) -> ExactDuplicates:
    groups = duplicates.exact(examples.digests)
    across_splits = [len({int(examples.splits[index]) for index in group}) > 1 for group in groups]
    across_classes = [len({int(examples.labels[index]) for index in group}) > 1 for group in groups]
    order = sorted(range(len(groups)), key=lambda place: (not across_splits[place], not across_classes[place]))
    return ExactDuplicates(
        groups=len(groups),
        images=sum(map(len, groups)),
        groups_across_splits=sum(across_splits),
        groups_across_classes=sum(across_classes),
        named=[[examples.names[index] for index in groups[place][:MAX_NAMED]] for place in order[:MAX_NAMED]],
    )


def _near(dataset: Dataset, examples: _Examples) -> NearDuplicates:
    hashes = np.concatenate([duplicates.difference_hashes(getattr(dataset, split).images) for split in _SPLITS])
    found: NearTwins = duplicates.near(hashes, examples.digests, examples.splits, MAX_NAMED)
    return NearDuplicates(
        rule=duplicates.RULE,
        images=found.images,
        pairs=found.pairs,
        pairs_across_splits=found.pairs_across_splits,
        named=[(examples.names[pair.first], examples.names[pair.second], pair.distance) for pair in found.examples],
    )


def _file_facts(manifest: Manifest) -> FileFacts:
    good = manifest.good
    sizes = manifest.file_bytes[good]
    kinds = Counter(
        (manifest.formats[row], manifest.modes[row], int(manifest.widths_px[row]), int(manifest.heights_px[row]))
        for row in good
    )
    filled = {(manifest.splits[row], manifest.classes[row]) for row in good}
    folders = set(zip(manifest.splits, manifest.classes, strict=True)) | set(manifest.empty_folders)
    return FileFacts(
        files=len(manifest),
        usable=len(good),
        total_bytes=int(sizes.sum()),
        median_bytes=int(np.median(sizes)) if len(sizes) else 0,
        largest_bytes=int(sizes.max(initial=0)),
        kinds=[
            FileKind(format=kind, mode=mode, width_px=width, height_px=height, files=count)
            for (kind, mode, width, height), count in kinds.most_common()
        ],
        bad=[
            BadFile(path=path, problem=problem, detail=detail)
            for path, problem, detail in zip(manifest.paths, manifest.problems, manifest.details, strict=True)
            if problem
        ],
        empty_class_folders=[name if split == "all" else f"{split}/{name}" for split, name in sorted(folders - filled) if name],
    )


def _heading(exploration: Exploration) -> str:
    splits = ", ".join(f"{count:,} {split}" for split, count in exploration.splits.items() if split != "all")
    total = sum(exploration.splits.values())
    size = f" of {exploration.image_size} x {exploration.image_size} pixels" if exploration.image_size else ""
    verdict = "" if exploration.refusal is None else "; REFUSED as it is"
    classes = _number(len(exploration.classes), "class", "classes")
    return f"{exploration.name}: {total:,} images{size} in {classes} ({splits or 'not divided'}){verdict}"


def _tables(exploration: Exploration) -> list[Table]:
    made = [_class_table(exploration, exploration.classes[:_MAX_CLASSES_SHOWN])]
    if exploration.names_tell:
        made.append(_plant_table(exploration))
    if exploration.files is not None and exploration.files.kinds:
        made.append(_kind_table(exploration.files))
    return made


def _class_table(exploration: Exploration, classes: Sequence[ClassCount]) -> Table:
    total = max(1, sum(exploration.splits.values()))
    rows: list[dict[str, Cell]] = [
        {
            "class": each.name,
            "plant": each.plant,
            "condition": each.condition,
            **each.counts,
            "total": each.total,
            "percent": 100 * each.total / total,
        }
        for each in classes
    ]
    totals = [each.total for each in exploration.classes]
    left_out = len(exploration.classes) - len(classes)
    balance = f"The largest class has {max(totals) / max(1, min(totals)):.2f} times the images of the smallest."
    return Table(
        "counts",
        "Classes",
        (
            Column("class", "class"),
            Column("plant", "plant", terminal=False),
            Column("condition", "condition", terminal=False),
            *(Column(split, split) for split in exploration.splits),
            Column("total", "images"),
            Column("percent", "%", 2),
        ),
        rows,
        note=balance + (f" {left_out:,} more classes are in {COUNTS_FILE} and in the JSON." if left_out else ""),
    )


def _plant_table(exploration: Exploration) -> Table:
    plants: dict[str, list[ClassCount]] = {}
    for each in exploration.classes:
        plants.setdefault(each.plant or "", []).append(each)
    healthy = [each for each in exploration.classes if each.condition == "healthy"]
    healthy_images, total = sum(each.total for each in healthy), max(1, sum(exploration.splits.values()))
    conditions = {each.condition for each in exploration.classes}
    return Table(
        "plants",
        "Plants and conditions",
        (
            Column("plant", "plant"),
            Column("classes", "classes"),
            Column("images", "images"),
            Column("conditions", "conditions"),
        ),
        [
            {
                "plant": plant,
                "classes": len(members),
                "images": sum(each.total for each in members),
                "conditions": ", ".join(each.condition or "" for each in members),
            }
            for plant, members in plants.items()
        ],
        note=f"{_number(len(plants), 'plant')} and {_number(len(conditions), 'condition')}, as the class names tell; healthy: "
        f"{_number(len(healthy), 'class', 'classes')}, {healthy_images:,} images ({100 * healthy_images / total:.1f} %).",
    )


def _kind_table(files: FileFacts) -> Table:
    left_out = len(files.kinds) - _MAX_KINDS_SHOWN
    return Table(
        "kinds",
        "Files",
        (
            Column("format", "format"),
            Column("mode", "mode"),
            Column("size", "width x height"),
            Column("files", "files"),
        ),
        [
            {"format": kind.format, "mode": kind.mode, "size": f"{kind.width_px} x {kind.height_px}", "files": kind.files}
            for kind in files.kinds[:_MAX_KINDS_SHOWN]
        ],
        note=f"{files.usable:,} of {files.files:,} files are usable images: {files.total_bytes / 2**20:,.2f} MiB, "
        f"median {files.median_bytes:,} bytes, largest {files.largest_bytes:,}."
        + (f" {left_out:,} more kinds are in the JSON." if left_out > 0 else ""),
    )


def _sections(exploration: Exploration, name: Callable[[str], str], max_named: int) -> list[tuple[str, list[str]]]:
    """Titles and sentences; `name` writes the name of a file, of which no more than so many stand in one place."""
    sections = [
        ("What is broken", _broken(exploration, name)),
        ("Duplicates", _duplicates(exploration, name, max_named)),
        ("The data", [*exploration.notes, *_untold(exploration)]),
    ]
    return [(title, sentences) for title, sentences in sections if sentences]


def _broken(exploration: Exploration, name: Callable[[str], str]) -> list[str]:
    files = exploration.files
    if files is None:
        return []
    if not files.bad and not files.empty_class_folders:
        return [f"Nothing: each of {files.files:,} files was opened and decoded."]
    sentences: list[str] = []
    if files.bad:
        counts = Counter(bad.problem for bad in files.bad).most_common()
        reasons = ", ".join(f"{count:,} {problem}" for problem, count in counts)
        sentences.append(f"{len(files.bad):,} of {_number(files.files, 'file')} are no usable images: {reasons}.")
        faults = [f"{name(bad.path)}: {bad.problem}" + (f" ({bad.detail})" if bad.detail else "") for bad in files.bad]
        sentences += _first(faults, MAX_NAMED)
    if files.empty_class_folders:
        sentences.append(f"{_number(len(files.empty_class_folders), 'class folder')} without a usable image:")
        sentences += _first([repr(folder) for folder in files.empty_class_folders], MAX_NAMED)
    return sentences


def _duplicates(exploration: Exploration, name: Callable[[str], str], max_named: int) -> list[str]:
    exact, near = exploration.exact, exploration.near
    if exact.groups:
        sentences = [
            f"Equal pixel for pixel: {exact.images:,} images in {_number(exact.groups, 'group')}, "
            f"{exact.groups_across_splits:,} of them across splits, {exact.groups_across_classes:,} across classes:"
        ]
        groups = [" = ".join(map(name, names)) for names in exact.named]
        sentences += _first(groups, max_named, exact.groups)
    else:
        sentences = ["No two images are equal pixel for pixel."]
    if near is None:
        return [*sentences, "Near twins were not counted: the data cannot be divided into splits of images of one size."]
    if near.pairs:
        sentences.append(
            f"Near twins: {near.images:,} images in {_number(near.pairs, 'pair')}, {near.pairs_across_splits:,} of them across "
            "splits:"
        )
        pairs = [f"{name(one)} ~ {name(other)} ({_number(bits, 'bit')})" for one, other, bits in near.named]
        sentences += _first(pairs, max_named, near.pairs)
    else:
        sentences.append("No image has a near twin.")
    return [*sentences, near.rule]


def _first(lines: Sequence[str], count: int, total: int | None = None) -> list[str]:
    """The first lines, set in, and how many more there are of all."""
    more = (len(lines) if total is None else total) - min(count, len(lines))
    return [*(f"  {line}" for line in lines[:count]), *([f"  and {more:,} more"] if more else [])]


def _shortened(name: str) -> str:
    """The folders of a file and the end of its name, where the whole is long for a terminal."""
    folders, slash, file = name.rpartition("/")
    return repr(f"{folders}{slash}…{file[-_NAME_END:]}" if len(file) > _NAME_END + 8 else name)


def _untold(exploration: Exploration) -> list[str]:
    return [] if exploration.names_tell else ["The class names tell no plants and conditions."]


def _write(folder: Path, exploration: Exploration, dataset: Dataset | None, manifest: Manifest | None) -> None:
    """Write everything to a folder; what an earlier exploration left there is replaced."""
    _refuse_other_folder(folder)
    class_names = [each.name for each in exploration.classes]
    counts = {split: [each.counts[split] for each in exploration.classes] for split in exploration.splits}
    files: dict[str, str | bytes] = {COUNTS_FILE: tables.to_csv(_class_table(exploration, exploration.classes))}
    for suffix, content in sheet.class_balance(counts, class_names, f"Images of each class: {exploration.name}").items():
        files[f"{BALANCE_NAME}.{suffix}"] = content
    if dataset is not None:
        captions = [f"{each.plant}\n{each.condition}" if each.plant else each.name for each in exploration.classes]
        files[SHEET_FILE] = sheet.sample_sheet(dataset.train.images, dataset.train.labels, captions)
    if manifest is not None:
        files[FILES_FILE] = _files_csv(manifest)
    files[REPORT_FILE] = _markdown(exploration, has_sheet=dataset is not None)
    files[RESULTS_FILE] = json.dumps(to_plain(exploration), indent=1) + "\n"
    try:
        for name in {SHEET_FILE, FILES_FILE} - files.keys():
            (folder / name).unlink(missing_ok=True)
        for name, content in files.items():
            results.write_atomically(folder / name, content)
    except OSError as error:
        raise FolderError(f"Results cannot be written to {folder} ({error}). Choose another --out.") from None


def _refuse_other_folder(folder: Path) -> None:
    others = sorted(path.name for path in folder.glob("[!.]*"))
    if not others:
        return
    try:
        kind = json.loads((folder / RESULTS_FILE).read_text("utf-8")).get("kind")
    except (OSError, ValueError, AttributeError):
        kind = None
    if kind != KIND:
        raise FolderError(
            f"{folder} holds files that are no data exploration's ({others[0]}). Choose an empty folder with --out."
        )


def _files_csv(manifest: Manifest) -> str:
    frame = pd.DataFrame(manifest.columns())
    for name in ("paths", "classes", "details"):
        frame[name] = [tables.one_line(text) for text in frame[name]]
    buffer = io.StringIO()
    frame.to_csv(buffer, index=False, lineterminator="\n")
    return buffer.getvalue()


def _markdown(exploration: Exploration, *, has_sheet: bool) -> str:
    lines = [f"# {tables.escaped(_heading(exploration))}", ""]
    if exploration.refusal is not None:
        lines += ["## Refused", "", *(f"- {tables.escaped(line)}" for line in exploration.refusal.splitlines()), ""]
    for table in _tables(exploration):
        lines += [tables.to_markdown(table)]
    for title, sentences in _sections(exploration, repr, max_named=MAX_NAMED):
        lines += [f"## {title}", ""]
        lines += [f"{'  ' if sentence.startswith(' ') else ''}- {tables.escaped(sentence)}" for sentence in sentences]
        lines += [""]
    lines += ["## Pictures", "", f"![images of each class]({BALANCE_NAME}.png)", ""]
    if has_sheet:
        lines += [f"![samples of each class]({SHEET_FILE})", ""]
        if len(exploration.classes) > sheet.MAX_CLASSES:
            lines += [f"The sample sheet shows the first {sheet.MAX_CLASSES} classes.", ""]
    return "\n".join(lines)


def _write_leaves(source: str, folder: Path) -> int:
    if not leaves.is_source(source):
        raise SpecError(f"--write takes made-up leaves. Received: {source!r}. Use e.g. leaves:classes=38,images=20000.")
    wanted = leaves.parse(source)
    try:
        leaves.make(folder, wanted)
    except (DataRefused, OSError) as error:
        raise FolderError(str(error)) from None
    typer.echo(f"{wanted.images:,} images in {wanted.classes:,} classes: {folder}")
    return 0


def _words(name: str) -> str:
    return " ".join(name.replace("_", " ").split())


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
