"""`convtwins parity`: climb the ladder of proof and print one line for each rung."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from common import spec
from common.machine.private_folder import PrivateFolder
from common.spec import Spec, SpecError
from compare.cli import commands, exits, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_parsing import parse_modes, require_distinct, split_names
from compare.cli.option_rules import AllExcept, Excludes
from compare.cli.option_types import Parsed
from compare.judgement import sameness, statement_words
from compare.proof import ladder, referee_check, serial_run
from compare.proof.certificate import Proof, Rung
from compare.proof.ladder import ProofRequest
from compare.proof.referee_check import RefereeComparison
from compare.proof.serial_run import RecordedRun
from compare.proof.single_steps import TERM_SCALE
from compare.proof.step_truth import TOLERANCE
from compare.reporting import document
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Column, Table
from compare.results.store import IN_FLOAT64
from compare.results.workspace import FolderKind
from compare.running import matrix, options, run_settings
from compare.running.comparison_settings import ComparisonSettings
from compare.running.matrix import Row
from compare.running.options import OPTIMIZERS
from compare.running.twins import Twins

NAME, RESULTS_FILE = "parity", "parity.json"

FREE_RUNNING_DEPTHS = {"resnet34": 0.5, "resnet50": 0.34, "vgg16_bn": 0.6}
"""Model: its depth in runs over many steps, unless `--set depth=` says another. At full depth a framework differs too much from
itself in another order of its sums. See docs/proof.md."""


@commands.command(
    Excludes(
        ["--spec", "--preset"],
        AllExcept(
            *("--spec", "--preset", "--set", "--modes", "--replicas", "--frameworks", "--contestant", "--steps", "--out"),
            *("--remember", "--json", "--referee", "--record"),
        ),
        why="says what is run",
        advice="Use --set field=value instead.",
    ),
    Excludes("--referee", ["--single-steps", "--record"]),
    Excludes("--single-steps", "--record"),
    Excludes("--record", ["--modes", "--replicas", "--remember"], why="writes the serial run"),
)
def command(
    invocation: Invocation,
    *,
    spec_file: options.SpecFile = None,
    preset: options.PresetName = None,
    model: Annotated[str, typer.Option(help=f"{options.MODEL} Several, with commas.")] = "simple_cnn",
    optimizer: Annotated[str, typer.Option(help=f"{options.OPTIMIZER} Several, with commas.")] = "sgd,adam",
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=options.MOST_COMPARED_STEPS,
            help=f"{options.STEPS} At each, the losses are compared. By default {ladder.STEPS}, of a large model fewer.",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(help=f"{options.PRECISION} The first shows how rounding grows, the second proves.")
    ] = "float64",
    data: Annotated[str, typer.Option(help=options.DATA)] = "digits",
    image_size: options.ImageSize = None,
    modes: Annotated[
        tuple[str, ...] | None, Parsed(parse_modes), typer.Option(help=f"{options.MODES} Default: as `run`.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=2, help=f"{options.REPLICAS} Default: 2, or as the spec says.")] = None,
    compared: options.ContestantOptions,
    seed: Annotated[int, typer.Option(min=0, help=f"{options.SEED} Order, weights and augmentation.")] = 0,
    assignments: options.Set = None,
    referee: Annotated[
        bool, typer.Option("--referee", help="Compare both frameworks with a third training in plain NumPy instead.")
    ] = False,
    single_steps: Annotated[
        bool,
        typer.Option("--single-steps", help="Judge float64 single steps alone, every one of them, within 1e-12 in each mode."),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write what checks the serial run alone instead: weights, batches, masks, learning rates, losses.",
        ),
    ] = None,
    out: options.OutOrNone = None,
    remember: Annotated[bool, typer.Option(help="Use a stored proof of the same code, versions and spec.")] = True,
) -> Outcome:
    """Prove that the frameworks and their parallel modes train the same; exit code 1 where a rung fails.

    With --spec or --preset, prove what `run` with the same words times.
    """
    if spec_file is not None or preset is not None:
        subject = _subject_of_run(compared, preset, spec_file, assignments or [], modes, replicas)
    else:
        fields = {"data": {"source": data, "image_size": image_size}, "precision": precision, "seed": seed}
        specs = _specs(model, optimizer, fields, assignments or [], at_full_depth=single_steps)
        subject = _Subject(specs, compared.twins(()), modes or ComparisonSettings().modes, replicas or 2)
    if record is not None:
        _refuse_recording(subject, record)
    FolderKind[None](noun="proof", file=RESULTS_FILE, allowed=(*spec.MODELS, *subject.models)).check(out)
    subject.refuse_switches()
    how: dict[str, Any] = {"out": out or invocation.hold(PrivateFolder()).path, "progress": _show_progress}
    if referee:
        specs = [run_spec for timed_spec in subject.specs for run_spec in referee_check.referee_specs(timed_spec)]
        return Outcome(referee_report(referee_check.judge(specs, subject.twins, **how)), out)
    if record is not None:
        return Outcome(_recording(subject, record, steps, **how), out)
    if single_steps:
        requests = [subject.request(run_spec, steps) for run_spec in subject.specs]
        rungs = [rung for request in requests for rung in ladder.judge_every_step(request, **how)]
        return Outcome(single_steps_report(rungs), out)
    return Outcome(_ladder(subject, steps, **how, remember=remember), out)


def _show_progress(text: str) -> None:
    Console(stderr=True).print(text, style="dim", highlight=False)


@dataclass(frozen=True)
class _Subject:
    """Trainings that are proved: models, or the rows that `run` times."""

    specs: list[Spec]
    twins: Twins
    modes: Sequence[str]
    replicas: int
    rows: Sequence[Row] = ()
    """Rows of `run` with the same words. Empty: none are timed."""

    @property
    def models(self) -> list[str]:
        return [run_spec.model for run_spec in self.specs]

    def request(self, run_spec: Spec, steps: int | None) -> ProofRequest:
        return ProofRequest(run_spec, self.twins, self.modes, replicas=self.replicas, steps=steps, precision=run_spec.precision)

    def refuse_switches(self) -> None:
        """Refuse a switch that a contestant's twin lacks. Rows are checked later."""
        with_switches = [contestant for contestant in self.twins.definitions if contestant.switches]
        for run_spec in self.specs if not self.rows else ():
            matrix.check_rows(
                [matrix.build_row(contestant.name, contestant, run_spec) for contestant in with_switches],
                {contestant.name: self.twins.describe(contestant.name) for contestant in with_switches},
                with_switches,
            )


