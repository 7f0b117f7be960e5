"""The steps of a study. Each works in a folder of its own, resumes there, and adds a section to the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from common.data import sources
from common.data.sources import DatasetDescription
from compare.cli import exits, wording
from compare.cli.errors import FolderError
from compare.cli.progress import display
from compare.comparison import comparison_plan, run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.reporting import comparison_report, proof_tables
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Report, Section
from compare.results.workspace import Workspace
from compare.running.comparison_settings import ComparisonSettings
from compare.running.twins import Twins
from compare.tools.data import data, data_report, engine_scans, exploration, preprocess_report
from compare.tools.evaluation import evaluation_report, final_training
from compare.tools.evaluation.final_training import EvaluationSettings
from compare.tools.papers import step_runner
from compare.tools.papers.step_runner import PassedValues, StepResult, WorkflowStep
from compare.tools.papers.study_file import Study
from compare.tools.tuning import tuner, tuning_report
from compare.tools.tuning.records import Tuning


def _explore(study: Study, folder: Path, passed: PassedValues) -> StepResult:
    raw = study.base(data__on_bad="strict", data__duplicates="refuse")
    with display() as progress:
        progress.say("exploring the data")
        findings, dataset, manifest = exploration.explore(raw.data, seed=raw.split_seed, cache_dir=raw.paths.cache_dir)
        data.write(folder, findings, dataset, manifest)
    part = Section(
        name="explore",
        title="Explore",
        findings=[("What is there", [data_report.heading(findings)]), *data_report.sections(findings)],
        tables=data_report.tables_of(findings),
        pictures=[f"{data.BALANCE_NAME}.svg", *([data.SHEET_FILE] if dataset is not None else [])],
        more=[data.REPORT_FILE],
    )
    return StepResult(part, PassedValues(raw=_raw_data_hash(study)[0]))


def _raw_data_hash(study: Study) -> tuple[str, bool]:
    """Return the hash of the data before anything is left out, or why they are refused so; and whether they are refused."""
    raw = study.base(data__on_bad="strict", data__duplicates="refuse")
    try:
        return sources.describe(raw.data, seed=raw.split_seed, cache_dir=raw.paths.cache_dir).content_hash, False
    except sources.DataRefused as error:
        return str(error), True


def _clean(study: Study, folder: Path, passed: PassedValues) -> StepResult:
    cleaned = study.base()
    dataset = sources.describe(cleaned.data, seed=cleaned.split_seed, cache_dir=cleaned.paths.cache_dir)
    raw, refused = _raw_data_hash(study)
    if passed.raw not in (None, raw):
        raise FolderError("The data have changed since they were explored. Bring them back, or choose another --out.")
    state = "As it is, nothing is wrong with the data: it is trained on whole."
    if refused:
        state = f"As it is, the data is refused: {raw.splitlines()[0]}"
    policy = (
        f"Files that are no usable images: {'left out, in both alike' if cleaned.data.on_bad == 'skip' else 'refused'}. "
        f"Images of equal pixels in two splits: {'allowed' if cleaned.data.duplicates == 'allow' else 'refused'}."
    )
    part = Section(
        name="clean",
        title="Clean",
        findings=[("What is trained on", [state, policy, _size(dataset), *dataset.notes])],
        conclusions=[_size(dataset)],
    )
    return StepResult(part, PassedValues(data_hash=dataset.content_hash))


def _refuse_other_data(study: Study, passed: PassedValues) -> None:
    """Compare the data with those of earlier steps, which may be days old."""
    base = study.base()
    dataset = sources.describe(base.data, seed=base.split_seed, cache_dir=base.paths.cache_dir)
    if passed.data_hash not in (None, dataset.content_hash):
        raise FolderError(
            f"The data have changed since they were cleaned. Received: hash {dataset.content_hash[:12]}, then "
            f"{str(passed.data_hash)[:12]}. Bring them back, or choose another --out."
        )


def _size(dataset: DatasetDescription) -> str:
    return (
        f"{wording.count(dataset.sizes['train'], 'image')} to train on, {dataset.sizes['validation']:,} to choose by, "
        f"{dataset.sizes['test']:,} to be judged by, in {wording.count(len(dataset.class_names), 'class', 'classes')}; "
        f"hash {dataset.content_hash[:12]}."
    )


def _normalise(study: Study, folder: Path, passed: PassedValues) -> StepResult:
    _refuse_other_data(study, passed)
    settings, base = study.normalise, study.base()
    return scan_step(engine_scans.ScanRequest(settings.engines, settings.workers, "threads", settings.repeats, base), folder)


def scan_step(request: engine_scans.ScanRequest, folder: Path) -> StepResult:
    """Compute mean and standard deviation by every engine."""
    with display() as progress:
        outcome = engine_scans.run(request, progress, folder)
    report = preprocess_report.report(outcome)
    step_runner.write(report, folder)
    conclusions = preprocess_report.sentences(outcome)[:2]
    return StepResult(report.as_section(folder, "normalise", report.title, conclusions), exit_code=outcome.exit_code)


def _prove(study: Study, folder: Path, passed: PassedValues) -> StepResult:
    _refuse_other_data(study, passed)
    request = _request(study, folder)
    with display() as progress:
        proof = run.proof(comparison_plan.build_plan(request, progress), request, folder, progress)
    part = Section(
        name="prove",
        title="Is it the same training?",
        findings=[("The proof", [proof.sentence, *(f"{mode}: not claimed: {why}" for mode, why in proof.not_claimed.items())])],
        tables=proof_tables.proof_tables(proof.model_dump()) if proof.rungs else [],
        conclusions=[proof.sentence],
    )
    return StepResult(part, exit_code=exits.RUN_FAILED if proof.verdict == "not proved" else 0)


def _pretrain(study: Study, folder: Path, passed: PassedValues) -> StepResult:
    _refuse_other_data(study, passed)
    return comparison_step(_request(study, folder), folder, name="pretrain", title="Pre-training: serial against parallel")


def comparison_step(request: ComparisonRequest, folder: Path, *, name: str, title: str) -> StepResult:
    """Run a comparison as a step with that name."""
    comparison, code = run.run_nested(request, folder)
    return StepResult(comparison_section(comparison, folder, name=name, title=title), exit_code=code)


def comparison_section(comparison: JudgedComparison, folder: Path, *, name: str, title: str) -> Section:
    """Return the section of a comparison that was run in this folder."""
    findings = comparison.findings
    report = comparison_report.report(comparison, folder)
    conclusions = comparison.in_words([*findings.contestants, *findings.modes, *findings.scores], folder)
    return report.as_section(folder, name, title, conclusions, only=_COMPARISON_TABLES)


_COMPARISON_TABLES = ("comparison", "accuracy", "speedup", "phases", "time_to_accuracy")
"""Tables of a comparison that a study's report shows. Its own report has all."""


