"""The report of an evaluation: tables, sentences, plots, and the confused images."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from common.artifacts import atomic_files
from common.data.dataset import Images
from common.training import scores
from common.training.scores import BINS, CHANCE, TOP, ClassScores
from compare.core import wording
from compare.core.statistics import CONFIDENCE, SIGNIFICANCE, Spread, spread
from compare.evaluation.final_training import Evaluated, Model, Pair
from compare.reporting import document, image_grid, plots, tables
from compare.reporting.tables import Cell, Column, Table

REPORT_FILE = "evaluation.md"

_NAMED_CLASSES = 40
_SPENT = 1e-3
"""Fraction of the first learning rate. A schedule below it leaves little to learn."""
_NAME = 24
_WORST_SAID = 3


def documents(made: Evaluated) -> list[Table]:
    """Every table that is written."""
    return [
        scores_table(made),
        class_table(made),
        *filled([agreement_table(made), crossing_table(made), confused_table(made), calibration_table(made)]),
        *(table for framework in _scored(made) for table in confusion_tables(made, framework)),
    ]


def on_terminal(made: Evaluated) -> list[Table]:
    """The tables that are printed."""
    return [
        scores_table(made),
        *filled([agreement_table(made), crossing_table(made)]),
        class_table(made),
        *filled([confused_table(made)]),
    ]


def filled(made: Sequence[Table]) -> list[Table]:
    """The tables that have a row."""
    return [table for table in made if table.rows]


def scores_table(made: Evaluated) -> Table:
    columns = (
        Column("framework", "framework"),
        Column("accuracy", "test accuracy", 4, short="acc.", interval=True),
        Column("top_accuracy", f"top-{TOP} accuracy", 4, short=f"top-{TOP}", interval=True),
        Column("loss", "test loss", 4, short="loss", interval=True),
        Column("macro_precision", "macro precision", 4, short="macro\nprec.", interval=True),
        Column("macro_recall", "macro recall", 4, short="macro\nrecall", interval=True),
        Column("macro_f1", "macro F1", 4, short="macro\nF1", interval=True),
        Column("weighted_f1", "weighted F1", 4, short="weighted\nF1", interval=True),
        Column("calibration_error", "calibration error", 4, short="calibr.\nerror", interval=True),
        Column("calibration_chance", "calibration error by chance", 4, interval=True, terminal=False),
        Column("best_epoch", "best epoch", short="best\nepoch"),
        Column("epochs", "epochs trained", short="epochs"),
        Column("n", "trainings", short="n"),
        Column("wall_seconds", "wall seconds", 1, interval=True, terminal=False),
        Column("status", "status"),
    )
    rows: list[dict[str, Cell]] = []
    for framework in made.frameworks:
        own = made.of(framework)
        every = [model for model in made.models if model.framework == framework]
        failed = [f"{model.status} (seed {model.seed})" for model in every if not model.scores]
        rows.append(
            {
                "framework": framework,
                "accuracy": _spread(own, lambda model: model.scores and model.scores.accuracy),
                "top_accuracy": _spread(own, lambda model: model.scores and model.scores.top_accuracy),
                "loss": _spread(own, lambda model: model.scores and model.scores.loss),
                "macro_precision": _spread(own, lambda model: model.scores and model.scores.macro.precision),
                "macro_recall": _spread(own, lambda model: model.scores and model.scores.macro.recall),
                "macro_f1": _spread(own, lambda model: model.scores and model.scores.macro.f1),
                "weighted_f1": _spread(own, lambda model: model.scores and model.scores.weighted.f1),
                "calibration_error": _spread(own, lambda model: model.scores and model.scores.calibration_error),
                "calibration_chance": _spread(own, lambda model: model.scores and model.scores.calibration_chance),
                "best_epoch": ", ".join(str(model.best_epoch) for model in own) or None,
                "epochs": ", ".join(str(model.epochs) for model in own) or None,
                "n": len(own),
                "wall_seconds": _spread(own, lambda model: model.wall_seconds),
                "status": ", ".join(failed) or "ok",
            }
        )
    return Table(
        "evaluation",
        f"The best epoch of each framework, on {made.num_examples:,} test images of {made.data_name}",
        columns,
        rows,
        spreads_on_terminal=False,
        note=f"Best by the validation split, the earliest of equal ones. Calibration error: {BINS} bins of equal width over "
        "the probability of the predicted label (Naeini et al. 2015, Guo et al. 2017); by chance, a calibrated model stays "
        f"within the error beside it in {CHANCE:.0%} of such samples. Of several trainings the median; in the "
        "report with the 25 % and 75 % quantiles.",
    )


def class_table(made: Evaluated) -> Table:
    """Precision, recall and F1 of every class, the frameworks side by side, and their averages below."""
    figures = {"precision": "precision", "recall": "recall", "f1": "F1"}
    shown = _scored(made)
    columns = (
        Column("class", "class"),
        *(
            Column(f"{framework}_{figure}", f"{framework} {heading}", 4, short=f"{framework}\n{heading}", interval=True)
            for framework in shown
            for figure, heading in figures.items()
        ),
        Column("support", "support"),
    )

    def row(name: str, support: int, pick: Callable[[scores.Scores], ClassScores]) -> dict[str, Cell]:
        cells: dict[str, Cell] = {"class": name, "support": support}
        for framework in shown:
            for figure in figures:
                values = [getattr(pick(model.scores), figure) for model in made.of(framework) if model.scores]
                cells[f"{framework}_{figure}"] = spread(values)
        return cells

    rows: list[dict[str, Cell]] = []
    for label, name in enumerate(made.class_names):
        first = next((model.scores for model in made.models if model.scores), None)
        if first is not None:
            rows.append(row(name, first.classes[label].support, lambda found, label=label: found.classes[label]))
    if rows:
        rows.append(row("macro average", made.num_examples, lambda found: found.macro))
        rows.append(row("weighted average", made.num_examples, lambda found: found.weighted))
    return Table(
        "classes",
        "Precision, recall and F1 of each class",
        columns,
        rows,
        spreads_on_terminal=False,
        note="Support: test images of the class. Macro: each class counts the same; weighted: by its support. 0 stands where a "
        "class was never predicted or never occurs.",
    )


def agreement_table(made: Evaluated) -> Table:
    columns = (
        Column("first", "first"),
        Column("second", "second"),
        Column("seed", "seed"),
        Column("labelled_differently", "labelled differently", short="labelled\ndifferently"),
        Column("first_alone_right", "first alone right", short="first\nright"),
        Column("second_alone_right", "second alone right", short="second\nright"),
        Column("p", "McNemar's exact p", 3, short="McNemar\np"),
        Column("adjusted_p", "p, Holm-corrected", 3, short="p, Holm"),
    )
    rows: list[dict[str, Cell]] = [
        {"first": pair.first, "second": pair.second, "seed": pair.seed, "adjusted_p": pair.adjusted_p}
        | pair.agreement.model_dump(include={"labelled_differently", "first_alone_right", "second_alone_right", "p"})
        for pair in made.pairs
    ]
    return Table(
        "agreement",
        f"Two frameworks' models on the same {made.num_examples:,} images",
        columns,
        rows,
        note="Right: images that this one alone has right. The test asks whether both are right equally often; it has no p "
        "where neither is ever right alone.",
    )


def crossing_table(made: Evaluated) -> Table:
    columns = (
        Column("trained_in", "trained in"),
        Column("seed", "seed"),
        Column("used_in", "used in"),
        Column("labelled_differently", "labelled differently"),
        Column("largest_difference", "largest difference of a probability", -1, short="largest\ndifference"),
    )
    rows: list[dict[str, Cell]] = [
        {"trained_in": model.framework, "seed": model.seed, "used_in": each.framework}
        | each.model_dump(include={"labelled_differently", "largest_difference"})
        for model in made.models
        for each in model.crossings
    ]
    return Table(
        "crossings",
        "The same checkpoint in both frameworks",
        columns,
        rows,
        note="Against what the framework that trained it makes of the same test images.",
    )


def confused_table(made: Evaluated) -> Table:
    columns = (
        Column("framework", "framework"),
        Column("seed", "seed"),
        Column("true", "true class"),
        Column("predicted", "taken for"),
        Column("count", "images"),
        Column("share", "share of the true class", 4, short="share"),
    )
    rows: list[dict[str, Cell]] = [
        {
            "framework": model.framework,
            "seed": model.seed,
            "true": made.class_names[pair.true],
            "predicted": made.class_names[pair.predicted],
            "count": pair.count,
            "share": pair.share,
        }
        for model in made.models
        for pair in model.worst
    ]
    return Table("confused", "Classes that are confused most often", columns, rows)


def calibration_table(made: Evaluated) -> Table:
    columns = (
        Column("framework", "framework"),
        Column("seed", "seed"),
        Column("low", "confidence above", 3),
        Column("high", "up to", 3),
        Column("count", "images"),
        Column("confidence", "mean confidence", 4),
        Column("accuracy", "accuracy", 4),
    )
    rows: list[dict[str, Cell]] = [
        {"framework": model.framework, "seed": model.seed} | each.model_dump()
        for model in made.models
        if model.scores
        for each in model.scores.bins
        if each.count
    ]
    return Table("calibration", "How sure the models are, and how often they are right", columns, rows)


def confusion_tables(made: Evaluated, framework: str) -> list[Table]:
    """Counts, and shares of each true class. Several trainings are added up."""
    matrix = np.array(_confusion(made, framework))
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    labels = [f"class_{label}" for label in range(len(made.class_names))]
    several = f", {len(made.of(framework))} trainings added up" if len(made.of(framework)) > 1 else ""
    tables_made: list[Table] = []
    for name, title, values, digits in (
        ("confusion", "images", matrix, None),
        ("confusion_normalised", "share of the true class", shares, 4),
    ):
        columns = (
            Column("true", "true class"),
            *(Column(label, name, digits) for label, name in zip(labels, made.class_names, strict=True)),
        )
        rows: list[dict[str, Cell]] = [
            {"true": true} | dict(zip(labels, line, strict=True))
            for true, line in zip(made.class_names, values.tolist(), strict=True)
        ]
        tables_made.append(Table(f"{name}_{framework}", f"{framework}: confusion, {title}{several}", columns, rows))
    return tables_made


def sections(made: Evaluated) -> list[tuple[str, list[str]]]:
    """The findings, by subject."""
    found = [
        ("How often are the final models right?", [_accuracy_words(model, made) for model in made.models if model.scores]),
        ("Do the frameworks' models agree?", _agreement_words(made)),
        ("Does a checkpoint carry over?", _crossing_words(made)),
        ("What is confused?", [words for framework in _scored(made) if (words := _confused_words(made, framework))]),
        (
            "Are the models as sure as they are right?",
            [_calibration_words(model, made) for model in made.models if model.scores],
        ),
        ("Cautions", _cautions(made)),
    ]
    return [(title, sentences) for title, sentences in found if sentences]


def heading(made: Evaluated) -> str:
    spec = next(iter(made.specs.values()))
    ground = document.ground(made.machine, made.versions)
    return f"{spec['model']} on {made.data_name}: final training and evaluation\n{ground}"


def write(made: Evaluated, images: Images, folder: Path) -> None:
    """Write tables (Markdown, CSV, LaTeX), plots, sheets of confused images and the report.

    Args:
        made: what is written.
        images: uint8 [N, S, S, 3], of the test split.
        folder: where to.

    Raises:
        OSError: it cannot be written.
    """
    for table in documents(made):
        tables.write(table, folder / document.TABLES_FOLDER)
    drawn = draw(made, folder / document.PLOTS_FOLDER)
    for framework in _scored(made):
        if rows := _confused_rows(made, framework, images):
            name = f"confused_{framework}"
            atomic_files.write_atomically(folder / document.PLOTS_FOLDER / f"{name}.png", image_grid.rows_of_images(rows))
            drawn.append(name)
    atomic_files.write_atomically(folder / REPORT_FILE, to_markdown(made, drawn))


def to_plain(made: Evaluated) -> dict[str, Any]:
    """Everything, JSON-ready."""
    return made.model_dump(mode="json") | {
        "tables": [tables.to_plain(table) for table in documents(made)],
        "sentences": [sentence for _, sentences in sections(made) for sentence in sentences],
        "exit_code": made.exit_code,
    }


def to_json(made: Evaluated) -> str:
    return json.dumps(to_plain(made), indent=1, allow_nan=False)


def to_markdown(made: Evaluated, plot_names: Sequence[str]) -> str:
    return document.markdown("Evaluation", heading(made).splitlines(), sections(made), documents(made), plot_names)


def print_to(console: Console, made: Evaluated) -> None:
    """Tables, with their sentences below."""
    console.print(heading(made), markup=False)
    tables.print_all(console, filled(on_terminal(made)), where=REPORT_FILE)
    tables.print_sections(console, sections(made))
    console.print()


def draw(made: Evaluated, folder: Path) -> list[str]:
    """Draw every plot. Returns the names of those that have something to show."""

    def drawn(drawing: Callable[[Figure, Evaluated, Sequence[str]], None], figure: Figure) -> bool:
        if shown := _scored(made):
            drawing(figure, made, shown)
        return bool(shown)

    drawings = {"confusion": _draw_confusion, "calibration": _draw_calibration, "f1_by_class": _draw_f1}
    files = plots.write_all({name: partial(drawn, drawing) for name, drawing in drawings.items()}, folder)
    return list(dict.fromkeys(path.stem for path in files))


def _draw_confusion(figure: Figure, made: Evaluated, shown: Sequence[str]) -> None:
    plots.draw_confusion(figure, {framework: _confusion(made, framework) for framework in shown}, made.class_names)


def _draw_calibration(figure: Figure, made: Evaluated, shown: Sequence[str]) -> None:
    axis, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    axis.plot([0, 1], [0, 1], color="0.6", linestyle=":", label="as sure as right")
    for index, framework in enumerate(shown):
        for number, model in enumerate(made.of(framework)):
            assert model.scores is not None
            bins = [each for each in model.scores.bins if each.count]
            style = {"color": plots.COLOURS[index % len(plots.COLOURS)], "marker": plots.MARKERS[index % len(plots.MARKERS)]}
            label = framework if number == 0 else None
            axis.plot([each.confidence for each in bins], [each.accuracy for each in bins], label=label, **style)
            edges = [model.scores.bins[0].low, *(each.high for each in model.scores.bins)]
            counts.stairs([each.count for each in model.scores.bins], edges, color=style["color"], linewidth=2)
    axis.set(title="How sure, and how often right", ylabel="accuracy of the bin", ylim=(0, 1.02))
    counts.set(xlabel="probability of the predicted label", ylabel="images")
    axis.legend(frameon=False)


def _draw_f1(figure: Figure, made: Evaluated, shown: Sequence[str]) -> None:
    names = [wording.shortened(name, _NAME) for name in plots.labels(made.class_names)]
    figure.set_figheight(max(5.0, 1.5 + 0.34 * len(names)))
    axis: Axes = figure.subplots()
    height = 0.8 / len(shown)
    for index, framework in enumerate(shown):
        found = [
            spread([model.scores.classes[label].f1 for model in made.of(framework) if model.scores])
            for label in range(len(names))
        ]
        places = np.arange(len(names)) + (index - (len(shown) - 1) / 2) * height
        medians = [each.median if each else 0.0 for each in found]
        axis.barh(places, medians, height, color=plots.COLOURS[index % len(plots.COLOURS)], label=framework)
    if len(names) <= _NAMED_CLASSES:
        axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set(title="F1 of each class on the test split", xlabel="F1", xlim=(0, 1))
    figure.legend(loc="outside lower center", ncols=len(shown), frameon=False)


def _confused_rows(made: Evaluated, framework: str, images: Images) -> list[image_grid.Row]:
    """Images of the first training only: the grid is for viewing, not for counting."""
    model = made.of(framework)[0]
    names = plots.labels(made.class_names)
    return [
        image_grid.Row(
            f"{names[pair.true]}\ntaken for {names[pair.predicted]}",
            f"{pair.count:,}, {100 * pair.share:.0f} % of the class",
            [images[place] for place in pair.examples[: image_grid.PER_ROW]],
        )
        for pair in model.worst
    ]


def _scored(made: Evaluated) -> list[str]:
    return [framework for framework in made.frameworks if made.of(framework)]


def _confusion(made: Evaluated, framework: str) -> list[list[int]]:
    return scores.added_up([model.scores.confusion for model in made.of(framework) if model.scores])


def _spread(models: Sequence[Model], pick: Callable[[Model], float | None]) -> Spread | None:
    return spread([value for model in models if (value := pick(model)) is not None])


def _accuracy_words(model: Model, made: Evaluated) -> str:
    found = model.scores
    assert found is not None
    interval = _interval(found)
    ended = f"best epoch {model.best_epoch} of {model.epochs}"
    return (
        f"{_name(model, made)}: {found.num_correct:,} of {found.num_examples:,} right, {found.accuracy:.4f} ({CONFIDENCE:.0%}, "
        f"Wilson's interval: {interval.low:.4f} to {interval.high:.4f}); {ended}."
    )


def _interval(found: scores.Scores) -> Any:
    """Wilson's (1927) interval of the accuracy: `low` and `high`."""
    from scipy import stats  # here: it takes half a second to import, and most commands score nothing

    return stats.binomtest(found.num_correct, found.num_examples).proportion_ci(CONFIDENCE, method="wilson")