def _subject_of_run(
    compared: options.ContestantOptions,
    preset: str | None,
    spec_file: Path | None,
    assignments: list[str],
    modes: tuple[str, ...] | None,
    replicas: int | None,
) -> _Subject:
    """Return what `run` times with the same words."""
    settings = run_settings.settings(preset, spec_file, {}, assignments)
    twins = compared.twins(settings.contestants)
    settings = settings.updated(modes=modes, replicas=replicas)
    rows = settings.build_rows(twins.contestants)
    return _Subject([rows[0].spec], twins, settings.modes, settings.replicas, rows)


def _refuse_recording(subject: _Subject, folder: Path) -> None:
    if len(subject.specs) > 1:
        received = ", ".join(f"{run_spec.model} with {run_spec.optimizer.name}" for run_spec in subject.specs)
        raise SpecError(f"--record writes one training. Received: {received}. Name one with --model and --optimizer.")
    FolderKind[None](noun="recording", option="--record").check(folder)


def _ladder(subject: _Subject, steps: int | None, *, remember: bool, **how: Any) -> Report:
    twins, names = subject.twins, subject.twins.names
    requests = [subject.request(run_spec, steps) for run_spec in subject.specs]
    if why_not := requests[0].why_nothing:
        part = requests[0].timed_spec.part
        raise SpecError(
            f"Nothing can be proved: {why_not}. Received: --frameworks {','.join(names)}, --modes {','.join(subject.modes)}, "
            f"part {part}. {'Name two frameworks, or a parallel mode.' if part == 'training' else 'Use part=training.'}"
        )
    if subject.rows:
        descriptions = {name: twins.describe(name) for name in names}
        rows = matrix.check_rows(subject.rows, descriptions, twins.contestants, oversubscribe=True)
        requests = [ProofRequest.for_rows(rows, twins, replicas=subject.replicas, steps=steps)]
    proofs = [ladder.prove(request, **how, remember=remember, keep=True) for request in requests]
    return report(subject.specs, proofs, names, for_rows=bool(subject.rows))


