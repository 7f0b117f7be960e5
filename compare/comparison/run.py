"""`python -m compare run`: judge everything first, then prove, run, and report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import typer
from rich.console import Console

from common import spec
from common.artifacts import results
from common.artifacts.schema import ResultError, RunResult
from common.data import sources
from common.machine import machine, rates
from common.models import architectures, work
from common.processes import supervisor
from common.spec import SpecError
from compare.comparison import estimate
from compare.core import exits, presets, terminal
from compare.core.errors import LaunchError
from compare.core.interrupt import SIGNALLED, Interrupted, interruptible
from compare.core.option_parsing import names, numbers, variants
from compare.core.presets import Preset
from compare.core.progress import Display, Watchers, display
from compare.execution import code_digest, executor, launch, matrix, store
from compare.execution.interleaving import turn
from compare.execution.matrix import Row
from compare.execution.store import Comparison, ProofRecord
from compare.proof import ladder
from compare.reporting import comparison_report
from compare.reporting.comparison_report import Compared
from compare.reporting.document import Report
from compare.reporting.live import Live

PROFILE_STEPS = 20
"""Profiled steps of the segment that `--profile` adds to a run."""

_WITH_RESUME = ("resume", "repeats", "as_json", "dry_run", "like", "live")
"""Command parameters that do not change what is compared."""


@dataclass(frozen=True)
class Request:
    """The options of the command line, read but not yet judged."""

    settings: Preset
    frameworks: list[str]
    out: Path | None
    prove: bool
    lay_out: Callable[[Preset, Sequence[str]], list[Row]] = lambda settings, frameworks: matrix.rows(
        settings.values, frameworks, settings.modes, settings.replicas, settings.workers
    )
    """The rows of these settings for these frameworks."""
    oversubscribe: bool = False
    """Whether to run modes with more replicas than cores. The replicas then share cores."""
    target_accuracy: float | None = None
    """Validation accuracy at which the time to accuracy is taken."""
    live: bool = False
    """Whether to keep a live page up to date during the runs."""


def command(
    context: typer.Context,
    preset: Annotated[str | None, typer.Option(help=f"A named comparison: {', '.join(presets.PRESETS)}.")] = None,
    spec_file: Annotated[Path | None, typer.Option("--spec", help="A spec file (.yaml or .json).")] = None,
    data: Annotated[str | None, typer.Option(help=f"{', '.join(sources.NAMES)}, or an image folder or archive.")] = None,
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
    seeds: Annotated[
        str | None,
        typer.Option(help="A seed for each repeat, with commas, alike in all rows; the splits stay those of --seed."),
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Count the seconds until the validation accuracy is this, e.g. 0.95.")
    ] = None,
    cores: Annotated[int | None, typer.Option(help="CPU cores that each run may use. Default: all.")] = None,
    hosts: Annotated[str | None, typer.Option(help="Machines for the ranks, with commas, the first of them this one.")] = None,
    switches: Annotated[
        str | None, typer.Option(help=f"What the spec does not name of them: {', '.join(spec.LEVELS)}. Default: fair.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="field=value of the spec, e.g. optimizer.momentum=0.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder. Default: results/<time>-<model>-<data>.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run, how long it takes, on how much disk.")
    ] = False,
    like: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="With --dry-run: take times from these results, measure nothing."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go on with the comparison in this folder, all its settings as they were."),
    ] = None,
    oversubscribe: Annotated[bool, typer.Option(help="Run modes with more replicas than cores, which take turns.")] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="After each run, time a step's parts apart and write a trace.")
    ] = False,
    proof: Annotated[bool, typer.Option(help="Prove first that both frameworks train the same.")] = True,
    live: Annotated[bool, typer.Option("--live", help="Keep live.html in the results folder up to date meanwhile.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Train the same CNN in every framework and mode, and compare."""
    with exits.told():
        do = partial(rehearse, like=like) if dry_run else run
        if like is not None and not dry_run:
            raise SpecError(f"--from goes with --dry-run. Received: {like} without it. Add --dry-run, or leave it out.")
        if resume is not None:
            _only_with_resume(context)
            raise typer.Exit(do(replace(stored_request(resume, repeats), live=live), as_json=as_json))
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
            "switches": switches,
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
        if seeds is not None:
            asked = with_seeds(asked, numbers("--seeds", seeds, least=0), repeats)
        target = _judged_target(target_accuracy)
        request = Request(asked, names(frameworks), out, proof, oversubscribe=oversubscribe, target_accuracy=target, live=live)
        code = do(request, as_json=as_json)
    raise typer.Exit(code)


