"""`python -m compare reproduce`: reproduces a published report, as it was and corrected, and judges its claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure
from rich.console import Console

from common import spec
from common.artifacts.schema import EpochRecord, RunResult
from common.data import cache, sources
from common.data.sources import DataRefused
from common.machine import machine
from compare.comparison import comparison_plan, estimate, run
from compare.core import exits, wording
from compare.core.interrupt import interruptible
from compare.core.option_parsing import chosen
from compare.core.presets import Preset
from compare.core.progress import Display, display
from compare.data import preprocess
from compare.data.data_report import counted
from compare.evaluation import final_training
from compare.evaluation.final_training import Evaluated
from compare.execution import launch, store
from compare.execution.matrix import Row
from compare.execution.store import Comparison
from compare.papers import cifar10_minixception, plant_disease_resnet18, tomato_two_frameworks
from compare.papers.paper import SCALES, SMOKE, Claim, Here, Paper, Plan, Setting, Training, Wanted
from compare.reporting import content, plots, report
from compare.reporting.sections import Section, Whole
from compare.reporting.tables import Cell, Column, Table
from compare.tuning import tuner
from compare.workflows import step_runner, study_steps
from compare.workflows.step_runner import Done, Made, Passed, Record, Step

KIND = "reproduction"
_ALL: tuple[Paper, ...] = (cifar10_minixception, tomato_two_frameworks, plant_disease_resnet18)
PAPERS = {paper.NAME: paper for paper in _ALL}
SUFFIXES = ("", ".tar", ".tar.gz", ".tar.xz", ".zip")
_CURVES = "curves"
_FEW_NAMES = 3
"""Number of classes by which data are recognized."""
_FEW_IMAGES = 256
"""Number of images from which the scans are estimated."""
_FAITHFUL, _VERDICTS = "faithful", "verdicts"
_TONES = {"reproduced": "good", "not reproduced": "bad", "contradicted by the paper's own table": "bad"}


@dataclass(frozen=True)
class Reproduction:
    """A report and its runs here."""

    paper: Paper
    setting: Setting
    plan: Plan

    @property
    def trainings(self) -> list[Training]:
        return [*self.plan.faithful, self.plan.corrected]


def command(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help=f"Which report: {', '.join(PAPERS)}.")],
    scale: Annotated[str, typer.Option(help=f"How much of it: {', '.join(SCALES)}; full is the report's own size.")] = "quick",
    data: Annotated[
        str | None,
        typer.Option(help="Its data: a folder or archive. Default: by name from the cache; at smoke made up."),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the spec of every run, e.g. hang_seconds=600.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder. Default: results/<paper>-<scale>; an unfinished reproduction there goes on.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print verdicts and every table as JSON.")] = False,
) -> None:
    """Run a published report again, as it was and as it should have been, and judge each of its claims."""
    with exits.told(), interruptible():
        chosen("PAPER", [paper], tuple(PAPERS))
        chosen("--scale", [scale], SCALES)
        wanted = PAPERS[paper]
        values = spec.overlay({}, spec.parse_assignments(assignments or []))
        common = spec.build(values)  # refuses unknown fields
        source = _source(wanted, scale, data, common.paths.cache_dir)
        gpus = 0 if common.device == "cpu" else _gpus(wanted.FRAMEWORKS)
        setting = Setting(scale, source, gpus, values, made_up=data is None and scale == SMOKE)
        subject = Reproduction(wanted, setting, wanted.plan(setting))
        settings: dict[str, Any] = {"paper": paper, "scale": scale, "source": source, "gpus": setting.gpus, "values": values}
        settings["rows"] = [row.spec.model_dump(mode="json") for each in subject.trainings for row in each.rows]
        settings["repeats"] = [each.repeats for each in subject.trainings]
        if subject.plan.tuning is not None:
            settings["tuning"] = subject.plan.tuning.model_dump(mode="json")
        if subject.plan.final is not None:
            settings["final"] = subject.plan.final({}).model_dump(mode="json")
        record = Record.of(KIND, settings, tuple(launch.FRAMEWORKS), wanted.published().model)
        folder = out or Path("results") / f"{paper}-{scale}"
        steps = _steps(subject)
        code = step_runner.walk(
            record, steps, subject, folder, lambda record, done: _whole(subject, record, done, len(steps)), as_json=as_json
        )
    raise typer.Exit(code)


def _source(paper: Paper, scale: str, given: str | None, cache_dir: str | None) -> str:
    """Path or name of the data.

    Raises:
        DataRefused: they are missing.
    """
    if given is not None:
        return given
    if scale == SMOKE:
        return paper.EMBEDDED
    folder = cache.folder(cache_dir)
    if (found := _found(paper.WANTED, folder)) is not None:
        return found
    names = ", ".join(f"{name}[{'|'.join(filter(None, SUFFIXES))}]" for name in paper.WANTED.names)
    raise DataRefused(
        f"The data of {paper.NAME} are not here. Received: no --data, and none of {names} in {folder}. Fetch "
        f"{paper.WANTED.what}. Put it there under such a name, or name it with --data. --scale smoke needs none."
    )


def _found(wanted: Wanted, folder: Path) -> str | None:
    paths = (folder / f"{name}{suffix}" for name in wanted.names for suffix in SUFFIXES)
    return next((str(path) for path in paths if path.exists()), None)


def _gpus(frameworks: Sequence[str]) -> int:
    """Number of accelerators that each of these sees here."""
    with launch.asked(list(frameworks)) as answer:
        seen = [answer(framework)["devices"] for framework in frameworks]
    return min(sum(device["kind"] != "cpu" for device in devices) for devices in seen)


def _steps(subject: Reproduction) -> list[Step[Reproduction]]:
    plan = subject.plan
    return [
        Step("plan", "what is run, and how long it takes", _plan),
        *([Step("scans", "mean and standard deviation by every engine", _scans)] if plan.scans else []),
        Step(_FAITHFUL, "the published runs, as they were", _faithful),
        Step("corrected", "the same question, asked of identical models", _corrected),
        *([Step("tune", "the search for better fields", _tune)] if plan.tuning else []),
        *([Step("final", "the final training, and its scores", _final)] if plan.final else []),
        Step(_VERDICTS, "the published tables, and a verdict for each claim", _verdicts, anew=True),
    ]


def _request(training: Training, folder: Path) -> run.Request:
    settings = Preset(replicas=training.replicas, repeats=training.repeats, seeds=training.seeds)
    frameworks = list(dict.fromkeys(row.framework for row in training.rows))
    return run.Request(
        settings,
        frameworks,
        folder,
        prove=training.prove,
        lay_out=lambda settings, frameworks: training.rows,
        oversubscribe=training.oversubscribe,
    )


def _plan(subject: Reproduction, folder: Path, passed: Passed) -> Made:
    published, scale = subject.paper.published(), subject.setting.scale
    known, rows, total = dict[str, Any](), list[dict[str, Cell]](), 0.0
    with display(Console(stderr=True)) as shown:
        judged = [(training, comparison_plan.judged(_request(training, folder), shown)) for training in subject.trainings]
        # # Trials and the final training use the images of the published runs.
        for training, comparison in [*judged, *((later, judged[0][1]) for later in _later(subject.plan))]:
            not_run = {row.id for row in comparison.rows if row.unavailable}
            for row in training.rows:
                shown.say(f"a few steps of {row.id}")
                if scale == SMOKE:
                    seconds = None
                else:
                    seconds = 0.0 if row.id in not_run else _seconds(training, row, comparison, known)
                rows.append(_line(training, row, comparison) | {"seconds": seconds})
                total += seconds or 0.0
        scans = None
        if subject.plan.scans is not None and scale != SMOKE:
            shown.say("a few images of every engine")
            scans = _scan_seconds(subject.plan.scans, shown)
            total += scans or 0.0
    minutes, rest = divmod(round(total), 60)
    more = [
        *(["the scans"] if subject.plan.scans and scans is None else []),
        *(["the proof"] if subject.plan.corrected.prove else []),
        *(f"{row['row']}, whose first steps failed" for row in rows if row["seconds"] is None),
    ]
    besides = f" Not counted: {', '.join(more)}." if more else ""
    what = f"training and {round(scans / 60)} min of scans in them" if scans else "training"
    said = f"About {minutes}:{rest:02d} min of {what}, by the first steps of each kind.{besides}"
    if scale == SMOKE:
        said = "About two minutes on two cores. At this scale no first steps are measured: they would take as long as the runs."
    departures = _departures(subject, judged[0][1])
    for sentence in (*departures, said):
        typer.echo(sentence, err=True)
    columns = (
        Column("training", "training"),
        Column("row", "run"),
        Column("model", "model"),
        Column("images", "training images"),
        Column("epochs", "epochs"),
        Column("batch", "batch"),
        Column("repeats", "repeats"),
        Column("seconds", "seconds, about", 0),
    )
    part = Section(
        name="plan",
        title="What is run",
        sections=[
            ("How long", [said]),
            ("Chosen, for the report does not state it", subject.plan.chosen),
            ("Where these runs are not the report's", [*departures, *subject.plan.departs]),
            ("What was found wrong in the report", published.caveats),
        ],
        tables=[Table("runs", "Runs", columns, rows)],
    )
    return Made(part)


def _departures(subject: Reproduction, made: Comparison) -> list[str]:
    """How the runs differ from the report's in ways that no plan knows: their data, and the caller's settings."""
    published, setting = subject.paper.published(), subject.setting
    names = made.class_names[:_FEW_NAMES]
    more = ", ..." if len(made.class_names) > len(names) else ""
    said = [
        f"The data: {made.data_name}, {counted(len(made.class_names), 'class', 'classes')} ({', '.join(names)}{more}), "
        f"{made.train_examples:,} training images; the report's: {published.dataset}, {published.classes} classes, "
        f"{subject.paper.images():,} training images."
    ]
    if len(made.class_names) != published.classes or not all(map(subject.paper.knows, made.class_names)):
        said.append("These are other data: no accuracy and no loss of the report can be expected of them.")
    said += [
        f"Set by the caller, in all runs: {field} = {value}, over whatever is said of it here."
        for field, value in store.flat(dict(setting.values)).items()
    ]
    return said


def _scan_seconds(request: preprocess.Request, shown: Display) -> float | None:
    """Approximate seconds of all scans, from one scan of a few images by each engine. None if one failed."""
    data = request.spec.data
    few = data.model_copy(update={"limit": min(data.limit or _FEW_IMAGES, _FEW_IMAGES)})
    small = replace(request, workers=(1,), repeats=1, spec=request.spec.model_copy(update={"data": few}))
    cache_dir = request.spec.paths.cache_dir
    images = len(sources.load_files(data, seed=request.spec.split_seed, cache_dir=cache_dir).train)
    turns = sum(1.0 / min(workers, machine.available_cores()) for workers in request.workers)
    total = 0.0
    for row in preprocess.run(small, shown, None).rows:
        if not row.scans:
            return None
        (made,) = row.scans
        starts = (made.import_seconds + made.start_seconds) * len(request.workers)
        total += request.repeats * (made.seconds / made.images * images * turns + starts)
    return total


def _later(plan: Plan) -> list[Training]:
    """The search, as if its trials ran one after the other, and the final training. Only for estimates."""
    made: list[Training] = []
    if (tuned := plan.tuning) is not None:
        rows = [Row(id=f"{each}-trial", framework=each, spec=spec.build(tuned.values)) for each in tuned.frameworks]
        trials = tuned.trials * len(tuned.jobs) * tuned.repeats
        made.append(Training("search", "The search, at most", rows, repeats=trials))
    if plan.final is not None:
        final = plan.final({})
        rows = [Row(id=f"{each}-final", framework=each, spec=spec.build(final.values)) for each in final.frameworks]
        made.append(Training("final", "The final training", rows, repeats=final.repeats))
    return made


def _seconds(training: Training, row: Row, comparison: Comparison, known: dict[str, Any]) -> float | None:
    """Approximate seconds of all runs of a row. Rows of one kind have the pace of their first, serially on all its cores."""
    kind = f"{row.framework} {row.spec.model} {row.spec.global_batch_size} {row.spec.data}"
    if kind not in known:
        serial = [each for each in training.rows if each.framework == row.framework and each.spec.mode == "serial"]
        known[kind] = estimate.measured(max(serial or [row], key=lambda each: each.spec.cores))
    like: tuple[RunResult, str] | str = known[kind]
    if isinstance(like, str):
        return None
    cores = like[0].spec.cores / row.spec.cores
    return estimate.seconds(row, like[0], comparison.train_examples) * training.repeats * max(cores, 1.0)


def _line(training: Training, row: Row, comparison: Comparison) -> dict[str, Cell]:
    return {
        "training": training.title,
        "row": row.id,
        "model": row.spec.model.rpartition(".")[2],
        "images": comparison.train_examples,
        "epochs": row.spec.epochs,
        "batch": row.spec.global_batch_size,
        "repeats": training.repeats,
    }


def _scans(subject: Reproduction, folder: Path, passed: Passed) -> Made:
    assert subject.plan.scans is not None
    return study_steps.scanned(subject.plan.scans, folder)


def _faithful(subject: Reproduction, folder: Path, passed: Passed) -> Made:
    made = {each.name: run.within(_request(each, folder / each.name), folder / each.name) for each in subject.plan.faithful}
    said = [sentence for found, _ in made.values() for sentence in found.findings.troubles]
    part = Section(
        name=_FAITHFUL,
        title="The published runs, as they were",
        sections=[("Cautions", said)] if said else [],
        tables=[
            replace(table, name=f"{table.name}_{name}", title=f"{title}: {table.title}")
            for (name, (found, _)), title in zip(made.items(), [each.title for each in subject.plan.faithful], strict=True)
            for table in content.documents(found)
            if table.name == "comparison"
        ],
        more=[f"{name}/{report.PAGE_FILE}" for name in made],
        conclusions=said,
    )
    return Made(part, exit_code=max(code for _, code in made.values()))


def _corrected(subject: Reproduction, folder: Path, passed: Passed) -> Made:
    training = subject.plan.corrected
    return study_steps.compared(_request(training, folder), folder, name=training.name, title=training.title)


def _tune(subject: Reproduction, folder: Path, passed: Passed) -> Made:
    assert subject.plan.tuning is not None
    return study_steps.tuned(subject.plan.tuning, folder)


def _final(subject: Reproduction, folder: Path, passed: Passed) -> Made:
    assert subject.plan.final is not None
    return study_steps.finished(subject.plan.final(passed.best), folder)


def _verdicts(subject: Reproduction, folder: Path, passed: Passed) -> Made:
    here = _here(subject, folder.parent)
    claims = subject.paper.claims(here)

    def curves(figure: Figure) -> bool:
        subject.paper.draw(figure, here)
        return True

    plots.write_all({_CURVES: curves}, folder)
    part = Section(
        name=_VERDICTS,
        title="The published tables, and what is to be said of the claims",
        sections=[(f"{each.verdict}: {each.said}", each.evidence) for each in claims],
        tables=[_claims_table(claims), *subject.paper.tables(here)],
        pictures=[f"{_CURVES}.svg"],
        conclusions=[f"{each.verdict.upper()}: {each.said}" for each in claims],
    )
    return Made(part)


def _claims_table(claims: list[Claim]) -> Table:
    columns = (
        Column("claim", "claim", fold=50),
        Column("verdict", "verdict", fold=24),
        Column("evidence", "evidence", terminal=False),
    )
    rows: list[dict[str, Cell]] = [
        {"claim": each.said, "verdict": each.verdict, "evidence": " ".join(each.evidence)} for each in claims
    ]
    return Table("claims", "Claims", columns, rows)


def _here(subject: Reproduction, folder: Path) -> Here:
    """All results that the steps have left in their folders."""
    places = {step.name: folder / f"{number}-{step.name}" for number, step in enumerate(_steps(subject), 1)}
    folders = {each.name: places[_FAITHFUL] / each.name for each in subject.plan.faithful}
    folders[subject.plan.corrected.name] = places["corrected"]
    evaluated = final_training.read(places["final"]) if subject.plan.final else None
    return Here(
        setting=subject.setting,
        plan=subject.plan,
        trainings={name: report.read(where) for name, where in folders.items()},
        folders=folders,
        scans=preprocess.read(places["scans"]) if subject.plan.scans else None,
        tuned=tuner.read(places["tune"]) if subject.plan.tuning else None,
        evaluated=evaluated,
        final_epoch=_kept(evaluated, places["final"]) if evaluated else None,
    )


def _kept(evaluated: Evaluated, folder: Path) -> EpochRecord | None:
    """The epoch whose weights the first of the final trainings kept."""
    stored = store.read(folder / final_training.TRAINING_FOLDER)
    runs = [run for repeats in stored.runs.values() for run in repeats.values()]
    best = next((model.best_epoch for model in evaluated.models), None)
    return next((each for run in runs for each in run.epochs if each.epoch == best), None)


def _whole(subject: Reproduction, record: Record, done: list[Done], steps: int) -> Whole:
    published = subject.paper.published()
    parts = sorted((each.part for each in done), key=lambda each: each.name != _VERDICTS)
    return Whole(
        title=f"Reproduced: {published.title}",
        overline=f"Published report {subject.paper.NAME}, scale {subject.setting.scale}",
        facts=[
            f"{published.model} on {subject.setting.source}; begun {record.created_at}",
            f"{record.machine.get('processor') or 'unknown processor'}, {_devices(subject)}",
            f"The report: {subject.paper.hardware()}",
        ],
        marks=[*_counts(parts), *step_runner.marks(done, steps)],
        conclusions=[(each.title, each.conclusions) for each in parts if each.conclusions],
        parts=parts,
        commands=step_runner.commands(record),
    )


def _devices(subject: Reproduction) -> str:
    cores, gpus = machine.available_cores(), subject.setting.gpus
    return f"{wording.count(cores, 'core')}, {gpus or 'no'} GPU{'' if gpus == 1 else 's'}"


def _counts(parts: list[Section]) -> Iterator[tuple[str, str, str]]:
    table = next((table for each in parts if each.name == _VERDICTS for table in each.tables if table.name == "claims"), None)
    for verdict, count in Counter(str(row["verdict"]) for row in table.rows).items() if table else ():
        yield verdict[:1].upper() + verdict[1:], f"{count}", _TONES.get(verdict, "")