def _recording(subject: _Subject, folder: Path, steps: int | None, **how: Any) -> Report:
    (run_spec,) = subject.specs
    precision = "float64" if subject.rows else run_spec.precision
    recordings = serial_run.record(run_spec, subject.twins, folder, precision=precision, steps=steps, **how)
    return recorded_report(recordings, folder)


_RUNG_COLUMNS = (
    Column("rung", "check", pick=lambda rung: rung.name if rung.framework is None else f"{rung.name}, {rung.framework}"),
    Column("model", "model"),
    Column("optimizer", "optimizer"),
    Column("difference", "largest difference", -1, short="differs", pick="max_relative_difference"),
    Column("step", "step", pick=lambda rung: "" if rung.step is None else f"{rung.step} of {rung.steps}"),
    Column("tolerance", "tolerance", pick=lambda rung: "exact" if rung.tolerance == 0 else f"{rung.tolerance:.1e}"),
    Column("status", "status"),
    Column("reason", "reason", pick=lambda rung: rung.reason if rung.where is None else f"{rung.reason} ({rung.where})"),
)


_STEP_COLUMNS = (*_RUNG_COLUMNS[:3], Column("mode", "mode", pick=lambda rung: rung.mode or "serial"), *_RUNG_COLUMNS[3:])


_FAILED_COLUMNS = (*(column for column in _STEP_COLUMNS if column.key not in ("status", "reason")), Column("where", "where"))
MAX_MODES_NAMED = 6
"""Number of modes that the first screen names. It counts the others."""
_TONES = {"not proved": "bad", "not claimed": "warn", "proved": "good"}
"""Verdict: its tone, from the worst to the best."""


def report(
    specs: Sequence[Spec], proofs: Sequence[Proof], contestants: Sequence[str] = (), *, for_rows: bool = False
) -> Report:
    """Report one line for each rung: the largest difference, its step, the tolerance and its reason.

    Args:
        specs, proofs: one spec for each proof.
        contestants: the contestants that were compared.
        for_rows: whether the proof is for rows that are timed. Then none of their runs is judged yet.
    """
    rungs: list[Rung] = [rung for proof in proofs for rung in proof.rungs]
    verdict = min((proof.verdict for proof in proofs), key=("not proved", "not claimed", "proved").index)
    headline = IN_FLOAT64 if for_rows and verdict == "proved" else verdict
    sentences = [
        f"{run_spec.model_label}, {run_spec.optimizer.name}: {proof.sentence}"
        for run_spec, proof in zip(specs, proofs, strict=True)
    ]
    optimizers = dict.fromkeys(run_spec.optimizer.name for run_spec in specs)
    sentences += statement_words.sentences(map(sameness.update_rule, optimizers))
    return _judged_report(
        verdict,
        Mark("Same training", headline, "good" if verdict == "proved" else "bad"),
        title="Is it the same training?",
        findings=[("Is it the same training?", sentences)],
        tables=[Table.from_items("rungs", "All checks (rungs)", _RUNG_COLUMNS, rungs)],
        values={"rungs": _records(rungs)},
        screen=_screen(specs, proofs, contestants, for_rows=for_rows),
    )


