"""Report of an exploration, in tables and sentences: for a terminal, as Markdown, and its counts as CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from common.data import notes
from common.data.dataset import MAX_NAMED, join_names
from compare.cli.wording import Detail, count, shortened, visible
from compare.reporting import image_grid, plots, tables
from compare.reporting.document import Report
from compare.reporting.screen import Bar, Chart, Paragraph, Screen
from compare.reporting.tables import Column, Table
from compare.tools.data.duplicates import NearTwins
from compare.tools.data.exploration import ClassCount, ExactDuplicates, Exploration, FileFacts, to_plain

COUNTS_FILE, SHEET_FILE, BALANCE_NAME = "counts.csv", "sample_sheet.png", "class_balance"
RESULTS_FILE = "data.json"
"""Name of the JSON file beside the report."""

_MAX_CLASSES_SHOWN = 60
_MAX_KINDS_SHOWN = 12
_MAX_BROKEN_FIRST, _MAX_NAME = 4, 32
"""Largest number of broken files that are named, and of characters of a class's name, on the first screen."""
_NAME_END = 28  # characters


def report(exploration: Exploration, files: Mapping[str, str | bytes] | None = None, *, train: str | None = None) -> Report:
    """Build the report of an exploration.

    Args:
        files: pictures and lists to write beside it. With them, findings name more files than a terminal has room for.
        train: command that trains on these data.
    """
    refused = exploration.refusal.splitlines() if exploration.refusal else []
    findings = sections(exploration) if files is None else sections(exploration, repr, max_named=MAX_NAMED)
    notes: list[str] = []
    if files and SHEET_FILE in files and len(exploration.classes) > image_grid.MAX_CLASSES:
        notes += [f"The sample sheet shows the first {image_grid.MAX_CLASSES} classes.", ""]
    names = [visible(class_count.name) for class_count in exploration.classes]
    renamed = [f"{label} is {name}" for label, name in zip(plots.labels(names), names, strict=True) if label != name]
    if renamed:
        notes += [tables.escaped(f"The font of the pictures lacks letters of some names: {join_names(renamed)}."), ""]
    return Report(
        title=heading(exploration),
        json_file=RESULTS_FILE,
        overline="Data set",
        facts=[heading(exploration)] if files is None else [],
        findings=findings if files is None or not refused else [("Refused", refused), *findings],
        tables=tables_of(exploration),
        files=files or {},
        notes=notes,
        values=to_plain(exploration),
        exit_code=exploration.exit_code,
        screen=screen(exploration, train),
    )


def screen(exploration: Exploration, train: str | None = None) -> Screen:
    """Show whether the data can be used as they are, what is wrong with them, and the images of each class."""
    exact, near, files = exploration.exact, exploration.near, exploration.files
    # The lines between name files, as `Broken` and `Duplicates` do.
    refused = [line for line in (exploration.refusal or "").splitlines() if not line.startswith(" ")]
    broken = _broken(exploration, _shortened, _MAX_BROKEN_FIRST)
    usable = "Yes." if not files.bad else "Yes, without the broken files."
    cautions = [notes.words(note) for note in exploration.notes if notes.kind(note) == "data"]
    if exact.groups_across_classes:
        groups = count(exact.groups_across_classes, "group")
        cautions.append(f"Equal images in several classes ({groups}): some labels are wrong, or the classes overlap.")
    if exact.groups_across_splits:
        groups = count(exact.groups_across_splits, "group")
        cautions.append(f"Equal images in several splits ({groups}): accuracy on them is no accuracy on new images.")
    answers = [
        Paragraph("Refused", [line.removesuffix(" Received:") for line in refused], "bad"),
        Paragraph("Usable", [] if refused else [usable], "good"),
        Paragraph("Broken", broken, least=len(broken), most=len(broken)),  # its last line counts the others
        Paragraph("Trouble", cautions, "bad"),
        Paragraph("Balance", [_balance(exploration)]),
        Paragraph("Duplicates", [_exact_words(exact), _near_words(near)]),
        Paragraph("Notes", [note for note in exploration.notes if notes.kind(note) == "note"]),
    ]
    splits = list(exploration.splits)
    bars = [_bar(class_count, splits) for class_count in exploration.classes]
    return Screen(
        subject=[heading(exploration)],
        answers=answers,
        chart=Chart(("images of each class", "images"), splits, bars),
        next=[("train on it", train)] if train and not refused else [],
    )


