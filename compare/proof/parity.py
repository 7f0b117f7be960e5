"""`convtwins parity`: climb the ladder of proof and print it, one line a rung."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from common import spec
from common.machine.private_folder import PrivateFolder
from common.spec import Spec, SpecError
from compare.core import exits, wording
from compare.core.interrupt import interruptible
from compare.core.option_parsing import require_distinct, unexpected_options, split_names, parse_modes
from compare.core.presets import Preset
from compare.execution import contestants, launch, matrix, options, run_settings, store
from compare.execution.matrix import Row
from compare.execution.options import OPTIMIZERS
from compare.execution.store import IN_FLOAT64
from compare.judgement import sameness
from compare.proof import ladder, serial_run, third_opinion
from compare.proof.certificate import Proof, Rung
from compare.proof.serial_run import Recorded
from compare.proof.single_steps import OF_TERMS, TOLERANCE
from compare.proof.third_opinion import Line
from compare.reporting import document
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Column, Table

NAME, RESULTS_FILE = "parity", "parity.json"
_WITH_SPEC = (
    "spec_file", "preset", "assignments", "modes", "replicas", "frameworks", "contestant", "steps", "out", "remember",
    "as_json", "referee", "record",
)  # fmt: skip
"""Command parameters that go with a spec file or a preset, which says everything else."""
_OF_A_PROOF = ("modes", "replicas", "remember")
"""Command parameters that mean nothing to a recording of the serial run."""

FREE_RUNNING_DEPTHS = {"resnet34": 0.5, "resnet50": 0.34, "vgg16_bn": 0.6}
"""Of models that are followed over many steps, unless `--set depth=` says another. At their full depth one framework alone
differs from itself, in another order of its sums, by too much. See docs/proof.md."""


@options.grouped
def command(
    context: typer.Context,
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
    modes: Annotated[str | None, typer.Option(help=f"{options.MODES} Default: as `run`.")] = None,
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
    as_json: options.AsJson = False,
) -> None:
    """Prove that the frameworks and their parallel modes train the same; exit code 1 where a rung fails.

    With --spec or --preset, prove what `run` with the same words times.
    """
    console = Console(stderr=True)

    def progress(text: str) -> None:
        console.print(text, style="dim", highlight=False)

    with exits.exit_on_error(), interruptible(), PrivateFolder() as temporary:
        folder = out or temporary.path
        rows: list[Row] = []
        if spec_file is not None or preset is not None:
            if others := unexpected_options(context, _WITH_SPEC):
                raise SpecError(
                    f"--spec and --preset say what is run. Received also: {', '.join(others)}. Use --set field=value instead."
                )
            settings = run_settings.settings(preset, spec_file, {}, assignments or [])
            named = compared.names(settings.contestants)
            asked = list(settings.modes) if modes is None else parse_modes(modes)
            replicas = replicas or settings.replicas
            rows = matrix.build_rows(settings.values, named, asked, replicas, settings.workers, one_core=settings.one_core)
            specs = [rows[0].spec]
        else:
            named = compared.names({})
            specs = [
                _spec(
                    name,
                    rule,
                    data,
                    image_size,
                    precision,
                    seed,
                    assignments or [],
                    free_running=not single_steps,
                )
                for name, rule in itertools.product(
                    require_distinct("--model", split_names(model), spec.MODELS),
                    require_distinct("--optimizer", split_names(optimizer), tuple(OPTIMIZERS)),
                )
            ]
            asked = list(Preset().modes) if modes is None else parse_modes(modes)
        asked_for = {"--referee": referee, "--single-steps": single_steps, "--record": record is not None}
        if len(several := [option for option, is_asked in asked_for.items() if is_asked]) > 1:
            raise SpecError(f"{' and '.join(several)} make a report each. Use one of them.")
        if record is not None:
            every = {each.name or "" for each in context.command.params}
            if others := unexpected_options(context, every.difference(_OF_A_PROOF)):
                raise SpecError(f"--record writes the serial run. Received also: {', '.join(others)}. Leave them out.")
            if len(specs) > 1:
                received = ", ".join(f"{each.model} with {each.optimizer.name}" for each in specs)
                raise SpecError(f"--record writes one training. Received: {received}. Name one with --model and --optimizer.")
            store.refuse_others(record, None, None, "recording", option="--record")
        if out is not None:
            store.refuse_others(out, RESULTS_FILE, None, "proof", allowed=(*spec.MODELS, *(each.model for each in specs)))
        if not rows:
            own = [each.name for each in contestants.registered(named) if each.switches]
            for each in specs:  # refuse a switch that a contestant's twin lacks
                matrix.check_rows([matrix.build_row(name, name, each) for name in own], {name: launch.describe(name) for name in own})
        if referee:
            each = [run for each in specs for run in third_opinion.specs_of(each)]
            made = referee_report(third_opinion.judge(each, named, folder, progress))
        elif record is not None:
            made = recorded_report(
                serial_run.record(
                    specs[0],
                    named,
                    record,
                    precision="float64" if rows else specs[0].precision,
                    steps=steps,
                    out=folder,
                    progress=progress,
                ),
                record,
            )
        elif single_steps:
            found = [
                ladder.every_step(
                    each, named, asked, replicas=replicas or 2, out=folder, progress=progress, steps=steps or ladder.STEPS
                )
                for each in specs
            ]
            made = single_steps_report([rung for rungs in found for rung in rungs])
        else:
            if len(named) < 2 and asked == ["serial"]:
                raise SpecError(
                    f"--frameworks has nothing to compare {named[0]} with. Received: one framework and no parallel mode. "
                    "Name two frameworks, or a mode."
                )
            shared: dict[str, Any] = {
                "replicas": replicas or 2, "out": folder, "progress": progress, "steps": steps, "remember": remember,
                "keep": True,
            }  # fmt: skip
            if rows:
                descriptions = {framework: launch.describe(framework) for framework in named}
                proofs = [ladder.prove_rows(matrix.check_rows(rows, descriptions, oversubscribe=True), named, **shared)]
            else:
                proofs = [ladder.prove(each, named, asked, precision=each.precision, **shared) for each in specs]
            made = report(specs, proofs, named, of_rows=bool(rows))
        code = made.deliver(out, as_json=as_json)
    raise typer.Exit(code)


_RUNG = (
    Column("rung", "rung", pick=lambda rung: rung.name if rung.framework is None else f"{rung.name}, {rung.framework}"),
    Column("model", "model"),
    Column("optimizer", "optimizer"),
    Column("difference", "largest difference", -1, short="differs", pick="max_relative_difference"),
    Column("step", "step", pick=lambda rung: "" if rung.step is None else f"{rung.step} of {rung.steps}"),
    Column("tolerance", "tolerance", pick=lambda rung: "exact" if rung.tolerance == 0 else f"{rung.tolerance:.1e}"),
    Column("status", "status"),
    Column("reason", "reason", pick=lambda rung: rung.reason if rung.where is None else f"{rung.reason} ({rung.where})"),
)


_STEPS = (*_RUNG[:3], Column("mode", "mode", pick=lambda rung: rung.mode or "serial"), *_RUNG[3:])


_FAILED = (*(column for column in _STEPS if column.key not in ("status", "reason")), Column("where", "where"))
NAMED = 6
"""Modes that the first screen names. It counts the others."""
_TONES = {"not proved": "bad", "not claimed": "warn", "proved": "good"}
"""Verdict: its tone. The worst one first."""


def report(specs: Sequence[Spec], proofs: Sequence[Proof], contestants: Sequence[str] = (), *, of_rows: bool = False) -> Report:
    """One line a rung: the largest difference, the step where it stood, the tolerance and its reason.

    Args:
        specs, proofs: one after the other.
        contestants: that were compared.
        of_rows: the proof is for rows that are timed. Then no run of theirs was judged yet.
    """
    rungs: list[Rung] = [rung for proof in proofs for rung in proof.rungs]
    verdict = min((proof.verdict for proof in proofs), key=("not proved", "not claimed", "proved").index)
    headline = IN_FLOAT64 if of_rows and verdict == "proved" else verdict
    said = [
        f"{each.model_label}, {each.optimizer.name}: {proof.verdict}: {proof.sentence.removeprefix(f'{proof.verdict}: ')}"
        for each, proof in zip(specs, proofs, strict=True)
    ]
    said += [sameness.update_rule_sentence(optimizer) for optimizer in dict.fromkeys(each.optimizer.name for each in specs)]
    # By way of JSON, which has no word for an infinite difference.
    plain = [json.loads(rung.model_dump_json()) for rung in rungs]
    return Report(
        title="Is it the same training?",
        name=NAME,
        json_file=RESULTS_FILE,
        marks=[Mark("Same training", headline, "good" if verdict == "proved" else "bad")],
        findings=[("Is it the same training?", said)],
        tables=[Table.from_items("rungs", "Rungs of the ladder", _RUNG, rungs)],
        commands=[_again()],
        values={"verdict": verdict, "rungs": plain},
        exit_code=0 if verdict == "proved" else exits.RUN_FAILED,
        screen=_screen(specs, proofs, contestants, of_rows=of_rows),
    )


def _screen(specs: Sequence[Spec], proofs: Sequence[Proof], contestants: Sequence[str], *, of_rows: bool) -> Screen:
    """The first screen of a proof. What is refuted stands first."""
    answers: list[Paragraph] = []
    for verdict, tone in _TONES.items():
        said = [
            f"{each.model_label} with {each.optimizer.name}: {proof.sentence.removeprefix(f'{verdict}: ')}."
            for each, proof in zip(specs, proofs, strict=True)
            if proof.verdict == verdict
        ]
        answers.append(Paragraph(verdict.capitalize(), said, tone))
    without = {name: why for proof in proofs for name, why in proof.not_claimed.items()}
    answers += [
        Paragraph("Modes", _modes(proofs)),
        Paragraph("No claim", [f"{name}: {why}." for name, why in without.items()]),
        Paragraph("Not judged", ["The timed runs themselves. `run` judges steps of them."] if of_rows else []),
    ]
    failed = [rung for proof in proofs for rung in proof.rungs if rung.status == "failed"]
    precisions = list(dict.fromkeys(rung.precision for proof in proofs for rung in proof.rungs))
    return Screen(
        subject=[
            "Is it the same training?",
            *([wording.joined(contestants)] if contestants else []),
            *dict.fromkeys(f"{each.model_label} with {each.optimizer.name}" for each in specs),
            f"{specs[0].data.source}{f' in {wording.joined(precisions)}' if precisions else ''}",
        ],
        answers=[each for each in answers if each.sentences],
        table=Table.from_items("rungs", "Rungs that failed", _FAILED, failed),
        next=_next(specs, proofs, failed, of_rows=of_rows),
    )


def _modes(proofs: Sequence[Proof]) -> list[str]:
    """Say which verdict each parallel mode has, those with one verdict together."""
    kinds: dict[str, list[str]] = {}
    order = list(_TONES)
    own = {(rung.framework, rung.mode) for proof in proofs for rung in proof.rungs if rung.framework and rung.mode}
    for framework, mode in sorted((framework or "", mode or "") for framework, mode in own):
        found = [proof.mode_verdict(framework, mode) for proof in proofs]  # a proof without the mode claims nothing of it
        kinds.setdefault(min(found, key=order.index), []).append(f"{framework} {mode}")
    return [f"{kind}: {wording.listed(kinds[kind], NAMED)}." for kind in order if kind in kinds]


def _next(specs: Sequence[Spec], proofs: Sequence[Proof], failed: Sequence[Rung], *, of_rows: bool) -> list[tuple[str, str]]:
    """Who is wrong, what would judge more, or how a stranger checks it."""
    if any(rung.mode is None for rung in failed) and all(each.model in spec.MODELS for each in specs):
        return [("who is wrong", _same("--referee"))]
    if any(proof.verdict != "proved" for proof in proofs):
        return [("judge each step", _same("--single-steps"))]
    more = [("check it alone", _same("--record FOLDER"))] if len(specs) == 1 else []
    return [("time it", "run with the same words"), *more] if of_rows else more


def _same(option: str) -> str:
    return f"the same command with {option}"


def single_steps_report(rungs: Sequence[Rung]) -> Report:
    """Every float64 single step: the difference nearest to its limit, of each model, optimizer and mode."""
    failed = [rung for rung in rungs if rung.status != "passed"]
    verdict = "not proved" if failed or not rungs else "proved"
    of_terms = [rung for rung in rungs if rung.of_terms]
    said = [f"{len(rungs) - len(failed)} of {len(rungs)} comparisons passed."]
    if of_terms:
        models = ", ".join(sorted({f"{rung.model} with {rung.optimizer}" for rung in of_terms}))
        largest = max(difference for rung in of_terms for difference in rung.of_terms.values())
        said.append(
            f"In {len(of_terms)} some gradients differ by more than {TOLERANCE:.0e} of their largest component (up to "
            f"{largest:.1e}), and are judged {OF_TERMS}: {models}. The reasons below name these arrays and their steps."
        )
    elif not failed:
        said.append(f"All hold {TOLERANCE:.0e} of each array's largest component.")
    if failed:
        first = failed[0]
        said.append(
            f"First, {first.model} with {first.optimizer}: {first.name}, {first.framework}, {first.mode or 'serial'}: "
            f"{first.max_relative_difference:.1e} at step {first.step} ({first.where})."
        )
    by_mode: dict[tuple[str, str], dict[str, list[Rung]]] = {}
    for rung in rungs:
        by_mode.setdefault((rung.model, rung.optimizer), {}).setdefault(rung.mode or "serial", []).append(rung)

    def worst(found: list[Rung] | None) -> float | None:
        return max((rung.max_relative_difference for rung in found), default=None) if found else None

    columns = [Column("model", "model", pick="0.0"), Column("optimizer", "optimizer", pick="0.1")]
    for mode in dict.fromkeys(rung.mode or "serial" for rung in rungs):
        columns.append(Column(mode, mode, -1, pick=lambda item, mode=mode: worst(item[1].get(mode))))
    shown = Table.from_items(
        "single-steps", "Difference nearest to its limit, of any loss, gradient, weight and statistic", columns, by_mode.items()
    )
    plain = [json.loads(rung.model_dump_json()) for rung in rungs]
    return Report(
        title="Single steps in float64",
        name=NAME,
        json_file=RESULTS_FILE,
        marks=[Mark("Single steps", verdict, "bad" if verdict != "proved" else "good")],
        findings=[("Does each step agree?", said)],
        tables=[shown, Table.from_items("rungs", "Single steps by aspect", _STEPS, rungs)],
        commands=[_again()],
        values={"verdict": verdict, "rungs": plain},
        exit_code=exits.RUN_FAILED if verdict != "proved" else 0,
        screen=Screen(
            subject=["Does each single step agree?", f"{wording.count(len(by_mode), 'training')} in float64"],
            answers=[Paragraph(verdict.capitalize(), said, _TONES[verdict])],
            table=shown,
            next=[("who is wrong", _same("--referee"))] if any(rung.mode is None for rung in failed) else [],
        ),
    )


_LINE = (
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
_WRONG = tuple(column for column in _LINE if column.key not in ("precision", "referee", "status"))


def referee_report(lines: Sequence[Line]) -> Report:
    """Both frameworks against the referee."""
    failed = [line for line in lines if line.status == "failed"]
    judged = [line for line in lines if line.status != "shown"]
    said = f"{len(judged) - len(failed)} of {len(judged)} comparisons passed."
    verdict = "not proved" if failed or not judged else "proved"
    sentences = [said]
    if failed:
        first = failed[0]
        both = len({line.framework for line in failed if line.what == first.what}) > 1
        who = "All frameworks differ" if both else f"{first.framework} differs"
        sentences.append(
            f"{who} from the referee, first in the {first.what} ({first.difference:.1e}, tolerance {first.tolerance:.0e})."
        )
    sentences += third_opinion.cautions(lines)
    closer = third_opinion.closer(lines)
    return Report(
        title="Both frameworks against a referee in plain NumPy",
        name=NAME,
        json_file=RESULTS_FILE,
        marks=[Mark("Against the referee", verdict, "bad" if verdict != "proved" else "good")],
        findings=[("Are both right?", [f"{verdict}: {said}", *sentences[1:]]), ("Which is closer in float32?", closer)],
        tables=[Table.from_items("referee", "Differences to the referee", _LINE, lines)],
        commands=[_again()],
        values={"verdict": verdict, "lines": [{**line._asdict(), "status": line.status} for line in lines]},
        exit_code=exits.RUN_FAILED if verdict != "proved" else 0,
        screen=Screen(
            subject=[
                f"Do {wording.joined(list(dict.fromkeys(line.framework for line in lines)))} train as plain NumPy does?",
                *dict.fromkeys(f"{line.model} with {line.optimizer}" for line in lines),
            ],
            answers=[
                Paragraph(verdict.capitalize(), sentences, _TONES[verdict]),
                *([Paragraph("In float32", closer)] if closer else []),
            ],
            table=Table.from_items("referee", "Comparisons that failed", _WRONG, failed),
        ),
    )


_FILE = (
    Column("framework", "framework"),
    Column("steps", "steps"),
    Column("first_loss", "first loss", 6),
    Column("last_loss", "last loss", 6),
    Column("difference", "differs", -1),
    Column("file", "file", pick=lambda each: each.file.name),
)


def recorded_report(made: Sequence[Recorded], folder: Path) -> Report:
    """What was written where, and how far the losses are apart."""
    said = [f"{folder} holds {serial_run.SPEC_FILE} and a recording of each framework. Nothing is judged here."]
    if len(made) > 1:
        largest = max(each.difference for each in made)
        said.append(f"No loss differs from {made[0].framework}'s by more than {largest:.1e} of it.")
    said.append("docs/check-us-yourself.md trains on a recording with a plain loop, without this suite.")
    return Report(
        title="The serial run, to check it alone",
        name=NAME,
        json_file=RESULTS_FILE,
        findings=[("What is there?", said)],
        tables=[Table.from_items("recordings", "Recordings", _FILE, made)],
        commands=[_again()],
        values={"recordings": [{**each._asdict(), "file": str(each.file)} for each in made]},
    )


def _again() -> tuple[str, str]:
    return "This report:", f"{document.COMPARE} {wording.shell(sys.argv[1:])}"


def _spec(
    model: str,
    optimizer: str,
    data: str,
    image_size: int | None,
    precision: str,
    seed: int,
    assignments: list[str],
    *,
    free_running: bool,
) -> Spec:
    if optimizer not in OPTIMIZERS:
        raise SpecError(f"--optimizer is unknown. Received: {optimizer!r}. Use {' or '.join(OPTIMIZERS)}.")
    if precision not in ("float32", "float64"):
        raise SpecError(f"--precision is unknown. Received: {precision!r}. Use float64 or float32.")
    depth = FREE_RUNNING_DEPTHS.get(model, 1.0) if free_running else 1.0
    values = {
        "model": model,
        "depth": depth,
        "data": {"source": data, "image_size": image_size},
        "optimizer": OPTIMIZERS[optimizer],
        "augmentation": {"horizontal_flip": True, "shift_px": 2},
        "precision": precision,
        "global_batch_size": ladder.BATCH_SIZE,  # the learning rate is meant for it
        "seed": seed,
    }
    return spec.build(spec.overlay(values, spec.parse_assignments(assignments)))