def _judged_report(verdict: str, mark: Mark, *, values: dict[str, Any], **fields: Any) -> Report:
    """Return the report of a verdict. Exit code 1 unless it is `proved`."""
    return Report(
        name=NAME,
        json_file=RESULTS_FILE,
        marks=[mark],
        commands=[_report_command()],
        values={"verdict": verdict, **values},
        exit_code=0 if verdict == "proved" else exits.RUN_FAILED,
        **fields,
    )


def _records(rungs: Sequence[Rung]) -> list[dict[str, Any]]:
    """Return rungs as plain values, by way of JSON, which has no word for an infinite difference."""
    return [json.loads(rung.model_dump_json()) for rung in rungs]


def _screen(specs: Sequence[Spec], proofs: Sequence[Proof], contestants: Sequence[str], *, for_rows: bool) -> Screen:
    """Return the first screen of a proof. The worst verdict stands first."""
    answers: list[Paragraph] = []
    for verdict, tone in _TONES.items():
        sentences = [
            f"{run_spec.model_label} with {run_spec.optimizer.name}: {proof.reason}."
            for run_spec, proof in zip(specs, proofs, strict=True)
            if proof.verdict == verdict
        ]
        answers.append(Paragraph(verdict.capitalize(), sentences, tone))
    unclaimed = {name: why for proof in proofs for name, why in proof.not_claimed.items()}
    answers += [
        Paragraph("Modes", _modes(proofs)),
        Paragraph("No claim", [f"{name}: {why}." for name, why in unclaimed.items()]),
        Paragraph("Not judged", ["The timed runs themselves. `run` judges steps of them."] if for_rows else []),
    ]
    failed = [rung for proof in proofs for rung in proof.rungs if rung.status == "failed"]
    precisions = list(dict.fromkeys(rung.precision for proof in proofs for rung in proof.rungs))
    return Screen(
        subject=[
            "Is it the same training?",
            *([wording.joined(contestants)] if contestants else []),
            *dict.fromkeys(f"{run_spec.model_label} with {run_spec.optimizer.name}" for run_spec in specs),
            f"{specs[0].data.source}{f' in {wording.joined(precisions)}' if precisions else ''}",
        ],
        answers=answers,
        table=Table.from_items("rungs", "Checks that failed", _FAILED_COLUMNS, failed),
        next=_next(specs, proofs, failed, for_rows=for_rows),
    )


def _modes(proofs: Sequence[Proof]) -> list[str]:
    """Say which verdict each parallel mode has, grouped by verdict."""
    kinds: dict[str, list[str]] = {}
    order = list(_TONES)
    framework_modes = {(rung.framework, rung.mode) for proof in proofs for rung in proof.rungs if rung.framework and rung.mode}
    for framework, mode in sorted((framework or "", mode or "") for framework, mode in framework_modes):
        verdicts = [proof.mode_verdict(framework, mode) for proof in proofs]  # a proof without the mode claims nothing of it
        kinds.setdefault(min(verdicts, key=order.index), []).append(f"{framework} {mode}")
    return [f"{kind}: {wording.listed(kinds[kind], MAX_MODES_NAMED)}." for kind in order if kind in kinds]


def _next(specs: Sequence[Spec], proofs: Sequence[Proof], failed: Sequence[Rung], *, for_rows: bool) -> list[tuple[str, str]]:
    """Return the next commands: to find who is wrong, to judge more, or to check the run without this suite."""
    if any(rung.mode is None for rung in failed) and all(run_spec.model in spec.MODELS for run_spec in specs):
        return [("who is wrong", _rerun_with("--referee"))]
    if any(proof.verdict != "proved" for proof in proofs):
        return [("judge each step", _rerun_with("--single-steps"))]
    more = [("check it alone", _rerun_with("--record FOLDER"))] if len(specs) == 1 else []
    return [("time it", "run with the same words"), *more] if for_rows else more


def _rerun_with(option: str) -> str:
    return f"the same command with {option}"


