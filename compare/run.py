"""`python -m compare run`: judge everything first, then prove, run, and report."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from common import architectures, datasets, machine, spec
from common.results import ResultError
from common.spec import SpecError
from compare import execution, exits, launch, matrix, parity, presets, report, store
from compare.interrupt import Interrupted, interruptible
from compare.launch import LaunchError
from compare.matrix import Row
from compare.presets import Preset
from compare.progress import Display, display
from compare.store import Comparison, ProofRecord
from compare.words import names, numbers, variants

PROFILE_STEPS = 20
"""Of the segment that `--profile` adds to a run."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for, all of it read and none of it judged."""

    settings: Preset
    frameworks: list[str]
    out: Path | None
    prove: bool
    lay_out: Callable[[Preset, Sequence[str]], list[Row]] = lambda settings, frameworks: matrix.rows(
        settings.values, frameworks, settings.modes, settings.replicas, settings.workers
    )
    """The rows of these settings for these frameworks."""
    oversubscribe: bool = False
    """Whether more replicas than cores are run, to take turns."""


def command(
    preset: Annotated[str | None, typer.Option(help=f"A named comparison: {', '.join(presets.PRESETS)}.")] = None,
    spec_file: Annotated[Path | None, typer.Option("--spec", help="A spec file (.yaml or .json).")] = None,
    data: Annotated[str | None, typer.Option(help=f"{', '.join(datasets.NAMES)}, or an image folder or archive.")] = None,
    model: Annotated[str | None, typer.Option(help=f"{', '.join(spec.MODELS)}, or package.module of your own.")] = None,
    frameworks: Annotated[str, typer.Option(help="Which, with commas.")] = ",".join(launch.FRAMEWORKS),
    modes: Annotated[str | None, typer.Option(help=f"Which of {', '.join(spec.VARIANTS)}, with commas; or all.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Replicas of the parallel modes. Default: 2.")] = None,
    input_: Annotated[str | None, typer.Option("--input", help=f"How batches are fed: {' or '.join(spec.INPUTS)}.")] = None,
    workers: Annotated[str | None, typer.Option(help="Input workers; several numbers, with commas, make rows of each.")] = None,
    input_only: Annotated[bool, typer.Option("--input-only", help="Time the input path alone.")] = False,
    compute_only: Annotated[bool, typer.Option("--compute-only", help="Time the model alone, on one batch.")] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training split.")] = None,
    limit: Annotated[int | None, typer.Option(help="Training examples to keep.")] = None,
    on_bad: Annotated[str | None, typer.Option(help="strict: bad files refuse the data; skip: they are left out.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of each row; verdicts need 5.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of order, weights, augmentation and splits.")] = None,
    cores: Annotated[int | None, typer.Option(help="CPU cores that each run may use. Default: all.")] = None,
    hosts: Annotated[str | None, typer.Option(help="Machines for the ranks, with commas, the first of them this one.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the spec, e.g. optimizer.momentum=0.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/<time>-<model>-<data>.")] = None,
    oversubscribe: Annotated[bool, typer.Option(help="Run modes with more replicas than cores, which take turns.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="After each run, time the parts of a step apart.")] = False,
    proof: Annotated[bool, typer.Option(help="Prove first that both frameworks train the same.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Train the same CNN in every framework and mode, and compare."""
    with exits.told():
        options = {
            "data.source": data,
            "model": model,
            "replicas": replicas,
            "input": input_,
            "part": _part(input_only, compute_only),
            "epochs": epochs,
            "data.limit": limit,
            "data.on_bad": on_bad,
            "seed": seed,
            "cores": cores,
            "profile_steps": PROFILE_STEPS if profile else None,
            "hosts": None if hosts is None else names(hosts),
        }
        asked = settings(preset, spec_file, options, assignments or [])
        if modes is not None:
            asked = replace(asked, modes=tuple(variants(modes)))
        if workers is not None:
            asked = replace(asked, workers=numbers("--workers", workers, least=0))
        if repeats is not None:
            asked = replace(asked, repeats=repeats)
        code = run(Request(asked, names(frameworks), out, proof, oversubscribe=oversubscribe), as_json=as_json)
    raise typer.Exit(code)


def run(request: Request, *, as_json: bool, show: Callable[..., object] = report.show) -> int:
    """Do a whole comparison and print its report, as `report.show` or another of its kind does.

    Returns:
        The exit code: 0, 1 where a run failed, 130 or 143 where it was interrupted.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: nothing was trained.
        Interrupted: before anything was trained.
    """
    code = 0
    with interruptible(), display(Console(stderr=True)) as shown:
        wanted = _judged(request, shown)
        folder = request.out or _default_folder(wanted)
        with store.locked(folder):
            comparison = store.claim(folder, wanted)
            store.write_plan(folder, comparison)
            try:
                if request.prove:  # also of a folder that holds one: what has been proved before is remembered
                    comparison = _prove(comparison, request, folder, shown)
                    store.write_plan(folder, comparison)
                _run_all(comparison, folder, shown)
            except Interrupted as interruption:
                code = interruption.exit_code
            shown.say("report")
            made = report.read(folder)
            unwritten = report.write(made, folder)
    if code and not any(made.stored.runs.values()):
        typer.echo(f"Interrupted before a run had ended. The same command with --out {folder} goes on.", err=True)
        return code
    show(made, folder, as_json=as_json)
    if unwritten:
        typer.echo(unwritten, err=True)
        code = code or exits.RUN_FAILED
    elif code:
        typer.echo(f"Interrupted. The same command with --out {folder} goes on.", err=True)
    return code or made.exit_code


def order(rows: Sequence[Row], repeats: int) -> list[tuple[Row, int]]:
    """The runs in the order in which they are made: A B, then B A, and so on.

    So a machine that grows warmer or busier favours no row.
    """
    runnable = [row for row in rows if row.unavailable is None]
    return [(row, repeat) for repeat in range(repeats) for row in (runnable if repeat % 2 == 0 else reversed(runnable))]


def settings(preset: str | None, spec_file: Path | None, options: dict[str, Any], assignments: list[str]) -> Preset:
    """The preset or spec file with the options over it, and `--set` over these."""
    if preset is not None and spec_file is not None:
        raise SpecError(f"--preset and --spec exclude each other. Received: {preset} and {spec_file}. Use one of them.")
    settings = presets.preset(preset) if preset is not None else Preset()
    values = settings.values
    if spec_file is not None:
        values = spec.read_values(spec_file)
    given = {field: value for field, value in options.items() if value is not None}
    for asked in (given, spec.parse_assignments(assignments)):
        for field, other in (("epochs", "steps"), ("steps", "epochs")):
            if asked.get(field) is not None:
                values = {name: value for name, value in values.items() if name != other}
        values = spec.overlay(values, asked)
    # A spec that names a mode is compared with serial; the matrix sets mode and replicas of each row itself.
    mode, replicas = values.pop("mode", None), values.pop("replicas", None)
    if replicas is not None and not (mode == "serial" and replicas == 1):
        if type(replicas) is not int or replicas < 2:
            raise SpecError(
                f"replicas of the parallel modes must be a whole number of at least 2. Received: {replicas!r}. Use 2."
            )
        settings = replace(settings, replicas=replicas)
    if mode == "serial":
        settings = replace(settings, modes=("serial",))
    elif mode is not None:
        asked = spec.build({**values, "mode": mode, "replicas": settings.replicas})
        copies = asked.data_replicas if asked.mode == "hybrid" else asked.replicas
        settings = replace(settings, modes=("serial", asked.variant), replicas=copies)
    return replace(settings, values=values)


def _judged(request: Request, shown: Display) -> Comparison:
    """Every run, checked against the frameworks, the machine and the data before the first one starts."""
    settings = request.settings
    rows = request.lay_out(settings, request.frameworks)
    shown.say("asking the frameworks what they can do here")
    with ThreadPoolExecutor() as pool:
        descriptions = dict(zip(request.frameworks, pool.map(launch.describe, request.frameworks), strict=True))
    rows = matrix.judge(rows, descriptions, oversubscribe=request.oversubscribe)
    shown.say("reading the data")
    run_spec = rows[0].spec
    dataset = datasets.load(run_spec.data, seed=run_spec.seed, cache_dir=run_spec.paths.cache_dir)
    matrix.check_data(rows, dataset)
    architecture = architectures.resolve(run_spec.model, len(dataset.class_names), dataset.image_size)
    return Comparison(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=sys.argv[1:],
        rows=rows,
        repeats=settings.repeats,
        data_name=dataset.name,
        data_hash=dataset.content_hash,
        data_notes=list(dataset.notes),
        class_names=list(dataset.class_names),
        trainable_values=sum(parameter.size for parameter in architecture.parameters() if parameter.trainable),
        code_hash=parity.code_digest(request.frameworks, run_spec.model),
        versions={framework: description["versions"] for framework, description in descriptions.items()},
        machine=machine.describe(),
    )


def _prove(comparison: Comparison, request: Request, folder: Path, shown: Display) -> Comparison:
    """The comparison with its proof; a proof that breaks off proves nothing, and the runs go on."""
    return comparison.model_copy(update={"proof": _proof(comparison, request, folder, shown)})


def _proof(comparison: Comparison, request: Request, folder: Path, shown: Display) -> ProofRecord:
    if comparison.rows[0].spec.part != "training":
        return ProofRecord(verdict="not claimed", sentence="a part of the training was run, which learns nothing")
    modes = list(dict.fromkeys(row.spec.variant for row in comparison.rows if row.unavailable is None))
    if len(request.frameworks) < 2 and modes == ["serial"]:
        return ProofRecord(verdict="not claimed", sentence="one framework alone has nothing to be held against")
    shown.say("proof")
    serial = {row.framework: row.spec for row in comparison.rows if row.spec.mode == "serial"}  # the last: on most cores
    try:
        base = comparison.rows[0].spec
        proof = parity.prove(
            base.with_fields(hosts=(), cores=min(base.cores, spec.available_cores())),  # the mathematics are the same here
            request.frameworks,
            modes,
            replicas=request.settings.replicas,
            out=folder / "proof",
            progress=shown.say,
            raced=serial,
        )
    except (LaunchError, SpecError) as error:
        return ProofRecord(verdict="not proved", sentence=f"the proof broke off: {error}")
    verdicts = {framework: {mode: proof.mode_verdict(framework, mode) for mode in modes} for framework in request.frameworks}
    return ProofRecord(
        verdict=proof.verdict,
        sentence=proof.sentence,
        mode_verdicts=verdicts,
        not_claimed=proof.not_claimed,
        held_against=proof.held_against,
        rungs=[rung.model_dump() for rung in proof.rungs],
    )


def _run_all(comparison: Comparison, folder: Path, shown: Display) -> None:
    """Every run that has no good result yet."""
    jobs = [(row, repeat) for row, repeat in order(comparison.rows, comparison.repeats) if not _is_done(folder, row, repeat)]
    shown.plan([row.id for row, _ in jobs])
    for row, repeat in jobs:
        label = f"{row.id} ({repeat + 1} of {comparison.repeats})" if comparison.repeats > 1 else row.id
        shown.begin(row.id, label)
        execution.execute(row, repeat, folder, shown.watch)
        shown.end()


def _is_done(folder: Path, row: Row, repeat: int) -> bool:
    try:
        result = store.sealed(folder, row, repeat)
    except ResultError:
        return False
    return result is not None and result.status in ("ok", "not parallel")


def _default_folder(comparison: Comparison) -> Path:
    data = re.sub(r"[^\w.-]+", "-", comparison.data_name)
    now = datetime.now().astimezone()
    return Path("results") / f"{now:%Y%m%d-%H%M%S}-{comparison.rows[0].spec.model}-{data}"


def _part(input_only: bool, compute_only: bool) -> str | None:
    if input_only and compute_only:
        raise SpecError("--input-only and --compute-only exclude each other. Received: both. Use one of them, or neither.")
    return "input" if input_only else "compute" if compute_only else None