def run(request: Request, *, as_json: bool, view: Callable[[Compared, Path], Report] | None = None) -> int:
    """Do a whole comparison and print its report.

    Args:
        request: what to compare.
        as_json: whether to print JSON.
        view: makes another report of the same runs, which is written beside theirs and printed instead.

    Returns:
        The exit code: 0; 1 if a run failed; 130 or 143 if it was interrupted.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: nothing was trained.
        Interrupted: before anything was trained.
    """
    made = _do(request)
    if made.code and not any(made.compared.stored.runs.values()):
        typer.echo(f"Interrupted before a run had ended. {_goes_on(made.folder)}", err=True)
        return made.code
    if view is not None:
        code = view(made.compared, made.folder).deliver(made.folder, as_json=as_json)
    else:
        comparison_report.report(made.compared, made.folder).show(None if made.unwritten else made.folder, as_json=as_json)
        code = made.compared.exit_code
    if made.unwritten:
        typer.echo(made.unwritten, err=True)
        return made.code or exits.RUN_FAILED
    if made.code:
        typer.echo(f"Interrupted. {_goes_on(made.folder)}", err=True)
    return made.code or code


def within(request: Request, folder: Path) -> tuple[Compared, int]:
    """Run a comparison as a part of a larger command, which shows the report itself.

    Args:
        request: of the comparison.
        folder: its `out`.

    Returns:
        (the comparison, exit code: 0, or 1 if a run or the proof failed or a file could not be written).

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: as `run`.
        Interrupted: some runs were made, and their results stay.
    """
    made = _do(replace(request, out=folder))
    if made.code:
        raise Interrupted(made.code - SIGNALLED)
    if made.unwritten:
        typer.echo(made.unwritten, err=True)
    return made.compared, exits.RUN_FAILED if made.unwritten else made.compared.exit_code


class _Done(NamedTuple):
    """A comparison that was run, and what to print about it."""

    compared: Compared
    folder: Path
    code: int
    """0, or 130 or 143 if it was interrupted."""
    unwritten: str | None
    """Files that could not be written, in words."""


def _do(request: Request) -> _Done:
    """Start or resume a comparison. Prints its progress, not its results."""
    code, unsealed = 0, list[tuple[str, RunResult]]()
    with interruptible(), display(Console(stderr=True)) as shown:
        if request.out is not None:
            store.refuse_used(request.out, request.lay_out(request.settings, request.frameworks), request.settings.seeds)
        wanted = judged(request, shown)
        folder = request.out or _default_folder(wanted)
        with store.locked(folder):
            comparison = _with_rates(store.claim(folder, wanted), shown)
            store.write_plan(folder, comparison)
            live = Live(folder if request.live else None, f"{comparison.rows[0].spec.model} on {comparison.data_name}")
            told = Watchers(shown, live)
            try:
                try:
                    if request.prove:  # also for a folder that holds a proof: earlier proofs are remembered
                        comparison = _prove(comparison, request, folder, told)
                        store.write_plan(folder, comparison)
                    unsealed = run_all(comparison, folder, told)
                except Interrupted as interruption:
                    code = interruption.exit_code
                told.say("report")
                made = comparison_report.read(folder, unsealed)
                unwritten = comparison_report.report(made, folder).write(folder)
            except BaseException:
                live.finish("Broken off by an error.", reported=False)
                raise
            live.finish("Interrupted." if code else "All runs have ended.")
    return _Done(made, folder, code, unwritten)