def _request(study: Study, folder: Path) -> ComparisonRequest:
    pretrain = study.pretrain
    settings = ComparisonSettings(
        values=study.values(epochs=pretrain.epochs), modes=pretrain.modes, replicas=pretrain.replicas, repeats=pretrain.repeats
    )
    return ComparisonRequest(settings, settings.build_rows(study.twins.contestants), study.twins, folder)


def _sentences_under(report: Report, *headings: str) -> list[str]:
    """Return the sentences under these headings."""
    return [sentence for heading, sentences in report.findings if heading in headings for sentence in sentences]


def _tune(study: Study, folder: Path, passed: PassedValues) -> StepResult:
    _refuse_other_data(study, passed)
    return tuning_step(study.tuning(), study.twins, folder)


def tuning_step(settings: Tuning, twins: Twins, folder: Path) -> StepResult:
    """Run a search. It passes on its best fields."""
    with tuner.open_workspace(settings, folder) as workspace:
        tuning = tuner.tune(settings, workspace, twins)
        report = tuning_report.report(tuning, folder)
        unwritten = report.write(folder)
    if unwritten:
        report = replace(report, findings=[*report.findings, ("Not written", [unwritten])])
    part = report.as_section(
        folder,
        "tune",
        "Tuning, one trial after the other and side by side",
        _sentences_under(report, *_TUNING_HEADINGS),
    )
    return StepResult(part, PassedValues(best=tuning.best), max(tuning.exit_code, exits.RUN_FAILED if unwritten else 0))


_TUNING_HEADINGS = (
    "What was found?",
    "What does it gain to search side by side?",
    "Does it cost quality?",
    "Cautions",
    "Not written",
)
"""Headings of a search that belong to a conclusion."""


def _finish(study: Study, folder: Path, passed: PassedValues) -> StepResult:
    _refuse_other_data(study, passed)
    result = final_training_step(study.evaluation(passed.best), study.twins, folder)
    untuned = [
        f"{framework} was not tuned: no trial of it was trained to its end. Its final training has the study's own fields."
        for framework in study.frameworks
        if framework not in passed.best
    ]
    if not untuned:
        return result
    part = replace(
        result.part, findings=[("Not tuned", untuned), *result.part.findings], conclusions=[*untuned, *result.part.conclusions]
    )
    return replace(result, part=part)


_EVALUATION_HEADINGS = (
    "How often are the final models right?",
    "Do the frameworks' models agree?",
    "Does a checkpoint carry over?",
    "Cautions",
)
"""Headings of an evaluation that belong to a conclusion."""


def final_training_step(settings: EvaluationSettings, twins: Twins, folder: Path) -> StepResult:
    """Run a final training, scored on the test split."""
    with Workspace.open(folder, final_training.EVALUATION) as workspace, display() as progress:
        evaluation = final_training.evaluate(settings, workspace, progress, twins)
        progress.say("report")
        report = evaluation_report.report(evaluation, final_training.data_of(evaluation).test.images)
        step_runner.write(report, folder)
    part = report.as_section(folder, "final", "Final training and evaluation", _sentences_under(report, *_EVALUATION_HEADINGS))
    return StepResult(part, exit_code=evaluation.exit_code)


STEPS: tuple[WorkflowStep[Study], ...] = (
    WorkflowStep("explore", "explore the data", _explore),
    WorkflowStep("clean", "clean it", _clean),
    WorkflowStep("normalise", "mean and standard deviation by every engine", _normalise),
    WorkflowStep("prove", "prove that both frameworks train the same", _prove),
    WorkflowStep("pretrain", "train serially and in parallel", _pretrain),
    WorkflowStep("tune", "search for better fields of the spec, serially and in parallel", _tune),
    WorkflowStep("final", "train finally, and evaluate on the test split", _finish),
)