def single_steps_report(rungs: Sequence[Rung]) -> Report:
    """Report float64 single steps: for each model, optimizer and mode the difference nearest to its limit."""
    failed = [rung for rung in rungs if rung.status != "passed"]
    verdict = "not proved" if failed or not rungs else "proved"
    with_terms = [rung for rung in rungs if rung.of_terms]
    sentences = [f"{len(rungs) - len(failed)} of {len(rungs)} comparisons passed."]
    if with_terms:
        models = ", ".join(sorted({f"{rung.model} with {rung.optimizer}" for rung in with_terms}))
        largest = max(difference for rung in with_terms for difference in rung.of_terms.values())
        sentences.append(
            f"In {len(with_terms)} of them some gradients differ by more than {TOLERANCE:.0e} of their largest component (up "
            f"to {largest:.1e}). They are judged {TERM_SCALE}: {models}. The reasons below name these arrays and their steps."
        )
    elif not failed:
        sentences.append(f"All differences are at most {TOLERANCE:.0e} of each array's largest component.")
    if failed:
        first = failed[0]
        sentences.append(
            f"First, {first.model} with {first.optimizer}: {first.name}, {first.framework}, {first.mode or 'serial'}: "
            f"{first.max_relative_difference:.1e} at step {first.step} ({first.where})."
        )
    by_mode: dict[tuple[str, str], dict[str, list[Rung]]] = {}
    for rung in rungs:
        by_mode.setdefault((rung.model, rung.optimizer), {}).setdefault(rung.mode or "serial", []).append(rung)

    def worst(mode_rungs: list[Rung] | None) -> float | None:
        return max((rung.max_relative_difference for rung in mode_rungs), default=None) if mode_rungs else None

    columns = [Column("model", "model", pick="0.0"), Column("optimizer", "optimizer", pick="0.1")]
    for mode in dict.fromkeys(rung.mode or "serial" for rung in rungs):
        columns.append(Column(mode, mode, -1, pick=lambda item, mode=mode: worst(item[1].get(mode))))
    table = Table.from_items(
        "single-steps", "Difference nearest to its limit, of any loss, gradient, weight and statistic", columns, by_mode.items()
    )
    return _judged_report(
        verdict,
        Mark("Single steps", verdict, _TONES[verdict]),
        title="Single steps in float64",
        findings=[("Does each step agree?", sentences)],
        tables=[table, Table.from_items("rungs", "Single steps by aspect", _STEP_COLUMNS, rungs)],
        values={"rungs": _records(rungs)},
        screen=Screen(
            subject=["Does each single step agree?", f"{wording.count(len(by_mode), 'training')} in float64"],
            answers=[Paragraph(verdict.capitalize(), sentences, _TONES[verdict])],
            table=table,
            next=[("who is wrong", _rerun_with("--referee"))] if any(rung.mode is None for rung in failed) else [],
        ),
    )


_LINE_COLUMNS = (
    Column("model", "model"),
    Column("optimizer", "optimizer"),
    Column("framework", "framework"),
    Column("precision", "precision"),
    Column("referee", "referee in"),
    Column("what", "what"),
    Column("difference", "difference", -1),
    Column("tolerance", "tolerance", pick=lambda line: "" if line.tolerance is None else f"{line.tolerance:.0e}"),
    Column("status", "status"),
    Column("where", "where"),
)
_WRONG_COLUMNS = tuple(column for column in _LINE_COLUMNS if column.key not in ("precision", "referee", "status"))