def _bar(class_count: ClassCount, splits: Sequence[str]) -> Bar:
    name = shortened(visible(class_count.name), _MAX_NAME)
    return Bar((name,), class_count.total, f"{class_count.total:,}", [f"{class_count.counts[split]:,}" for split in splits])


def counts_csv(exploration: Exploration) -> str:
    """Return one line for each class."""
    return tables.to_csv(_class_table(exploration, exploration.classes))


def heading(exploration: Exploration) -> str:
    splits = ", ".join(f"{count:,} {split}" for split, count in exploration.splits.items() if split != "all")
    total = sum(exploration.splits.values())
    size = f" of {exploration.image_size} x {exploration.image_size} pixels" if exploration.image_size else ""
    verdict = "" if exploration.refusal is None else "; REFUSED as it is"
    classes = count(len(exploration.classes), "class", "classes")
    images = count(total, "image")
    return f"{visible(exploration.name)}: {images}{size} in {classes} ({splits or 'not divided'}){verdict}"


def tables_of(exploration: Exploration) -> list[Table]:
    all_tables = [_class_table(exploration, exploration.classes[:_MAX_CLASSES_SHOWN])]
    if exploration.names_tell:
        all_tables.append(_plant_table(exploration))
    if exploration.files.kinds:
        all_tables.append(_kind_table(exploration.files))
    return all_tables


def _class_table(exploration: Exploration, classes: Sequence[ClassCount]) -> Table:
    total = max(1, sum(exploration.splits.values()))
    left_out = len(exploration.classes) - len(classes)
    return Table.from_items(
        "counts",
        "Classes",
        (
            Column("class", "class", pick=lambda class_count: visible(class_count.name)),
            *(
                (
                    Column("plant", "plant", terminal=False, pick=lambda class_count: visible(class_count.plant)),
                    Column("condition", "condition", terminal=False, pick=lambda class_count: visible(class_count.condition)),
                )
                if exploration.names_tell
                else ()
            ),
            *(Column(split, split, pick=f"counts.{split}") for split in exploration.splits),
            Column("total", "images"),
            Column("percent", "%", 2, pick=lambda class_count: 100 * class_count.total / total),
        ),
        classes,
        note=_balance(exploration) + (f" {left_out:,} more classes are in {COUNTS_FILE} and in the JSON." if left_out else ""),
    )


def _balance(exploration: Exploration) -> str:
    totals = [class_count.total for class_count in exploration.classes]
    if totals and all(totals):
        return f"The largest class has {max(totals) / min(totals):.2f} times the images of the smallest."
    return f"{count(totals.count(0), 'class', 'classes')} of {len(totals):,} without an image."


def _plant_table(exploration: Exploration) -> Table:
    plants: dict[str, list[ClassCount]] = {}
    for class_count in exploration.classes:
        plants.setdefault(class_count.plant or "", []).append(class_count)
    healthy = [class_count for class_count in exploration.classes if class_count.condition == "healthy"]
    healthy_images, total = sum(class_count.total for class_count in healthy), max(1, sum(exploration.splits.values()))
    conditions = {class_count.condition for class_count in exploration.classes}
    healthy_part = f"{count(healthy_images, 'image')} ({100 * healthy_images / total:.1f} %)"
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
                "plant": visible(plant),
                "classes": len(members),
                "images": sum(class_count.total for class_count in members),
                "conditions": ", ".join(visible(class_count.condition or "") for class_count in members),
            }
            for plant, members in plants.items()
        ],
        note=f"The class names have {count(len(plants), 'plant')} and {count(len(conditions), 'condition')}. Healthy: "
        f"{count(len(healthy), 'class', 'classes')}, {healthy_part}.",
    )


def _kind_table(files: FileFacts) -> Table:
    left_out = len(files.kinds) - _MAX_KINDS_SHOWN
    return Table.from_items(
        "kinds",
        "Files",
        (
            Column("format", "format"),
            Column("mode", "mode"),
            Column("size", "width x height", pick=lambda kind: f"{kind.width_px} x {kind.height_px}"),
            Column("files", "files"),
        ),
        files.kinds[:_MAX_KINDS_SHOWN],
        note=f"{files.usable:,} of {count(files.files, 'file')} {_are(files.usable, 'usable image')}: "
        f"{files.total_bytes / 2**20:,.2f} MiB, median {files.median_bytes:,} bytes, largest {files.largest_bytes:,}."
        + (f" {left_out:,} more kinds are in the JSON (--json, or --out DIR)." if left_out > 0 else ""),
    )


