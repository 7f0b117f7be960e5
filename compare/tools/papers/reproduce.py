"""`convtwins reproduce`: reproduce a published report, as it was and corrected, and judge its claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from common import spec
from common.artifacts.schema import EpochRecord
from common.data import cache, sources
from common.data.sources import DataRefused
from common.machine import machine
from compare.cli import commands, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_types import Choice
from compare.cli.progress import Display, display
from compare.comparison import comparison_plan, estimate, run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.reporting import comparison_report, plots
from compare.reporting.document import Mark, Report, Section
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Cell, Column, Table
from compare.results import signing, store
from compare.results.store import Comparison
from compare.results.workspace import Workspace
from compare.running import launch, options
from compare.running.comparison_settings import ComparisonSettings
from compare.running.matrix import Row
from compare.running.twins import Twins
from compare.tools.data import engine_scans, preprocess_report
from compare.tools.evaluation import final_training
from compare.tools.evaluation.scoring import EvaluationRecord
from compare.tools.papers import cells, curves, judging, paper_file, step_runner, study_steps
from compare.tools.papers.judging import CANNOT_TELL, CONTRADICTED, Verdict
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.local_results import reproduce_command as command_of
from compare.tools.papers.plan import AS_IT_WAS, CORRECTED, PaperTraining, ReproductionPlan, ReproductionSetting, build_plan
from compare.tools.papers.schema import SCALES, SMOKE, Paper, Scale
from compare.tools.papers.step_runner import FinishedStep, PassedValues, StepResult, StepsRecord, WorkflowStep
from compare.tools.tuning import tuner

KIND = "reproduction"
SUFFIXES = ("", ".tar", ".tar.gz", ".tar.xz", ".zip")
_CURVES = "curves"
_OTHER_DATA = "These are other data: no accuracy and no loss of the report can be expected of them."
_MAX_NAMES = 3
"""Number of class names that the plan shows."""
_NUM_SAMPLE_IMAGES = 256
"""Number of images that the estimate of the scans reads."""
_VERDICTS = "verdicts"
_TONES = {"reproduced": "good", "not reproduced": "bad", CONTRADICTED: "bad"}
_LABELS: dict[Verdict, tuple[str, str]] = {
    "reproduced": ("confirmed", "+"),
    "not reproduced": ("refuted", "-"),
    CONTRADICTED: ("refuted", "-"),
    CANNOT_TELL: ("not told", "?"),
}
"""Label and mark of each verdict on the first screen."""
_SCALE_REMARKS: dict[Scale, str] = {
    SMOKE: "Scale smoke shows that everything runs here. It judges no claim for good.",
    "quick": "Scale quick trains less than the report did. Its own size is --scale full.",
}


@commands.command()
def command(
    invocation: Invocation,
    paper: Annotated[
        str,
        typer.Argument(
            metavar="PAPER", help=f"A published report: {', '.join(paper_file.paper_names())}, or a YAML file of your own."
        ),
    ],
    scale: Annotated[
        str, Choice(SCALES), typer.Option(help=f"How much of it: {', '.join(SCALES)}. The last is the report's own size.")
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
) -> Outcome | int:
    """Run a published report again, as it was and as it should have been, and judge each of its claims."""
    signing.check_key(sign)
    published = paper_file.find_paper(paper)
    size = SCALES[SCALES.index(scale)]
    values = spec.overlay({}, spec.parse_assignments(assignments or []))
    common = spec.build(values)  # refuses unknown fields
    source = _source(published, size, data, common.paths.cache_dir)
    folder = out or Path("results") / f"{published.name}-{size}"
    settings: dict[str, Any] = {"paper": published.name, "scale": size, "source": source, "values": values}
    workspace = invocation.hold(Workspace.open(folder, step_runner.folder_kind(KIND), early=settings))
    twins = Twins(launch.FRAMEWORKS)
    gpus = 0 if common.device == "cpu" else _gpus(twins, published.gpu_frameworks)
    reproduction = build_plan(
        published, ReproductionSetting(size, source, gpus, values, synthetic=data is None and size == SMOKE)
    )
    reproduction = replace(reproduction, twins=twins)
    settings["gpus"] = gpus
    settings["rows"] = [row.spec.model_dump(mode="json") for training in reproduction.trainings for row in training.rows]
    settings["repeats"] = [training.repeats for training in reproduction.trainings]
    if reproduction.tuning is not None:
        settings["tuning"] = reproduction.tuning.model_dump(mode="json")
    if reproduction.final is not None:
        settings["final"] = reproduction.final.model_dump(mode="json")
    record = StepsRecord.create(KIND, settings, tuple(launch.FRAMEWORKS), published.model)
    steps = _steps(reproduction)
    for sentence in _claims_without_gpus(reproduction):
        typer.echo(sentence, err=True)
    return step_runner.run_steps(
        record,
        steps,
        reproduction,
        workspace,
        lambda record, done: _report(reproduction, record, done, len(steps)),
        sign=sign,
    )


def _claims_without_gpus(plan: ReproductionPlan) -> list[str]:
    """Say how many claims cannot be judged here at any scale, for want of GPUs. Empty if all can."""
    lacking = [claim for claim in plan.paper.claims.values() if claim.gpus > plan.setting.gpus]
    if not lacking:
        return []
    return [
        f"{len(lacking)} of {wording.count(len(plan.paper.claims), 'claim')} cannot be told on this machine at any scale: "
        f"they need {wording.count(max(claim.gpus for claim in lacking), 'GPU')}, and {plan.setting.gpus or 'none'} "
        f"{'is' if plan.setting.gpus < 2 else 'are'} here."
    ]


def _source(paper: Paper, scale: str, data: str | None, cache_dir: str | None) -> str:
    """Return the path or name of the data."""
    if data is not None:
        return data
    if scale == SMOKE:
        return paper.data.smoke
    folder = cache.folder(cache_dir)
    if (cached_path := _cached_data(paper, folder)) is not None:
        return cached_path
    names = ", ".join(f"{name}[{'|'.join(filter(None, SUFFIXES))}]" for name in paper.data.cache_names) or "its names"
    raise DataRefused(
        f"The data of {paper.name} are not here. Received: no --data, and none of {names} in {folder}. Fetch "
        f"{paper.data.fetch}. Put it there under such a name, or name it with --data. --scale smoke needs none."
    )


def _cached_data(paper: Paper, folder: Path) -> str | None:
    paths = (folder / f"{name}{suffix}" for name in paper.data.cache_names for suffix in SUFFIXES)
    return next((str(path) for path in paths if path.exists()), None)


def _gpus(twins: Twins, frameworks: Sequence[str]) -> int:
    """Return the number of accelerators that each of these frameworks sees here."""
    with twins.describe_all(frameworks) as answer:
        devices_by_framework = [answer(framework)["devices"] for framework in frameworks]
    return min(sum(device["kind"] != "cpu" for device in devices) for devices in devices_by_framework)


def _steps(plan: ReproductionPlan) -> list[WorkflowStep[ReproductionPlan]]:
    corrected, scans, tuning, final = plan.corrected, plan.scans, plan.tuning, plan.final
    steps: list[WorkflowStep[ReproductionPlan] | None] = [
        WorkflowStep("plan", "what is run, and how long it takes", _plan_step),
        scans
        and WorkflowStep(
            "scans", "mean and standard deviation by every engine", lambda _, at, __: study_steps.scan_step(scans, at)
        ),
        WorkflowStep(AS_IT_WAS, "the published runs, as they were", _faithful),
        WorkflowStep(
            CORRECTED,
            "the same question, asked of identical models",
            lambda plan, at, _: study_steps.comparison_step(
                _request(plan.twins, corrected, at), at, name=CORRECTED, title=corrected.title
            ),
        ),
        tuning
        and WorkflowStep(
            "tune", "the search for better fields", lambda plan, at, _: study_steps.tuning_step(tuning, plan.twins, at)
        ),
        final
        and WorkflowStep(
            "final",
            "the final training, and its scores",
            lambda plan, at, passed: study_steps.final_training_step(
                final.model_copy(update={"tuned": passed.best}), plan.twins, at
            ),
        ),
        WorkflowStep(_VERDICTS, "the published tables, and a verdict for each claim", _verdicts, runs_every_time=True),
    ]
    return [step for step in steps if step]


def _request(twins: Twins, training: PaperTraining, folder: Path) -> ComparisonRequest:
    settings = ComparisonSettings(
        repeats=training.repeats, seeds=training.seeds, prove=training.prove, oversubscribe=training.oversubscribe
    )
    compared = twins.only(dict.fromkeys(row.contestant for row in training.rows))
    return ComparisonRequest(settings, training.rows, compared, folder)


def _plan_step(plan: ReproductionPlan, folder: Path, passed: PassedValues) -> StepResult:
    """Show what is run, where it differs from the paper, and how long it takes. At smoke that is known beforehand."""
    rows, smoke = list[dict[str, Cell]](), plan.setting.scale == SMOKE
    scans: float | None = None
    with display() as progress:
        comparisons = [
            (training, comparison_plan.build_plan(_request(plan.twins, training, folder), progress))
            for training in plan.trainings
        ]
        # Trials and the final training use the images of the published runs.
        later = [(training, comparisons[0][1]) for training in _search_and_final(plan)]
        possible = [row for _, comparison in comparisons for row in comparison.rows]
        possible += [row for training, _ in later for row in training.rows]
        measure = estimate.measure_by_kind(possible, plan.twins, progress.say, _kind)
        for training, comparison in [*comparisons, *later]:
            not_run = {row.id for row in comparison.rows if row.unavailable}
            for row in training.rows:
                seconds = 0.0 if row.id in not_run else None
                if not smoke and seconds is None and not isinstance(measured := measure(row), str):
                    seconds = estimate.seconds(row, measured[0], comparison.train_examples) * training.repeats
                rows.append(_line(training, row, comparison) | {"seconds": None if smoke else seconds})
        if plan.scans is not None and not smoke:
            progress.say("a few images of every engine")
            scans = _scan_seconds(plan.scans, progress)
    duration = "At this scale no first steps are measured: they would take as long as the runs."
    if plan.paper.argument in paper_file.paper_names():
        duration = f"About two minutes on two cores. {duration}"
    if not smoke:
        duration = _duration(plan, rows, scans)
    departures = _departures(plan, comparisons[0][1])
    for sentence in (*departures, duration):
        typer.echo(sentence, err=True)
    part = Section(
        name="plan",
        title="What is run",
        findings=[
            ("How long", [duration]),
            ("Chosen, for the report does not state it", plan.chosen),
            ("Where these runs are not the report's", [*departures, *plan.deviations]),
            ("What was found wrong in the report", plan.paper.caveats),
        ],
        tables=[Table("runs", "Runs", _COLUMNS, rows)],
    )
    return StepResult(part)


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


def _duration(plan: ReproductionPlan, rows: list[dict[str, Cell]], scans: float | None) -> str:
    seconds = [row["seconds"] for row in rows]
    total = sum(row_seconds for row_seconds in seconds if isinstance(row_seconds, float)) + (scans or 0.0)
    not_counted = [
        *(["the scans"] if plan.scans and scans is None else []),
        *(["the proof"] if plan.corrected.prove else []),
        *(f"{row['row']}, whose first steps failed" for row in rows if row["seconds"] is None),
    ]
    not_counted_text = f" Not counted: {', '.join(not_counted)}." if not_counted else ""
    what = f"training and {round(scans / 60)} min of scans in them" if scans else "training"
    return f"About {wording.clock_words(total)} min of {what}, by the first steps of each kind.{not_counted_text}"


def _departures(plan: ReproductionPlan, comparison: Comparison) -> list[str]:
    """Say how the runs differ from the paper's in ways that no plan knows: their data, and the caller's settings."""
    paper = plan.paper
    names = comparison.class_names[:_MAX_NAMES]
    more = ", ..." if len(comparison.class_names) > len(names) else ""
    sentences = [
        f"The data: {comparison.data_name}, {wording.count(len(comparison.class_names), 'class', 'classes')} ("
        f"{', '.join(names)}{more}), {comparison.train_examples:,} training images; "
        f"the report's: {paper.data.name}, {paper.data.classes} classes, {paper.data.images:,} training images."
    ]
    if not paper.matches_classes(comparison.class_names):
        sentences.append(_OTHER_DATA)
    sentences += [
        f"Set by the caller, in all runs: {field} = {value}. This replaces what is said of it here."
        for field, value in store.flatten(dict(plan.setting.values)).items()
    ]
    return sentences


def _scan_seconds(request: engine_scans.ScanRequest, progress: Display) -> float | None:
    """Estimate the seconds of all scans, from one scan of a few images by each engine. None if one failed."""
    data = request.spec.data
    sample_data = data.model_copy(update={"limit": min(data.limit or _NUM_SAMPLE_IMAGES, _NUM_SAMPLE_IMAGES)})
    sample_request = replace(request, workers=(1,), repeats=1, spec=request.spec.model_copy(update={"data": sample_data}))
    cache_dir = request.spec.paths.cache_dir
    images = len(sources.load_files(data, seed=request.spec.split_seed, cache_dir=cache_dir).train)
    turns = sum(1.0 / min(workers, machine.available_cores()) for workers in request.workers)
    total = 0.0
    for row in engine_scans.run(sample_request, progress, None).rows:
        if not row.scans:
            return None
        (scan,) = row.scans
        starts = (scan.import_seconds + scan.start_seconds) * len(request.workers)
        total += request.repeats * (scan.seconds / scan.images * images * turns + starts)
    return total


def _search_and_final(plan: ReproductionPlan) -> list[PaperTraining]:
    """Return the search, as if its trials ran one after the other, and the final training. Only for estimates."""
    trainings: list[PaperTraining] = []
    if (tuning := plan.tuning) is not None:
        rows = [
            Row(id=f"{framework}-trial", contestant=framework, spec=spec.build(tuning.values))
            for framework in tuning.frameworks
        ]
        trials = tuning.trials * len(tuning.jobs) * tuning.repeats
        trainings.append(PaperTraining("search", "The search, at most", rows, repeats=trials))
    if (final := plan.final) is not None:
        rows = [
            Row(id=f"{framework}-final", contestant=framework, spec=spec.build(final.values)) for framework in final.frameworks
        ]
        trainings.append(PaperTraining("final", "The final training", rows, repeats=final.repeats))
    return trainings


def _kind(row: Row) -> str:
    """Name what the pace of a row depends on, besides its cores."""
    return f"{row.contestant} {row.spec.model_label} {row.spec.global_batch_size} {row.spec.data}"


def _line(training: PaperTraining, row: Row, comparison: Comparison) -> dict[str, Cell]:
    return {
        "training": training.title,
        "row": row.id,
        "model": row.spec.model.rpartition(".")[2],
        "images": comparison.train_examples,
        "epochs": row.spec.epochs,
        "batch": row.spec.global_batch_size,
        "repeats": training.repeats,
    }


def _faithful(plan: ReproductionPlan, folder: Path, passed: PassedValues) -> StepResult:
    comparisons = {
        training.name: run.run_nested(_request(plan.twins, training, folder / training.name), folder / training.name)
        for training in plan.faithful
    }
    cautions = [
        sentence
        for name, (comparison, _) in comparisons.items()
        for sentence in comparison.in_words(comparison.findings.troubles, folder / name)
    ]
    part = Section(
        name=AS_IT_WAS,
        title="The published runs, as they were",
        findings=[("Cautions", cautions)] if cautions else [],
        tables=[
            replace(table, name=f"{table.name}_{name}", title=f"{title}: {table.title}")
            for (name, (comparison, _)), title in zip(
                comparisons.items(), [training.title for training in plan.faithful], strict=True
            )
            for table in comparison_report.report_tables(comparison)
            if table.name == "comparison"
        ],
        more=[f"{name}/report.html" for name in comparisons],
        conclusions=cautions,
    )
    return StepResult(part, exit_code=max(code for _, code in comparisons.values()))


def _verdicts(plan: ReproductionPlan, folder: Path, passed: PassedValues) -> StepResult:
    results = _local_results(plan, folder.parent)
    judged_claims = judging.judge_all(results)
    columns = (
        Column("claim", "claim", fold=50, pick="text"),
        Column("verdict", "verdict", fold=24),
        Column("why", "why not", fold=40, pick=lambda claim: claim.why_not_told),
        Column("evidence", "evidence", terminal=False, pick=lambda claim: " ".join(claim.evidence)),
    )
    plots.write_all({_CURVES: lambda figure: curves.draw(figure, results)}, folder)
    part = Section(
        name=_VERDICTS,
        title="The published tables, and what is to be said of the claims",
        findings=[(f"{claim.verdict}: {claim.text}", claim.evidence) for claim in judged_claims],
        tables=[Table.from_items("claims", "Claims", columns, judged_claims), *cells.build_tables(results)],
        pictures=[f"{_CURVES}.svg"] if plan.paper.curves else [],
        conclusions=[
            " ".join(filter(None, (f"{claim.verdict.upper()}: {claim.text}", claim.why_not_told))) for claim in judged_claims
        ],
    )
    return StepResult(part)


def _local_results(plan: ReproductionPlan, folder: Path) -> LocalResults:
    """Read all results that the steps have left in their folders."""
    places = {step.name: folder / f"{number}-{step.name}" for number, step in enumerate(_steps(plan), 1)}
    folders = {training.name: places[AS_IT_WAS] / training.name for training in plan.faithful} | {CORRECTED: places[CORRECTED]}
    evaluation = final_training.read(places["final"]) if plan.final else None
    return LocalResults(
        plan=plan,
        trainings={name: comparison_report.read(where) for name, where in folders.items()},
        folders=folders,
        scans=preprocess_report.read(places["scans"]) if plan.scans else None,
        tuning=tuner.read(places["tune"]) if plan.tuning else None,
        evaluation=evaluation,
        final_epoch=_best_epoch(evaluation, places["final"]) if evaluation else None,
    )


def _best_epoch(evaluation: EvaluationRecord, folder: Path) -> EpochRecord | None:
    """Return the epoch whose weights the first of the final trainings kept."""
    stored = store.read(folder / final_training.TRAINING_FOLDER)
    runs = [run for repeats in stored.runs.values() for run in repeats.values()]
    best = next((model.best_epoch for model in evaluation.models), None)
    return next((epoch for run in runs for epoch in run.epochs if epoch.epoch == best), None)


def _report(plan: ReproductionPlan, record: StepsRecord, done: list[FinishedStep], steps: int) -> Report:
    paper, setting = plan.paper, plan.setting
    parts = sorted((finished.part for finished in done), key=lambda part: part.name != _VERDICTS)
    commit = record.machine.get("commit")
    changed = ", with changes that were not committed" if record.machine.get("dirty") else ""
    larger_command = command_of(paper, setting, "quick")
    draft = Report(
        title=f"Reproduction of: {paper.title}",
        overline=f"Published report {paper.name}, scale {setting.scale}",
        facts=[
            f"{paper.model} on {setting.source}, scale {setting.scale}; begun {record.created_at}",
            f"{machine.processors(record.machine)}, {setting.devices}",
            f"The report: {paper.hardware}",
            *_data_warnings(plan, parts),
            *(
                [f"Scale smoke shows that everything runs here. For figures: {larger_command}"]
                if setting.scale == SMOKE
                else []
            ),
            *([f"Code: commit {commit}{changed}"] if commit else []),
        ],
        marks=[*_counts(parts)],
        sections=parts,
    )
    return step_runner.complete(draft, _screen(plan, record, done, steps), record, done, steps)


def _screen(plan: ReproductionPlan, record: StepsRecord, done: list[FinishedStep], steps: int) -> Screen:
    """Show the claims by their verdicts. One that was judged at a smaller scale than the report's own stands apart."""
    paper, setting = plan.paper, plan.setting
    parts = [finished.part for finished in done]
    is_full_scale = setting.scale == SCALES[-1]
    groups: dict[str, list[dict[str, Cell]]] = {"confirmed": [], "refuted": [], "at toy scale only": [], "not told": []}
    for text, verdict, why in _claims(parts):
        label, mark = _LABELS[verdict]
        if verdict in ("reproduced", "not reproduced") and not is_full_scale:
            label = "at toy scale only"
        by = " by its own table" if verdict == CONTRADICTED else ""
        groups[label].append({"claim": text, "verdict": f"{mark} {label}{by}", "why": why})
    counted = ", ".join(f"{len(claim_rows)} {label}" for label, claim_rows in groups.items())
    rows = [row for claim_rows in groups.values() for row in claim_rows]
    why = [Column("why", "why not", fold=40)] if any(row["why"] for row in rows) else []
    columns = (Column("claim", "claim"), Column("verdict", "here"), *why)
    larger = next(iter(SCALES[SCALES.index(setting.scale) + 1 :]), None)
    answers = [
        Paragraph("Claims", [f"{wording.count(len(rows), 'claim')}: {counted}."] if rows else []),
        Paragraph("GPUs", [] if rows else _claims_without_gpus(plan), "warn"),
        Paragraph("Toy scale", [_SCALE_REMARKS[setting.scale]] if not is_full_scale else [], "warn"),
        step_runner.trouble_paragraph(done, *_data_warnings(plan, parts)),
    ]
    return Screen(
        subject=[
            f"{paper.title} ({paper.name})",
            f"{paper.model} on {setting.source}, scale {setting.scale}",
            step_runner.progress(done, steps),
            f"{setting.devices}, {machine.processors(record.machine)}",
        ],
        answers=answers,
        table=Table("claims", "Claims", columns, rows),
        next=[("larger scale", _with_data(command_of(paper, setting, larger)))] if larger else [],
    )


def _with_data(command: str) -> str:
    """Return a command of a larger scale, which needs the images of the report."""
    return command if " --data " in command else f"{command} --data PATH_OF_ITS_IMAGES"


def _data_warnings(plan: ReproductionPlan, parts: Sequence[Section]) -> list[str]:
    """Say what a reader must know of the data and the scale before the figures."""
    return [
        *step_runner.data_warning(plan.setting.source),
        *([_OTHER_DATA] if any(_OTHER_DATA in sentences for part in parts for _, sentences in part.findings) else []),
    ]


def _claims(parts: Sequence[Section]) -> list[tuple[str, Verdict, str]]:
    """Return (claim, verdict, why it cannot be told, or an empty text) of each claim, once they were judged."""
    tables = (table for part in parts if part.name == _VERDICTS for table in part.tables if table.name == "claims")
    return [
        (str(row["claim"]), cast(Verdict, row["verdict"]), str(row.get("why") or "")) for table in tables for row in table.rows
    ]


def _counts(parts: Sequence[Section]) -> Iterator[Mark]:
    for verdict, count in Counter(verdict for _, verdict, _ in _claims(parts)).items():
        yield Mark(verdict[:1].upper() + verdict[1:], f"{count}", _TONES.get(verdict, ""))
