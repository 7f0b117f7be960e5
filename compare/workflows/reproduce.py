"""`convtwins reproduce`: reproduces a published report, as it was and corrected, and judges its claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from common import spec
from common.artifacts.schema import EpochRecord, RunResult
from common.data import cache, sources
from common.data.sources import DataRefused
from common.machine import machine
from compare.comparison import comparison_plan, estimate, run
from compare.core import exits, wording
from compare.core.interrupt import interruptible
from compare.core.option_parsing import parse_choices
from compare.core.presets import Preset
from compare.core.progress import Display, display
from compare.data import engine_scans, preprocess_report
from compare.evaluation import final_training
from compare.evaluation.final_training import Evaluated
from compare.execution import launch, options, signing, store
from compare.execution.matrix import Row
from compare.execution.store import Comparison
from compare.papers import cells, claims, curves, schema
from compare.papers.here import Here
from compare.papers.here import command as command_of
from compare.papers.judging import CANNOT_TELL, CONTRADICTED, Verdict
from compare.papers.plan import AS_IT_WAS, CORRECTED, REPLICAS, Plan, Setting, Training, plan
from compare.papers.schema import SCALES, SMOKE, Paper, Scale
from compare.reporting import comparison_report, plots
from compare.reporting.document import Mark, Report, Section
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Cell, Column, Table
from compare.tuning import tuner
from compare.workflows import step_runner, study_steps
from compare.workflows.step_runner import Done, Made, Passed, Record, Step

KIND = "reproduction"
SUFFIXES = ("", ".tar", ".tar.gz", ".tar.xz", ".zip")
_CURVES = "curves"
_OTHER_DATA = "These are other data: no accuracy and no loss of the report can be expected of them."
_FEW_NAMES = 3
"""Class names that the plan shows."""
_FEW_IMAGES = 256
"""Images that the estimate of the scans reads."""
_VERDICTS = "verdicts"
_TONES = {"reproduced": "good", "not reproduced": "bad", CONTRADICTED: "bad"}
_SHOWN: dict[Verdict, tuple[str, str]] = {
    "reproduced": ("confirmed", "+"),
    "not reproduced": ("refuted", "-"),
    CONTRADICTED: ("refuted", "-"),
    CANNOT_TELL: ("not told", "?"),
}
"""Verdict: its label on the first screen, and its mark."""
_TOY: dict[Scale, str] = {
    SMOKE: "Scale smoke shows that everything runs here. It judges no claim for good.",
    "quick": "Scale quick trains less than the report did. Its own size is --scale full.",
}


def command(
    paper: Annotated[
        str,
        typer.Argument(metavar="PAPER", help=f"A published report: {', '.join(schema.names())}, or a YAML file of your own."),
    ],
    scale: Annotated[
        str, typer.Option(help=f"How much of it: {', '.join(SCALES)}. The last is the report's own size.")
    ] = "quick",
    data: Annotated[
        str | None,
        typer.Option(help=f"{options.DATA} Default: the report's own, from the cache; at smoke small ones in their place."),
    ] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help=f"{options.SET} Of every run.")] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"{options.OUT} Default: results/<paper>-<scale>. What is unfinished there goes on.")
    ] = None,
    sign: options.Sign = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a published report again, as it was and as it should have been, and judge each of its claims."""
    with exits.exit_on_error(), interruptible():
        signing.check_key(sign)
        wanted = schema.find(paper)
        parse_choices("--scale", [scale], SCALES)
        size = SCALES[SCALES.index(scale)]
        values = spec.overlay({}, spec.parse_assignments(assignments or []))
        common = spec.build(values)  # refuses unknown fields
        source = _source(wanted, size, data, common.paths.cache_dir)
        folder = out or Path("results") / f"{wanted.name}-{size}"
        settings: dict[str, Any] = {"paper": wanted.name, "scale": size, "source": source, "values": values}
        step_runner.refuse_used(folder, KIND, settings)
        gpus = 0 if common.device == "cpu" else _gpus(wanted.gpu_frameworks)
        made = plan(wanted, Setting(size, source, gpus, values, synthetic=data is None and size == SMOKE))
        settings["gpus"] = gpus
        settings["rows"] = [row.spec.model_dump(mode="json") for each in made.trainings for row in each.rows]
        settings["repeats"] = [each.repeats for each in made.trainings]
        if made.tuning is not None:
            settings["tuning"] = made.tuning.model_dump(mode="json")
        if made.final is not None:
            settings["final"] = made.final.model_dump(mode="json")
        record = Record.of(KIND, settings, tuple(launch.FRAMEWORKS), wanted.model)
        steps = _steps(made)
        code = step_runner.run_steps(
            record,
            steps,
            made,
            folder,
            lambda record, done: _report(made, record, done, len(steps)),
            sign=sign,
            as_json=as_json,
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
        return paper.data.smoke
    folder = cache.folder(cache_dir)
    if (found := _found(paper, folder)) is not None:
        return found
    names = ", ".join(f"{name}[{'|'.join(filter(None, SUFFIXES))}]" for name in paper.data.cache_names) or "its names"
    raise DataRefused(
        f"The data of {paper.name} are not here. Received: no --data, and none of {names} in {folder}. Fetch "
        f"{paper.data.fetch}. Put it there under such a name, or name it with --data. --scale smoke needs none."
    )


def _found(paper: Paper, folder: Path) -> str | None:
    paths = (folder / f"{name}{suffix}" for name in paper.data.cache_names for suffix in SUFFIXES)
    return next((str(path) for path in paths if path.exists()), None)


def _gpus(frameworks: Sequence[str]) -> int:
    """Number of accelerators that each of these sees here."""
    with launch.describe_all(list(frameworks)) as answer:
        seen = [answer(framework)["devices"] for framework in frameworks]
    return min(sum(device["kind"] != "cpu" for device in devices) for devices in seen)


def _steps(plan: Plan) -> list[Step[Plan]]:
    corrected, scans, tuning, final = plan.corrected, plan.scans, plan.tuning, plan.final
    steps: list[Step[Plan] | None] = [
        Step("plan", "what is run, and how long it takes", _shown),
        scans
        and Step("scans", "mean and standard deviation by every engine", lambda _, at, __: study_steps.scanned(scans, at)),
        Step(AS_IT_WAS, "the published runs, as they were", _faithful),
        Step(
            CORRECTED,
            "the same question, asked of identical models",
            lambda _, at, __: study_steps.compared(_request(corrected, at), at, name=CORRECTED, title=corrected.title),
        ),
        tuning and Step("tune", "the search for better fields", lambda _, at, __: study_steps.tuned(tuning, at)),
        final
        and Step(
            "final",
            "the final training, and its scores",
            lambda _, at, passed: study_steps.finished(final.model_copy(update={"tuned": passed.best}), at),
        ),
        Step(_VERDICTS, "the published tables, and a verdict for each claim", _verdicts, anew=True),
    ]
    return [step for step in steps if step]


def _request(training: Training, folder: Path) -> run.ComparisonRequest:
    settings = Preset(replicas=REPLICAS, repeats=training.repeats, seeds=training.seeds)
    frameworks = list(dict.fromkeys(row.contestant for row in training.rows))
    return run.ComparisonRequest(
        settings,
        frameworks,
        folder,
        prove=training.prove,
        lay_out=lambda settings, frameworks: training.rows,
        oversubscribe=training.oversubscribe,
    )


def _shown(plan: Plan, folder: Path, passed: Passed) -> Made:
    """Shows what is run, where it differs from the paper, and how long it takes. At smoke that is known beforehand."""
    known, rows, smoke = dict[str, Any](), list[dict[str, Cell]](), plan.setting.scale == SMOKE
    scans: float | None = None
    with display() as shown:
        judged = [(training, comparison_plan.build_plan(_request(training, folder), shown)) for training in plan.trainings]
        # Trials and the final training use the images of the published runs.
        for training, comparison in [*judged, *((later, judged[0][1]) for later in _later(plan))]:
            not_run = {row.id for row in comparison.rows if row.unavailable}
            for row in training.rows:
                shown.say(f"a few steps of {row.id}")
                seconds = 0.0 if row.id in not_run else None
                if not smoke and seconds is None:
                    seconds = _seconds(training, row, comparison, known)
                rows.append(_line(training, row, comparison) | {"seconds": None if smoke else seconds})
        if plan.scans is not None and not smoke:
            shown.say("a few images of every engine")
            scans = _scan_seconds(plan.scans, shown)
    said = "At this scale no first steps are measured: they would take as long as the runs."
    if plan.paper.argument in schema.names():
        said = f"About two minutes on two cores. {said}"
    if not smoke:
        said = _duration(plan, rows, scans)
    departures = _departures(plan, judged[0][1])
    for sentence in (*departures, said):
        typer.echo(sentence, err=True)
    part = Section(
        name="plan",
        title="What is run",
        findings=[
            ("How long", [said]),
            ("Chosen, for the report does not state it", plan.chosen),
            ("Where these runs are not the report's", [*departures, *plan.departs]),
            ("What was found wrong in the report", plan.paper.caveats),
        ],
        tables=[Table("runs", "Runs", _COLUMNS, rows)],
    )
    return Made(part)


_COLUMNS = (
    Column("training", "training"),
    Column("row", "run"),
    Column("model", "model"),
    Column("images", "training images"),
    Column("epochs", "epochs"),
    Column("batch", "batch"),
    Column("repeats", "repeats"),
    Column("seconds", "seconds, about", 0),
)


def _duration(plan: Plan, rows: list[dict[str, Cell]], scans: float | None) -> str:
    seconds = [row["seconds"] for row in rows]
    total = sum(each for each in seconds if isinstance(each, float)) + (scans or 0.0)
    not_counted = [
        *(["the scans"] if plan.scans and scans is None else []),
        *(["the proof"] if plan.corrected.prove else []),
        *(f"{row['row']}, whose first steps failed" for row in rows if row["seconds"] is None),
    ]
    besides = f" Not counted: {', '.join(not_counted)}." if not_counted else ""
    what = f"training and {round(scans / 60)} min of scans in them" if scans else "training"
    return f"About {wording.clock_words(total)} min of {what}, by the first steps of each kind.{besides}"


def _departures(plan: Plan, made: Comparison) -> list[str]:
    """How the runs differ from the paper's in ways that no plan knows: their data, and the caller's settings."""
    paper = plan.paper
    names = made.class_names[:_FEW_NAMES]
    more = ", ..." if len(made.class_names) > len(names) else ""
    said = [
        f"The data: {made.data_name}, {wording.count(len(made.class_names), 'class', 'classes')} ({', '.join(names)}{more}), "
        f"{made.train_examples:,} training images; the report's: {paper.data.name}, {paper.data.classes} classes, "
        f"{paper.data.images:,} training images."
    ]
    if not paper.is_of(made.class_names):
        said.append(_OTHER_DATA)
    said += [
        f"Set by the caller, in all runs: {field} = {value}, over whatever is said of it here."
        for field, value in store.flatten(dict(plan.setting.values)).items()
    ]
    return said


def _scan_seconds(request: engine_scans.Request, shown: Display) -> float | None:
    """Approximate seconds of all scans, from one scan of a few images by each engine. None if one failed."""
    data = request.spec.data
    few = data.model_copy(update={"limit": min(data.limit or _FEW_IMAGES, _FEW_IMAGES)})
    small = replace(request, workers=(1,), repeats=1, spec=request.spec.model_copy(update={"data": few}))
    cache_dir = request.spec.paths.cache_dir
    images = len(sources.load_files(data, seed=request.spec.split_seed, cache_dir=cache_dir).train)
    turns = sum(1.0 / min(workers, machine.available_cores()) for workers in request.workers)
    total = 0.0
    for row in engine_scans.run(small, shown, None).rows:
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
        rows = [Row(id=f"{each}-trial", contestant=each, spec=spec.build(tuned.values)) for each in tuned.frameworks]
        trials = tuned.trials * len(tuned.jobs) * tuned.repeats
        made.append(Training("search", "The search, at most", rows, repeats=trials))
    if (final := plan.final) is not None:
        rows = [Row(id=f"{each}-final", contestant=each, spec=spec.build(final.values)) for each in final.frameworks]
        made.append(Training("final", "The final training", rows, repeats=final.repeats))
    return made


def _seconds(training: Training, row: Row, comparison: Comparison, known: dict[str, Any]) -> float | None:
    """Approximate seconds of all runs of a row. Rows of one kind have the pace of their first, serially on all its cores."""
    kind = f"{row.contestant} {row.spec.model_label} {row.spec.global_batch_size} {row.spec.data}"
    if kind not in known:
        serial = [each for each in training.rows if each.contestant == row.contestant and each.spec.mode == "serial"]
        known[kind] = estimate.measure_row(max(serial or [row], key=lambda each: each.spec.cores))
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


def _faithful(plan: Plan, folder: Path, passed: Passed) -> Made:
    made = {each.name: run.run_nested(_request(each, folder / each.name), folder / each.name) for each in plan.faithful}
    said = [
        sentence
        for name, (found, _) in made.items()
        for sentence in comparison_report.with_folder(found.findings.troubles, folder / name)
    ]
    part = Section(
        name=AS_IT_WAS,
        title="The published runs, as they were",
        findings=[("Cautions", said)] if said else [],
        tables=[
            replace(table, name=f"{table.name}_{name}", title=f"{title}: {table.title}")
            for (name, (found, _)), title in zip(made.items(), [each.title for each in plan.faithful], strict=True)
            for table in comparison_report.report_tables(found)
            if table.name == "comparison"
        ],
        more=[f"{name}/report.html" for name in made],
        conclusions=said,
    )
    return Made(part, exit_code=max(code for _, code in made.values()))


def _verdicts(plan: Plan, folder: Path, passed: Passed) -> Made:
    here = _here(plan, folder.parent)
    judged = claims.judge_all(here)
    columns = (
        Column("claim", "claim", fold=50, pick="said"),
        Column("verdict", "verdict", fold=24),
        Column("evidence", "evidence", terminal=False, pick=lambda claim: " ".join(claim.evidence)),
    )
    plots.write_all({_CURVES: lambda figure: curves.draw(figure, here)}, folder)
    part = Section(
        name=_VERDICTS,
        title="The published tables, and what is to be said of the claims",
        findings=[(f"{each.verdict}: {each.said}", each.evidence) for each in judged],
        tables=[Table.from_items("claims", "Claims", columns, judged), *cells.tables(here)],
        pictures=[f"{_CURVES}.svg"] if plan.paper.curves else [],
        conclusions=[f"{each.verdict.upper()}: {each.said}" for each in judged],
    )
    return Made(part)


def _here(plan: Plan, folder: Path) -> Here:
    """All results that the steps have left in their folders."""
    places = {step.name: folder / f"{number}-{step.name}" for number, step in enumerate(_steps(plan), 1)}
    folders = {each.name: places[AS_IT_WAS] / each.name for each in plan.faithful} | {CORRECTED: places[CORRECTED]}
    evaluated = final_training.read(places["final"]) if plan.final else None
    return Here(
        plan=plan,
        trainings={name: comparison_report.read(where) for name, where in folders.items()},
        folders=folders,
        scans=preprocess_report.read(places["scans"]) if plan.scans else None,
        tuned=tuner.read(places["tune"]) if plan.tuning else None,
        evaluated=evaluated,
        final_epoch=_kept(evaluated, places["final"]) if evaluated else None,
    )


def _kept(evaluated: Evaluated, folder: Path) -> EpochRecord | None:
    """The epoch whose weights the first of the final trainings kept."""
    stored = store.read(folder / final_training.TRAINING_FOLDER)
    runs = [run for repeats in stored.runs.values() for run in repeats.values()]
    best = next((model.best_epoch for model in evaluated.models), None)
    return next((each for run in runs for each in run.epochs if each.epoch == best), None)


def _report(plan: Plan, record: Record, done: list[Done], steps: int) -> Report:
    paper, setting = plan.paper, plan.setting
    parts = sorted((each.part for each in done), key=lambda each: each.name != _VERDICTS)
    commit = record.machine.get("commit")
    changed = ", with changes that were not committed" if record.machine.get("dirty") else ""
    larger = command_of(paper, setting, "quick")
    return Report(
        title=f"Reproduction of: {paper.title}",
        overline=f"Published report {paper.name}, scale {setting.scale}",
        facts=[
            f"{paper.model} on {setting.source}, scale {setting.scale}; begun {record.created_at}",
            f"{machine.processors(record.machine)}, {setting.devices}",
            f"The report: {paper.hardware}",
            *_on_the_data(plan, parts),
            *([f"Scale smoke shows that everything runs here. For figures: {larger}"] if setting.scale == SMOKE else []),
            *([f"Code: commit {commit}{changed}"] if commit else []),
        ],
        marks=[*_counts(parts), *step_runner.marks(done, steps)],
        findings=[(each.title, each.conclusions) for each in parts if each.conclusions],
        sections=parts,
        commands=step_runner.commands(record),
        screen=_screen(plan, record, done, steps),
    )


def _screen(plan: Plan, record: Record, done: list[Done], steps: int) -> Screen:
    """The claims by their verdicts. One that was judged at a smaller scale than the report's own stands apart."""
    paper, setting = plan.paper, plan.setting
    parts = [each.part for each in done]
    whole = setting.scale == SCALES[-1]
    groups: dict[str, list[dict[str, Cell]]] = {"confirmed": [], "refuted": [], "at toy scale only": [], "not told": []}
    for said, verdict in _claims(parts):
        label, mark = _SHOWN[verdict]
        if verdict in ("reproduced", "not reproduced") and not whole:
            label = "at toy scale only"
        by = " by its own table" if verdict == CONTRADICTED else ""
        groups[label].append({"claim": said, "verdict": f"{mark} {label}{by}"})
    counted = ", ".join(f"{len(own)} {label}" for label, own in groups.items())
    rows = [row for own in groups.values() for row in own]
    columns = (Column("claim", "claim"), Column("verdict", "here"))
    minutes = sum(each.seconds for each in done) / 60
    larger = next(iter(SCALES[SCALES.index(setting.scale) + 1 :]), None)
    answers = [
        step_runner.failed(done),
        Paragraph("Claims", [f"{wording.count(len(rows), 'claim')}: {counted}."] if rows else []),
        Paragraph("Toy scale", [_TOY[setting.scale]] if not whole else [], "warn"),
        step_runner.trouble(done, *_on_the_data(plan, parts)),
    ]
    return Screen(
        subject=[
            f"{paper.title} ({paper.name})",
            f"{paper.model} on {setting.source}, scale {setting.scale}",
            f"{len(done)} of {steps} steps in {minutes:.1f} minutes",
            f"{setting.devices}, {machine.processors(record.machine)}",
        ],
        answers=[each for each in answers if each.sentences],
        table=Table("claims", "Claims", columns, rows),
        remarks=step_runner.remarks(done),
        next=[("larger scale", _with_data(command_of(paper, setting, larger)))] if larger else [],
    )


def _with_data(command: str) -> str:
    """A command of a larger scale, which needs the images of the report."""
    return command if " --data " in command else f"{command} --data PATH_OF_ITS_IMAGES"


def _on_the_data(plan: Plan, parts: Sequence[Section]) -> list[str]:
    """Say what a reader must know of the data and the scale before the figures."""
    return [
        *step_runner.on_the_data(plan.setting.source),
        *([_OTHER_DATA] if any(_OTHER_DATA in said for part in parts for _, said in part.findings) else []),
    ]


def _claims(parts: Sequence[Section]) -> list[tuple[str, Verdict]]:
    """(claim, verdict) of each, once they were judged."""
    tables = (table for each in parts if each.name == _VERDICTS for table in each.tables if table.name == "claims")
    return [(str(row["claim"]), cast(Verdict, row["verdict"])) for table in tables for row in table.rows]


def _counts(parts: Sequence[Section]) -> Iterator[Mark]:
    for verdict, count in Counter(verdict for _, verdict in _claims(parts)).items():
        yield Mark(verdict[:1].upper() + verdict[1:], f"{count}", _TONES.get(verdict, ""))