def rehearse(request: Request, *, as_json: bool, like: Path | None) -> int:
    """Print the remaining runs of a comparison in order, with an estimate of their time and disk.

    Args:
        request: of the comparison, which is not begun.
        as_json: whether to print JSON.
        like: a results folder to take the times from; None: a few steps of each row are trained and timed.

    Returns:
        The exit code: 0, 1 where a row could not be measured.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: as `run`.
    """
    known = estimate.measured if like is None else estimate.stored(like)
    if like is None:
        typer.echo("Training a few steps of each row; --from DIR takes times from results and measures nothing.", err=True)
    with interruptible(), display(Console(stderr=True)) as shown:
        wanted = judged(request, shown)
        jobs = _jobs(wanted, request.out)

        def looked_up(row: Row) -> tuple[RunResult, str] | str:
            shown.say(f"a few steps of {row.id}" if like is None else f"looking for {row.id}")
            return known(row)

        estimates = estimate.estimate(wanted, jobs, looked_up)
    plain = estimate.to_plain(estimates, wanted)
    if as_json:
        typer.echo(json.dumps(plain, indent=1))
    else:
        estimate.print_to(terminal.stdout(), plain)
    return exits.RUN_FAILED if like is None and plain["unknown"] else 0


def stored_request(folder: Path, repeats: int | None = None) -> Request:
    """The request that a results folder was made by, from its compare.json.

    Args:
        folder: of a comparison.
        repeats: of each row; None: as many as before.

    Raises:
        FolderError: the folder holds no comparison.
    """
    stored = store.read_plan(folder)
    parallel = [row.spec for row in stored.rows if row.spec.mode != "serial"]
    copies = [each.data_replicas if each.mode == "hybrid" else each.replicas for each in parallel]
    settings = Preset(
        replicas=min(copies, default=Preset().replicas),
        repeats=stored.repeats if repeats is None else repeats,
        seeds=tuple(stored.seeds),
    )
    rows = [row.model_copy(update={"unavailable": None}) for row in stored.rows]
    return Request(
        settings,
        list(dict.fromkeys(row.framework for row in rows)),
        folder,
        stored.prove,
        lay_out=lambda settings, frameworks: rows,
        oversubscribe=stored.oversubscribe,
        target_accuracy=stored.target_accuracy,
    )


def order(rows: Sequence[Row], repeats: int) -> list[tuple[Row, int]]:
    """The runs in the order in which they are made: A B, then B A, and so on.

    So a machine that grows warmer or busier favours no row. Rows that differ by their framework alone follow one another, so
    that little has changed on the machine between the two that are compared most.
    """
    runnable = [row for row in rows if row.unavailable is None]
    ordered: list[Row] = []
    for row in runnable:
        if row not in ordered:
            ordered += [row, *(other for other in runnable if matrix.differ_by_framework(row, other))]
    return [(row, repeat) for repeat in range(repeats) for row in turn(ordered, repeat)]


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


def values_of_one(
    preset: str | None, spec_file: Path | None, options: dict[str, Any], assignments: list[str]
) -> dict[str, Any]:
    """The same for runs that are no matrix: the values, with the mode and the replicas that were asked for."""
    stated = spec.read_values(spec_file) if spec_file is not None else {}
    own: dict[str, Any] = {}
    for asked in (stated, spec.parse_assignments(assignments)):
        own |= {field: asked[field] for field in ("mode", "replicas") if field in asked}
    return settings(preset, spec_file, options, assignments).values | own


def judged(request: Request, shown: Display) -> Comparison:
    """Every run, checked against the frameworks, the machine and the data before the first one starts.

    Raises:
        SpecError, DataRefused, LaunchError: something is refused.
    """
    settings = request.settings
    if settings.repeats > store.MOST_REPEATS:
        raise SpecError(f"A row has at most {store.MOST_REPEATS} runs. Received: {settings.repeats}. Ask for fewer.")
    rows = request.lay_out(settings, request.frameworks)
    shown.say("asking the frameworks what they can do here")
    with launch.asked(request.frameworks) as answer:
        descriptions = {framework: answer(framework) for framework in request.frameworks}
    rows = matrix.judge(rows, descriptions, oversubscribe=request.oversubscribe)
    shown.say("reading the data")
    _refuse_other_first_hosts(rows)
    run_spec = rows[0].spec
    # Loaded, not described: the first run is not to spend its time on decoding images for all of them.
    dataset = sources.load(run_spec.data, seed=run_spec.split_seed, cache_dir=run_spec.paths.cache_dir)
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
        code_hash=code_digest.of(request.frameworks, run_spec.model),
        versions={framework: description["versions"] for framework, description in descriptions.items()},
        machine=machine.describe() | {"gpus": _gpus(descriptions)},
        seeds=list(settings.seeds),
        target_accuracy=request.target_accuracy,
        work=work.count(architecture),
        train_examples=len(dataset.train),
        prove=request.prove,
        oversubscribe=request.oversubscribe,
    )