def _agreement_words(made: Evaluated) -> list[str]:
    said = [_pair_words(pair, made) for pair in made.pairs]
    if said:
        said.append(
            "That is of these trained models on these images: another seed gives other models, and their difference is no "
            "difference between the frameworks."
        )
    return said


def _pair_words(pair: Pair, made: Evaluated) -> str:
    found = pair.agreement
    seed = f"Seed {pair.seed}: " if len({each.seed for each in made.models}) > 1 else ""
    differing = f"{found.labelled_differently:,} of {found.num_examples:,} images"
    start = f"{seed}{pair.first} and {pair.second} label {differing} differently"
    if pair.adjusted_p is None:
        return f"{start}; neither is right where the other is wrong, so there is nothing to test."
    alone = f"{pair.first} alone is right on {found.first_alone_right:,}, {pair.second} alone on {found.second_alone_right:,}"
    p = "< 0.001" if pair.adjusted_p < 0.001 else f"= {pair.adjusted_p:.3f}"
    tested = sum(each.adjusted_p is not None for each in made.pairs)
    among = f" among {tested} pairs, Holm" if tested > 1 else ""
    better = pair.first if found.first_alone_right > found.second_alone_right else pair.second
    verdict = f"{better}'s model is right more often" if pair.adjusted_p < SIGNIFICANCE else "no difference in accuracy shown"
    return f"{start}; {alone}: {verdict} (McNemar's exact test, p {p}{among})."


