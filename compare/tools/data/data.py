"""`convtwins data`: show a data set, its faults, and sample images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from common import spec
from common.data.sources import DataRefused, Dataset, Manifest, synthetic_leaves
from common.spec import SpecError
from compare.cli import commands, wording
from compare.cli.commands import Outcome
from compare.cli.errors import FolderError
from compare.cli.option_rules import Excludes
from compare.cli.progress import display
from compare.reporting import document, image_grid, plots, tables
from compare.results.workspace import FolderKind, Workspace
from compare.running import options
from compare.tools.data import data_report
from compare.tools.data.data_report import BALANCE_NAME, COUNTS_FILE, RESULTS_FILE, SHEET_FILE
from compare.tools.data.exploration import KIND, Exploration, explore

REPORT_FILE, FILES_FILE = "report.md", "files.csv"

_FILE_COLUMNS = {
    "paths": "path",
    "splits": "split",
    "classes": "class",
    "problems": "problem",
    "details": "detail",
    "formats": "format",
    "modes": "mode",
    "widths_px": "width_px",
    "heights_px": "height_px",
    "plain": "plain_jpeg",
}


@commands.command(Excludes("--write", ["--json", "--out"], "only makes leaves"))
def command(
    data: Annotated[
        str,
        typer.Argument(
            help="digits, cifar10, fashion_mnist, leaves[:classes=..,images=..], torchvision:NAME, tfds:NAME, "
            "huggingface:NAME, an image folder or archive."
        ),
    ],
    on_bad: options.OnBad = "strict",
    duplicates: options.Duplicates = "refuse",
    limit: options.Limit = None,
    image_size: options.ImageSize = None,
    seed: options.DataSeed = 0,
    out: options.OutOrNone = None,
    write: Annotated[Path | None, typer.Option(help="With leaves: only write them to this folder.")] = None,
) -> Outcome | None:
    """Show what is in a data set, what is wrong with it, and how it looks."""
    data_spec = spec.build(
        {
            "seed": seed,
            "data": {
                "source": data,
                "on_bad": on_bad,
                "duplicates": duplicates,
                "limit": limit,
                "image_size": image_size,
            },
        }
    )
    if write is not None:
        _write_leaves(data, write)
        return None
    return run(data_spec, out)


_PICTURES = (SHEET_FILE, f"{BALANCE_NAME}.png", f"{BALANCE_NAME}.svg")
EXPLORATION = FolderKind[None](
    noun="data exploration",
    file=RESULTS_FILE,
    kind=KIND,
    allowed=(*document.report_files(), COUNTS_FILE, FILES_FILE, *_PICTURES),
)


def run(data_spec: spec.Spec, out: Path | None) -> Outcome:
    """Explore a data set, print the findings, and write them to `out` if it is given.

    Returns:
        The report, and the exit code: 0, or 4 if the data with these options are refused.
    """
    with Workspace.open(out, EXPLORATION) as workspace, display() as progress:
        progress.say("reading the data")
        exploration, dataset, manifest = explore(data_spec.data, seed=data_spec.split_seed, cache_dir=data_spec.paths.cache_dir)
        if out is not None:
            progress.say("report")
            workspace.lock()
            write(out, exploration, dataset, manifest)

    def explain_refusal(code: int) -> int:
        if exploration.refusal is not None:
            typer.echo(exploration.refusal, err=True)
        return exploration.exit_code

    written = document.WrittenReport(data_report.report(exploration, train=_training_command(data_spec)))
    return Outcome(written, out, explain_refusal)


def _training_command(data_spec: spec.Spec) -> str:
    """Return the command that trains on the data as they were explored."""
    fields = data_spec.data.model_dump(exclude_defaults=True, exclude={"source"})
    words = [word for name, value in fields.items() for word in ("--set", f"data.{name}={value}")]
    seed = ("--seed", str(data_spec.seed)) if data_spec.seed else ()
    return wording.command("run", "--data", data_spec.data.source, *words, *seed)


def write(folder: Path, exploration: Exploration, dataset: Dataset | None, manifest: Manifest) -> None:
    """Write everything to a folder. An earlier exploration in it is replaced."""
    EXPLORATION.check(folder)
    class_names = plots.labels([wording.visible(class_count.name) for class_count in exploration.classes])
    counts = {split: [class_count.counts[split] for class_count in exploration.classes] for split in exploration.splits}
    files: dict[str, str | bytes] = {COUNTS_FILE: data_report.counts_csv(exploration)}
    for suffix, content in image_grid.class_balance(
        counts, class_names, f"Images of each class: {wording.visible(exploration.name)}"
    ).items():
        files[f"{BALANCE_NAME}.{suffix}"] = content
    if dataset is not None:
        captions = [
            f"{class_count.plant}\n{class_count.condition}" if class_count.plant and label == class_count.name else label
            for label, class_count in zip(class_names, exploration.classes, strict=True)
        ]
        files[SHEET_FILE] = image_grid.sample_sheet(dataset.train.images, dataset.train.labels, captions)
    else:
        (folder / SHEET_FILE).unlink(missing_ok=True)
    files[FILES_FILE] = _files_csv(manifest)
    if unwritten := data_report.report(exploration, files).write(folder):
        raise FolderError(unwritten)


def _files_csv(manifest: Manifest) -> str:
    frame = pd.DataFrame(manifest.columns()).rename(columns=_FILE_COLUMNS)
    for name in ("path", "class", "detail"):
        frame[name] = list(map(wording.visible, frame[name]))
    for name in ("file_sha256", "pixel_sha256"):
        frame[name] = frame[name].replace("0" * 64, "")  # of files that could not be read or decoded
    return tables.frame_to_csv(frame)


def _write_leaves(source: str, folder: Path) -> None:
    if not synthetic_leaves.is_source(source):
        raise SpecError(f"--write takes synthetic leaves. Received: {source!r}. Use e.g. leaves:classes=38,images=20000.")
    settings = synthetic_leaves.parse(source)
    try:
        synthetic_leaves.make(folder, settings)
    except (DataRefused, OSError) as error:
        raise FolderError(str(error)) from None
    typer.echo(f"{settings.images:,} images in {settings.classes:,} classes: {folder}")