def referee_report(lines: Sequence[RefereeComparison]) -> Report:
    """Report the comparison of the frameworks with the referee."""
    failed = [line for line in lines if line.status == "failed"]
    judged = [line for line in lines if line.status != "shown"]
    text = f"{len(judged) - len(failed)} of {len(judged)} comparisons passed."
    verdict = "not proved" if failed or not judged else "proved"
    sentences = [text]
    if failed:
        first = failed[0]
        both = len({line.framework for line in failed if line.what == first.what}) > 1
        who = "All frameworks differ" if both else f"{first.framework} differs"
        sentences.append(
            f"{who} from the referee, first in the {first.what} ({first.difference:.1e}, tolerance {first.tolerance:.0e})."
        )
    sentences += referee_check.caution_sentences(lines)
    closer = referee_check.closer_framework_sentences(lines)
    return _judged_report(
        verdict,
        Mark("Against the referee", verdict, _TONES[verdict]),
        title="Both frameworks against a referee in plain NumPy",
        findings=[("Are both right?", [f"{verdict}: {text}", *sentences[1:]]), ("Which is closer in float32?", closer)],
        tables=[Table.from_items("referee", "Differences to the referee", _LINE_COLUMNS, lines)],
        values={"lines": [{**line._asdict(), "status": line.status} for line in lines]},
        screen=Screen(
            subject=[
                f"Do {wording.joined(list(dict.fromkeys(line.framework for line in lines)))} train as plain NumPy does?",
                *dict.fromkeys(f"{line.model} with {line.optimizer}" for line in lines),
            ],
            answers=[
                Paragraph(verdict.capitalize(), sentences, _TONES[verdict]),
                *([Paragraph("In float32", closer)] if closer else []),
            ],
            table=Table.from_items("referee", "Comparisons that failed", _WRONG_COLUMNS, failed),
        ),
    )


_FILE_COLUMNS = (
    Column("framework", "framework"),
    Column("steps", "steps"),
    Column("first_loss", "first loss", 6),
    Column("last_loss", "last loss", 6),
    Column("difference", "differs", -1),
    Column("file", "file", pick=lambda recording: recording.file.name),
)


def recorded_report(recordings: Sequence[RecordedRun], folder: Path) -> Report:
    """Report the files of a recording, and the largest difference of their losses."""
    sentences = [f"{folder} holds {serial_run.SPEC_FILE} and a recording of each framework. Nothing is judged here."]
    if len(recordings) > 1:
        largest = max(recording.difference for recording in recordings)
        sentences.append(f"No loss differs from {recordings[0].framework}'s by more than {largest:.1e} of it.")
    sentences.append("docs/prove-us-wrong.md trains on a recording with a plain loop, without this suite.")
    return Report(
        title="The serial run, to check it alone",
        name=NAME,
        json_file=RESULTS_FILE,
        findings=[("What is there?", sentences)],
        tables=[Table.from_items("recordings", "Recordings", _FILE_COLUMNS, recordings)],
        commands=[_report_command()],
        values={"recordings": [{**recording._asdict(), "file": str(recording.file)} for recording in recordings]},
    )


def _report_command() -> tuple[str, str]:
    return "This report:", f"{document.COMPARE} {wording.shell(sys.argv[1:])}"


def _specs(models: str, optimizers: str, fields: dict[str, Any], assignments: list[str], *, at_full_depth: bool) -> list[Spec]:
    """Return each model with each optimizer."""
    fixed = {
        "augmentation": {"horizontal_flip": True, "shift_px": 2},
        "global_batch_size": ladder.BATCH_SIZE,  # the learning rate is meant for it
    }
    specs: list[Spec] = []
    for model in require_distinct("--model", split_names(models), spec.MODELS):
        for optimizer in require_distinct("--optimizer", split_names(optimizers), tuple(OPTIMIZERS)):
            if optimizer not in OPTIMIZERS:
                raise SpecError(f"--optimizer is unknown. Received: {optimizer!r}. Use {' or '.join(OPTIMIZERS)}.")
            if (precision := fields["precision"]) not in ("float32", "float64"):
                raise SpecError(f"--precision is unknown. Received: {precision!r}. Use float64 or float32.")
            depth = 1.0 if at_full_depth else FREE_RUNNING_DEPTHS.get(model, 1.0)
            values = {**fields, **fixed, "model": model, "depth": depth, "optimizer": OPTIMIZERS[optimizer]}
            specs.append(spec.build(spec.overlay(values, spec.parse_assignments(assignments))))
    return specs