def _crossing_words(made: Evaluated) -> list[str]:
    crossings = [(model, each) for model in made.models for each in model.crossings]
    if not crossings:
        return []
    largest = max(each.largest_difference for _, each in crossings)
    limit = made.rounding
    moved = [(model, each) for model, each in crossings if each.labelled_differently]
    size = f"the largest difference of a probability is {largest:.1e}"
    if not moved and largest <= limit:
        many = "Each checkpoint" if len(crossings) > 1 else "The checkpoint"
        return [f"{many} labels every test image the same in the other framework; {size}, which is rounding."]
    said = [
        f"{_name(model, made)}'s checkpoint labels {each.labelled_differently:,} of {made.num_examples:,} images differently "
        f"in {each.framework}: the largest difference of a probability is {each.largest_difference:.1e}."
        for model, each in moved
    ]
    return said if largest <= limit else [*said, f"NOT THE SAME: {size}, more than rounding ({limit:.0e})."]


def _confused_words(made: Evaluated, framework: str) -> str | None:
    model = made.of(framework)[0]
    worst = [
        f"{made.class_names[pair.true]} taken for {made.class_names[pair.predicted]} ({pair.count:,}, "
        f"{100 * pair.share:.0f} % of the class)"
        for pair in model.worst[:_WORST_SAID]
    ]
    return f"{_name(model, made)}: {'; '.join(worst)}." if worst else None