def _refuse_other_first_hosts(rows: Sequence[Row]) -> None:
    """Where ranks are spread over machines, the first of them is this one.

    Raises:
        SpecError: it is not.
    """
    for hosts in {row.spec.hosts for row in rows if row.spec.hosts}:
        try:
            supervisor.free_ports(1, hosts[0])
        except supervisor.AddressError as error:
            raise SpecError(
                f"hosts must begin with this machine. Received: {', '.join(hosts)} ({error}). Name an address of this machine "
                "first."
            ) from None


def _gpus(descriptions: Mapping[str, dict[str, Any]]) -> list[str] | None:
    """As the first framework names them that sees any."""
    seen = [[each["name"] for each in description["devices"] if each["kind"] != "cpu"] for description in descriptions.values()]
    return next(filter(None, seen), None)


def _with_rates(comparison: Comparison, shown: Display) -> Comparison:
    """The comparison with the machine's rates for every number of cores on which a row runs here."""
    wanted = {row.spec.cores for row in comparison.rows if row.unavailable is None and not row.spec.hosts}
    missing = sorted(wanted - comparison.rates.keys())
    if not missing or comparison.rows[0].spec.part == "input":
        return comparison
    shown.say("measuring what the machine can do")
    found = {cores: measured for cores in missing if (measured := rates.measured(cores)) is not None}
    return comparison.model_copy(update={"rates": comparison.rates | found})


def _prove(comparison: Comparison, request: Request, folder: Path, told: Watchers) -> Comparison:
    """The comparison with its proof; a proof that breaks off proves nothing, and the runs go on."""
    return comparison.model_copy(update={"proof": proof(comparison, request, folder, told)})


def proof(comparison: Comparison, request: Request, folder: Path, told: Watchers) -> ProofRecord:
    if comparison.rows[0].spec.part != "training":
        return ProofRecord(verdict="not claimed", sentence="a part of the training was run, which learns nothing")
    modes = list(dict.fromkeys(row.spec.variant for row in comparison.rows if row.unavailable is None))
    if len(request.frameworks) < 2 and modes == ["serial"]:
        return ProofRecord(verdict="not claimed", sentence="one framework alone has nothing to be held against")
    told.say("proof")
    serial = {row.framework: row.spec for row in comparison.rows if row.spec.mode == "serial"}  # the last: on most cores
    try:
        base = comparison.rows[0].spec
        proof = ladder.prove(
            base.with_fields(hosts=(), cores=min(base.cores, machine.available_cores())),  # the mathematics are the same here
            request.frameworks,
            modes,
            replicas=request.settings.replicas,
            out=folder / "proof",
            progress=told.say,
            timed_runs=serial,
        )
    except (LaunchError, SpecError) as error:
        return ProofRecord(verdict="not proved", sentence=f"the proof broke off: {error}")
    verdicts = {framework: {mode: proof.mode_verdict(framework, mode) for mode in modes} for framework in request.frameworks}
    rungs, before = [rung.model_dump() for rung in proof.rungs], comparison.proof
    own = before is not None and proof.remembered and before.rungs == rungs  # from before this comparison was cut short
    return ProofRecord(
        verdict=proof.verdict,
        sentence=before.sentence if before is not None and own else proof.sentence,
        mode_verdicts=verdicts,
        not_claimed=proof.not_claimed,
        held_against=proof.compared_with,
        rungs=rungs,
    )