def sections(
    exploration: Exploration, name: Callable[[str], str] | None = None, max_named: int = 5
) -> list[tuple[str, list[str]]]:
    """Return titles and sentences. `name` formats the name of a file, by default shortened. `max_named` limits each list."""
    name = name or _shortened
    unnamed = [] if exploration.names_tell else ["The class names do not name plants and conditions."]
    parts = [
        ("What is broken", _broken(exploration, name)),
        ("Duplicates", _duplicates(exploration, name, max_named)),
        ("The data", [*exploration.notes, *unnamed]),
    ]
    return [(title, sentences) for title, sentences in parts if sentences]


def _broken(exploration: Exploration, name: Callable[[str], str], max_named: int = MAX_NAMED) -> list[str]:
    files = exploration.files
    if not files.bad and not files.empty_class_folders:
        return [f"Nothing: each of {count(files.files, 'file')} was opened and decoded."]
    sentences: list[str] = []
    if files.bad:
        counts = Counter(bad.problem for bad in files.bad).most_common()
        reasons = ", ".join(f"{count:,} {problem}" for problem, count in counts)
        sentences.append(
            f"{len(files.bad):,} of {count(files.files, 'file')} {_are(len(files.bad), 'no usable image')}: {reasons}."
        )
        faults = [f"{name(bad.path)}: {bad.problem}" + (f" ({bad.detail})" if bad.detail else "") for bad in files.bad]
        sentences += _first(faults, max_named)
    if files.empty_class_folders:
        sentences.append(f"{count(len(files.empty_class_folders), 'class folder')} without a usable image:")
        sentences += _first([repr(folder) for folder in files.empty_class_folders], max_named)
    return sentences


def _duplicates(exploration: Exploration, name: Callable[[str], str], max_named: int) -> list[str]:
    exact, near = exploration.exact, exploration.near
    if exact.groups:
        sentences = [f"{_exact_words(exact).removesuffix('.')}:"]
        groups = [" = ".join(map(name, names)) for names in exact.named]
        sentences += _first(groups, max_named, exact.groups)
        if exact.groups_across_classes:
            sentences.append(
                "Caution: equal images cannot belong to two classes. In "
                f"{count(exact.groups_across_classes, 'group')} some images have a wrong label, or the classes overlap."
            )
    else:
        sentences = [_exact_words(exact)]
    if near is None:
        return [*sentences, _near_words(near)]
    if near.pairs:
        sentences.append(f"{_near_words(near).removesuffix('.')}:")
        pairs = [f"{name(one)} ~ {name(other)} ({count(bits, 'bit')})" for one, other, bits in near.named]
        sentences += _first(pairs, max_named, near.pairs)
    else:
        sentences.append(_near_words(near))
    return [*sentences, near.rule]


def _exact_words(exact: ExactDuplicates) -> str:
    if not exact.groups:
        return "No two images are equal pixel for pixel."
    return (
        f"Equal pixel for pixel: {count(exact.images, 'image')} in {count(exact.groups, 'group')}, "
        f"{exact.groups_across_splits:,} of them across splits, {exact.groups_across_classes:,} across classes."
    )


def _near_words(near: NearTwins | None) -> str:
    if near is None:
        return "Near twins were not counted: the data cannot be divided into splits. The refusal says why."
    if not near.pairs:
        return "Near twins: none found."
    pairs = count(near.pairs, "pair")
    return f"Near twins: {near.images:,} images in {pairs}, {near.pairs_across_splits:,} of them across splits."


def _first(lines: Sequence[str], count: int, total: int | None = None) -> list[str]:
    """Return the first lines, which stand below a sentence, and how many more there are in total."""
    more = (len(lines) if total is None else total) - min(count, len(lines))
    return [Detail(line) for line in (*lines[:count], *([f"and {more:,} more"] if more else []))]


def _shortened(name: str) -> str:
    """Return the folders of a file and the end of its name, if the name is too long for a terminal."""
    folders, slash, file = name.rpartition("/")
    return repr(f"{folders}{slash}…{file[-_NAME_END:]}" if len(file) > _NAME_END + 8 else name)


def _are(count: int, what: str) -> str:
    return f"is {'' if what.startswith('no ') else 'a '}{what}" if count == 1 else f"are {what}s"