def _calibration_words(model: Model, made: Evaluated) -> str:
    found = model.scores
    assert found is not None
    confidence = sum(each.confidence * each.count for each in found.bins if each.confidence is not None) / found.num_examples
    interval = _interval(found)
    chance = "more than" if found.calibration_error > found.calibration_chance else "no more than"
    kind = "neither surer nor less sure than it is right, as far as so many images can tell"
    if not interval.low <= confidence <= interval.high:
        kind = "surer than it is right" if confidence > found.accuracy else "less sure than it is right"
    return (
        f"{_name(model, made)}: expected calibration error {found.calibration_error:.4f} ({BINS} bins), {chance} the "
        f"{found.calibration_chance:.4f} within which a calibrated model stays by chance ({CHANCE:.0%}); mean confidence "
        f"{confidence:.4f} at an accuracy of {found.accuracy:.4f}, on the whole {kind}."
    )


def _cautions(made: Evaluated) -> list[str]:
    said = [
        f"{_name(model, made)}: {model.status}{f', {model.reason}' if model.reason else ''}."
        for model in made.models
        if not model.scores
    ]
    for framework in _scored(made):
        last = [model for model in made.of(framework) if model.best_epoch == model.epochs]
        if last:
            said.append(f"{framework}: the best epoch was the last one; a longer training may be better.")
    if unseen := [name for name, images in zip(made.class_names, _supports(made), strict=False) if not images]:
        said.append(
            f"The test split has no image of {_listed(unseen)}: the 0 of {'it' if len(unseen) == 1 else 'them'} is in the "
            "macro averages."
        )
    if made.tuned_on not in (None, made.data_hash):
        said.append(
            "The fields were tuned on other data, or other splits of it: where images of this test split were among them, its "
            "scores flatter."
        )
    said += [words for framework in _scored(made) if (words := _schedule_words(made, framework))]
    settings = {framework: {**spec, "framework_options": None} for framework, spec in made.specs.items()}
    first = next(iter(settings.values()))
    differing = sorted({field for spec in settings.values() for field in spec if spec[field] != first.get(field)})
    if differing:
        said.append(f"The frameworks trained with settings of their own, so this is no race: {', '.join(differing)} differ.")
    if made.models and all(model.repeat == 0 for model in made.models):
        said.append("One training of each framework: how much another seed would change is not known; --repeats says it.")
    return said


def _supports(made: Evaluated) -> list[int]:
    """Test images of each class; none where nothing was scored."""
    found = next((model.scores for model in made.models if model.scores), None)
    return [each.support for each in found.classes] if found else []


def _schedule_words(made: Evaluated, framework: str) -> str | None:
    """A warning if the learning rate falls in steps to almost nothing, as when shorter trials chose the steps."""
    spec = made.specs[framework]
    size, gamma = spec["schedule.step_size"], spec["schedule.gamma"]
    if spec["schedule.name"] != "step" or gamma == 1.0:
        return None
    spent = size * math.ceil(math.log(_SPENT) / math.log(gamma)) + 1
    if spent > max(model.epochs for model in made.of(framework)):
        return None
    return (
        f"{framework}: from epoch {spent} on the learning rate was {_SPENT:g} of the first or less, by schedule.step_size "
        f"{size} and gamma {gamma:g}. Steps are counted in epochs: those that suit a short trial end a long training early."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_WORST_SAID]) + (f" and {len(names) - _WORST_SAID} more" if len(names) > _WORST_SAID else "")


def _name(model: Model, made: Evaluated) -> str:
    several = len({each.seed for each in made.models}) > 1
    return f"{model.framework}, seed {model.seed}" if several else model.framework