def run_all(comparison: Comparison, folder: Path, told: Watchers) -> list[tuple[str, RunResult]]:
    """Make every run of a comparison that has no good result in its folder yet.

    Returns:
        (row id, result) of each that could not be sealed there.

    Raises:
        Interrupted: part of them was made; what was measured is in the folder.
    """
    jobs = _jobs(comparison, folder)
    told.plan([row.id for row, _ in jobs])
    unsealed: list[tuple[str, RunResult]] = []
    for row, repeat in jobs:
        label = f"{row.id} ({repeat + 1} of {comparison.repeats})" if comparison.repeats > 1 else row.id
        told.begin(row.id, label)
        result = executor.execute(row, repeat, folder, told.watch)
        if not (store.run_folder(folder, row.id, repeat) / results.RESULT_FILE).exists():
            unsealed.append((row.id, result))
        told.end(result)
    return unsealed


def _jobs(comparison: Comparison, folder: Path | None) -> list[tuple[Row, int]]:
    """The runs that are still to be made, in order, each with its repeat's seed."""
    jobs = [(comparison.of_repeat(row, repeat), repeat) for row, repeat in order(comparison.rows, comparison.repeats)]
    return jobs if folder is None else [(row, repeat) for row, repeat in jobs if not _is_done(folder, row, repeat)]


def _is_done(folder: Path, row: Row, repeat: int) -> bool:
    try:
        result = store.sealed(folder, row, repeat)
    except ResultError:
        return False
    return result is not None and result.status in ("ok", "not parallel")


def _default_folder(comparison: Comparison) -> Path:
    return store.new_folder(comparison.rows[0].spec.model, comparison.data_name)


def with_seeds(settings: Preset, seeds: tuple[int, ...], repeats: int | None) -> Preset:
    """The settings with a seed for each repeat; the data stay divided by one seed, so that all are scored on the same images.

    Args:
        settings: with the repeats that were asked for, where any were.
        seeds: each once.
        repeats: as asked for; None: one for each seed.

    Raises:
        SpecError: a seed is too large, or there are fewer repeats than seeds.
    """
    for seed in seeds:
        spec.build({"seed": seed})
    if repeats is not None and repeats < len(seeds):
        raise SpecError(
            f"--repeats must be at least one for each of --seeds. Received: {repeats} for {len(seeds)} seeds. Use "
            f"{len(seeds)}, or fewer seeds."
        )
    values, data = settings.values, settings.values.get("data")
    if not isinstance(data, dict) or cast(dict[str, Any], data).get("seed") is None:
        values = spec.overlay(values, {"data.seed": values.get("seed") or 0})
    return replace(settings, values=values, seeds=seeds, repeats=max(settings.repeats, len(seeds)))


def _judged_target(accuracy: float | None) -> float | None:
    if accuracy is not None and not 0.0 < accuracy <= 1.0:
        raise SpecError(f"--target-accuracy must be above 0 and at most 1. Received: {accuracy:g}. Use 0.95 for 95 %.")
    return accuracy


def _goes_on(folder: Path) -> str:
    return f"The same command with --out {folder} goes on, as does run --resume {folder}."


def given_besides(context: typer.Context, allowed: Collection[str]) -> list[str]:
    """Options of a command that were typed, as they are typed, other than the parameters that are allowed."""
    typed: list[str] = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE" and option.name not in allowed:
            typed.append("/".join((option.opts[0], *option.secondary_opts[:1])))
    return typed


def _only_with_resume(context: typer.Context) -> None:
    """Refuse what would make another comparison of the one in the folder.

    Raises:
        SpecError: an option was given that the folder has the say of.
    """
    others = given_besides(context, _WITH_RESUME)
    if others:
        raise SpecError(
            f"--resume takes all settings from its folder, but for --repeats. Received also: {', '.join(others)}. "
            "Leave them out, or start another comparison."
        )


def _part(input_only: bool, compute_only: bool) -> str | None:
    if input_only and compute_only:
        raise SpecError("--input-only and --compute-only exclude each other. Received: both. Use one of them, or neither.")
    return "input" if input_only else "compute" if compute_only else None
