"""`convtwins run`: check everything first, then prove, run, and report."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from common.artifacts import results
from common.artifacts.schema import RunResult
from common.machine import rates
from common.machine.interference import Meter
from common.processes import signals
from common.spec import SpecError
from compare.cli import commands, exits, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.errors import LaunchError
from compare.cli.interrupt import SIGNAL_EXIT_BASE, Interrupted, interruptible
from compare.cli.option_rules import AllExcept, Excludes, Needs
from compare.cli.progress import Display, display
from compare.comparison import comparison_plan, estimate, executor, matrix_run, reruns
from compare.comparison.comparison_plan import ComparisonRequest
from compare.comparison.finished import FinishedWork, resume_hint
from compare.comparison.other_machines import other_machines
from compare.comparison.run_options import RunOptions
from compare.judgement import decision, run_figures, summary
from compare.proof import ladder, spot_checks, timed_rows
from compare.reporting import comparison_report
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Report
from compare.reporting.live import Live
from compare.results import cells, signing, store
from compare.results.cells import MatrixPlan
from compare.results.store import Comparison, ProofRecord
from compare.results.workspace import COMPARISON, Workspace, locked
from compare.running import options
from compare.running.interleaving import Job, run_in_turns
from compare.running.matrix import Row
from compare.running.twins import Twins


@commands.command(
    Needs("--from", "--dry-run"),
    Needs("--again", "--resume", "Name the results folder with --resume."),
    Excludes("--on", ["--from", "--again", "--live", "--hosts"], "runs comparisons on other machines"),
    Excludes("--input-only", "--compute-only", advice="Use one of them, or neither."),
    Excludes(
        "--resume",
        AllExcept(
            *("--resume", "--again", "--repeats", "--restarts", "--until-decided", "--most-repeats", "--smallest-effect"),
            *("--json", "--dry-run", "--from", "--live", "--sign", "--on"),
        ),
        "takes all settings but --repeats, --restarts, --until-decided and --on from its folder",
        "Leave them out, or start another comparison.",
    ),
)
def command(
    invocation: Invocation,
    *,
    spec_options: options.MatrixOptions,
    contestant_options: options.ContestantOptions,
    run_options: RunOptions,
    out: options.Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, with an estimate of their time and disk.")] = False,
    times_from: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="With --dry-run: take times from these results, measure nothing."),
    ] = None,
    resume: options.Resume = None,
    again: Annotated[
        Literal["disturbed"] | None,
        typer.Option(help="With --resume: make the repeats again in which other work disturbed a run. The old runs are kept."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Keep live.html in the results folder up to date meanwhile.")] = False,
    on: Annotated[
        str | None,
        typer.Option(metavar="slurm|tcp://HOST:PORT", help="Run each comparison as a job of Slurm or of a Dask cluster."),
    ] = None,
    sign: options.Sign = None,
) -> Outcome | Report | int:
    """Train the same CNN in every framework and mode, and compare."""
    if on is not None:
        other_machines().check_backend(on)
    signing.check_key(sign)
    if resume is not None:
        request, out = run_options.resumed_request(resume, on), resume
    else:
        request = run_options.request(spec_options, contestant_options, out, on)
    if isinstance(request, MatrixPlan):
        if dry_run:
            return matrix_run.rehearse(request, out, invocation, times_from=times_from, again=again is not None)
        finished, worst = _run_matrix(request, out, live=live, again=again is not None, sign=sign)
        return finished.outcome(worst)
    request = replace(request, live=live, again=again is not None, sign=sign)
    return estimate.rehearse(request, invocation.progress, times_from) if dry_run else run(request)


def run(request: ComparisonRequest, view: Callable[[JudgedComparison, Path], Report] | None = None) -> Outcome | int:
    """Do a whole comparison. Returns its report, or the exit code if it was interrupted before a run had ended.

    Args:
        view: makes another report of the same runs. It is written beside the comparison's own report and printed instead.
    """
    finished = _run_comparison(request)
    if finished.code and not any(finished.compared.stored.runs.values()):
        typer.echo(f"Interrupted before a run had ended. {resume_hint(finished.folder)}", err=True)
        return finished.code
    outcome = finished.outcome()
    if view is None:
        return outcome
    report = view(finished.compared, finished.folder)
    has_other_failure = finished.unwritten or finished.code  # the reason of the exit code then
    return replace(outcome, report=replace(report, failures=()) if has_other_failure else report, folder=finished.folder)


def run_quietly(request: ComparisonRequest | MatrixPlan, out: Path | None, sign: Path | None) -> Path:
    """Do a whole comparison or matrix, and write its report. Nothing of it is printed on stdout.

    Args:
        sign: the SSH key that signs the results.

    Returns:
        Its folder.

    Raises:
        OSError: a result or the report could not be written.
    """
    if isinstance(request, MatrixPlan):
        return _run_matrix(request, out, sign=sign)[0].completed_folder()
    return _run_comparison(replace(request, sign=sign)).completed_folder()


def _run_matrix(plan: MatrixPlan, out: Path | None, **how: Any) -> tuple[FinishedWork, int]:
    """Run all comparisons of a matrix.

    Args:
        how: fields of the request of each comparison.

    Returns:
        (the matrix, worst exit code of its comparisons).
    """
    codes: list[int] = []

    def run_cell(request: ComparisonRequest, folder: Path) -> None:
        codes.append(run_nested(replace(request, **how), folder)[1])

    def on_received(folder: Path) -> None:
        codes.append(_finish_received(folder, how["sign"]))

    finished = matrix_run.run_all(plan, out or store.new_folder(cells.KIND), run_cell, on_received)
    return finished, max(codes, default=0)


def run_nested(request: ComparisonRequest, folder: Path) -> tuple[JudgedComparison, int]:
    """Run a comparison as part of a larger command, which shows the report itself.

    Returns:
        (the comparison, exit code). The code is 1 if a run or the proof failed or a file could not be written, else 0.
    """
    finished = _run_comparison(replace(request, out=folder))
    if finished.code:
        raise Interrupted(finished.code - SIGNAL_EXIT_BASE)
    if finished.unwritten:
        typer.echo(finished.unwritten, err=True)
    return finished.compared, exits.RUN_FAILED if finished.unwritten else finished.compared.exit_code


def _finish_received(folder: Path, sign: Path | None) -> int:
    """Sign a comparison that another machine has run, and write its report. Returns the exit code, see `run_nested`."""
    with locked(folder):
        unsigned = signing.sign(folder, store.read(folder).made_from, sign) if sign else None
        compared = comparison_report.read(folder)
        unwritten = " ".join(filter(None, (comparison_report.report(compared, folder).write(folder), unsigned)))
    if unwritten:
        typer.echo(unwritten, err=True)
    return exits.RUN_FAILED if unwritten else compared.exit_code


@dataclass(frozen=True, kw_only=True)
class FinishedComparison(FinishedWork):
    """A comparison that was run."""

    compared: JudgedComparison


def _run_comparison(request: ComparisonRequest) -> FinishedComparison:
    """Start or resume a comparison. Prints its progress, not its results."""
    code, unwritten_runs, meter = 0, list[tuple[str, RunResult]](), Meter()
    early = comparison_plan.early_identity(request)
    early_message = "Interrupted. Nothing of this comparison was trained yet: the same command starts it."
    with (
        interruptible(early_message),
        display() as progress,
        Workspace.open(request.out, COMPARISON, early=early) as workspace,
    ):
        plan = comparison_plan.build_plan(request, progress)
        folder = request.out or store.new_folder(plan.rows[0].spec.model, plan.data_name)
        comparison = _with_rates(workspace.claim(plan, folder), progress)
        store.write_plan(folder, comparison)
        most_cores = max(row.spec.cores for row in comparison.rows)
        busy = comparison_plan.busy_caution(meter, most_cores, comparison.machine)
        attempts = comparison_plan.unfinished_attempts(comparison, folder)
        for warning in [*comparison_plan.early_cautions(comparison), *busy, *attempts]:
            typer.echo(warning, err=True)
        store.archive_replaced_runs(folder, comparison.replaced)  # a kill may have left some in place
        live = Live(progress, folder if request.live else None, f"{comparison.rows[0].spec.model} on {comparison.data_name}")
        try:
            try:
                comparison = with_proof(comparison, request, folder, live)
                if request.again:  # after the proof: an interrupted one leaves all runs where they are
                    disturbed_runs = reruns.select_disturbed(store.read(folder))
                    comparison = reruns.archive_and_requeue(comparison, folder, disturbed_runs)
                unwritten_runs = run_all(comparison, request.twins, folder, live)
                _judge_spot_checks(folder, request.twins, live)
            except Interrupted as interruption:
                code = interruption.exit_code
            with signals.record_signals() as late_signals:
                live.say("report")
                unsigned = signing.sign(folder, store.read(folder).made_from, request.sign) if request.sign else None
                compared = comparison_report.read(folder, unwritten_runs)
                report = comparison_report.report(compared, folder)
                unwritten = " ".join(filter(None, (report.write(folder), unsigned))) or None
            if late_signals and not code:
                code = SIGNAL_EXIT_BASE + late_signals[0]
        except BaseException:
            live.finish("Stopped by an error.", has_report=False)
            raise
        live.finish("Interrupted." if code else "All runs have ended.")
    return FinishedComparison(compared=compared, report=report, folder=folder, code=code, unwritten=unwritten)


def with_proof(comparison: Comparison, request: ComparisonRequest, folder: Path, progress: Display) -> Comparison:
    """Return the comparison with its proof, if one was requested. A proof in the folder is made again: proofs are cached."""
    if not request.settings.prove:
        return comparison
    comparison = comparison.model_copy(update={"proof": proof(comparison, request, folder, progress)})
    store.write_plan(folder, comparison)
    comparison_plan.refuse_changed_environments(comparison)
    return comparison


def _with_rates(comparison: Comparison, progress: Display) -> Comparison:
    """Add the machine's rates for every number of cores that a row uses here."""
    core_counts = {row.spec.cores for row in comparison.rows if row.unavailable is None and not row.spec.hosts}
    missing = sorted(core_counts - comparison.rates.keys())
    if not missing or comparison.rows[0].spec.part == "input":
        return comparison
    progress.say("measuring what the machine can do")
    measurements = {cores: rate for cores in missing if (rate := rates.measure_in_subprocess(cores)) is not None}
    return comparison.model_copy(update={"rates": comparison.rates | measurements})


def proof(comparison: Comparison, request: ComparisonRequest, folder: Path, progress: Display) -> ProofRecord:
    """Prove that the frameworks train the same. A proof that fails with an error proves nothing, and stops no run.

    Bases of another revision are left out: their code may record its steps in another form.
    """
    compared = request.twins.contestants
    names = [contestant.name for contestant in compared if contestant.base_of is None or not contestant.revision]
    comparison = comparison.model_copy(update={"rows": [row for row in comparison.rows if row.contestant in names]})
    request = replace(request, twins=request.twins.only(names))
    replicas = comparison.replicas
    if why_not := ladder.ProofRequest.for_rows(comparison.rows, request.twins, replicas=replicas).why_nothing:
        return ProofRecord(verdict="not claimed", sentence=why_not)
    modes = timed_rows.available_modes(comparison.rows)
    progress.stage("proof that the training is the same, which may take minutes")
    try:
        proof = ladder.prove_rows(
            comparison.rows,
            request.twins,
            replicas=replicas,
            out=folder / store.PROOF_FOLDER,
            progress=progress.stage,
        )
    except (LaunchError, SpecError) as error:
        rows = {row.id: "not proved" for row in comparison.rows if row.spec.not_serial_because is None}
        return ProofRecord(verdict="not proved", sentence=f"the proof broke off: {error}", row_verdicts=rows)
    verdicts = {name: {mode: proof.mode_verdict(name, mode) for mode in modes} for name in request.twins.names}
    rows = timed_rows.row_verdicts(proof, request.twins, comparison.rows)
    rungs, previous = [rung.model_dump() for rung in proof.rungs], comparison.proof
    sentence, remembered = proof.sentence, proof.remembered
    if previous is not None and proof.remembered and _without_first_losses(previous.rungs) == rungs:
        # The proof is from before an interruption of this comparison. A remembered proof is never refuted by itself.
        sentence = previous.float64_sentence or (previous.sentence if previous.verdict == proof.verdict else sentence)
        remembered = previous.remembered
    return ProofRecord(
        verdict=proof.verdict,
        sentence=sentence,
        remembered=remembered,
        mode_verdicts=verdicts,
        row_verdicts=rows,
        not_claimed=timed_rows.reasons_not_claimed(proof, request.twins, comparison.rows),
        compared_with=proof.compared_with,
        rungs=rungs,
        spot_checks=previous.spot_checks if previous is not None else [],
    )


def _without_first_losses(rungs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rungs without those of first losses, which are made when the runs have ended."""
    return [rung for rung in rungs if rung.get("first_tolerance") is None]


def _judge_spot_checks(folder: Path, twins: Twins, progress: Display, *, has_more_runs: bool = False) -> None:
    """Judge the steps that the timed runs recorded, and give each row the verdict of its own runs.

    Args:
        has_more_runs: whether other runs follow. Then no row is proved yet, and no first loss is judged.
    """
    plan = store.read_plan(folder)
    if not plan.settings.prove or (proof := plan.proof) is None:
        return
    stored = store.read(folder)
    progress.stage("proof: recorded steps of the timed runs")
    known_checks = spot_checks.current_checks(stored, proof.spot_checks)
    all_runs = [run for repeats in stored.runs.values() for run in repeats.values()]
    checks = [
        *known_checks,
        *spot_checks.judge(
            twins, spot_checks.unjudged_runs(folder, stored, known_checks), known_checks, progress.say, all_runs
        ),
    ]
    losses = [] if has_more_runs else spot_checks.first_losses(stored)
    failed_modes = {(loss.framework, loss.mode or "serial") for loss in losses if loss.status == "failed"}
    faulty_rows = dict.fromkeys(check.row for check in checks if check.faults)
    faulty_rows |= dict.fromkeys(row.id for row in plan.rows if (row.contestant, row.spec.variant) in failed_modes)
    verdicts = proof.row_verdicts if has_more_runs else spot_checks.row_verdicts(proof.row_verdicts, stored.runs, checks)
    verdicts = {**verdicts, **dict.fromkeys(faulty_rows, "not proved")}
    rungs = [*_without_first_losses(proof.rungs), *(loss.model_dump() for loss in losses)]
    proof = proof.model_copy(update={"spot_checks": checks, "row_verdicts": verdicts, "rungs": rungs})
    if faulty_rows:
        alone = proof.float64_sentence or proof.sentence
        reason = f"timed runs of {wording.listed(faulty_rows)} are not as planned. The float64 proof alone: {alone}"
        proof = proof.model_copy(
            update={"verdict": "not proved", "sentence": f"not proved: {reason}", "float64_sentence": alone}
        )
    store.write_plan(folder, stored.comparison.model_copy(update={"proof": proof}))


def run_all(comparison: Comparison, twins: Twins, folder: Path, progress: Display) -> list[tuple[str, RunResult]]:
    """Make every run of a comparison that has no good result in its folder yet. Until it is decided, repeats are added.

    Returns:
        (row id, result) of each result that could not be written there.
    """
    unwritten = _run_rounds(comparison, twins, comparison_plan.remaining_rounds(comparison, folder), folder, progress)
    while not unwritten and (queued := _queue_until_decided(comparison, folder, progress)):
        comparison, repeats = queued
        remaining = comparison_plan.remaining_rounds(comparison, folder)
        rounds = [jobs for jobs in remaining if jobs[0].repeat in repeats]
        unwritten = _run_rounds(comparison, twins, rounds, folder, progress)
    return unwritten


def _queue_until_decided(comparison: Comparison, folder: Path, progress: Display) -> tuple[Comparison, set[int]] | None:
    """Queue another repeat of the rows of open questions. If none is open, queue again what other work disturbed.

    Repeats that are made again are rounds of the stopping rule, too. It makes all disturbed ones again, or none: a single one
    leaves its row's times unreliable.

    Returns:
        (comparison, repeats to run). None if all is decided, or the stopping rule allows no more.
    """
    until = comparison.settings.until
    if until is None or comparison.num_rounds >= until.most_repeats:
        return None
    comparison = comparison.model_copy(update={"proof": store.read_plan(folder).proof})  # it may know recorded steps by now
    compared = comparison_report.read(folder)
    verdicts = compared.findings.verdicts
    num_repeats = comparison.settings.repeats
    answerable = [question for question in verdicts if not question.disturbed]
    hopeful = [question for question in decision.undecided(answerable) if decision.is_hopeful(question, comparison)]
    if hopeful:
        needed_rows = {row for question in hopeful for row in summary.compared_row_ids(comparison, question)}
        skipped_rows = [row.id for row in comparison.rows if row.id not in needed_rows]
        left_out = comparison.left_out | {row: [*comparison.left_out.get(row, ()), num_repeats] for row in skipped_rows}
        comparison = comparison.with_settings(repeats=num_repeats + 1).model_copy(update={"left_out": left_out})
        store.write_plan(folder, comparison)
        progress.stage(
            f"{wording.count(len(hopeful), 'question')} still open: repeat {num_repeats + 1} of at most {until.most_repeats}"
        )
        return comparison, {num_repeats}
    disturbed_runs = reruns.select_disturbed(compared.stored)
    disturbed_repeats = {run.repeat for run in disturbed_runs}
    is_unknown = len(answerable) < len(verdicts)
    if is_unknown and disturbed_repeats and comparison.num_rounds + len(disturbed_repeats) <= until.most_repeats:
        numbers = wording.joined([str(repeat + 1) for repeat in sorted(disturbed_repeats)])
        progress.stage(f"made again, as other programs took cores: repeat {numbers}")
        return reruns.archive_and_requeue(comparison, folder, disturbed_runs), disturbed_repeats
    return None


def _run_rounds(
    comparison: Comparison, twins: Twins, planned: Sequence[Sequence[Job[Row]]], folder: Path, progress: Display
) -> list[tuple[str, RunResult]]:
    """Run these rounds. Returns (row id, result) of each result that could not be written."""
    unwritten: list[tuple[str, RunResult]] = []
    until = comparison.settings.until
    most = until.most_repeats if until else comparison.settings.repeats
    num_bytes = spot_checks.num_bytes(folder / store.RUNS_FOLDER)

    def label(job: Job[Row]) -> str:
        row, repeat = job
        return f"{row.id} ({repeat + 1} of {'at most ' if until else ''}{most})" if most > 1 else row.id

    def options_of(job: Job[Row]) -> dict[str, Any]:
        has_spot_checks = comparison.proof is not None and spot_checks.is_checked(job.item.spec)
        return {"restarts": comparison.settings.restarts, "has_spot_checks": has_spot_checks}

    def execute(job: Job[Row]) -> RunResult:
        row, repeat = job
        return executor.execute(twins[row.contestant], row, repeat, folder, progress.watch, **options_of(job))

    def execute_together(jobs: Sequence[Job[Row]]) -> Generator[tuple[int, RunResult]]:
        return executor.execute_together(jobs, twins, folder, progress.watch, options_of)

    for ended in run_in_turns(
        planned,
        execute,
        progress,
        name=lambda row: row.id,
        label=label,
        ending=run_figures.ending,
        execute_together=execute_together if comparison.takes_turns else None,
    ):
        if all(job.repeat == 0 and run_figures.disturbing_cores(result) is not None for job, result in ended):
            go_on = wording.command("run", "--resume", str(folder), "--again", "disturbed")
            progress.tell(
                "Other programs took cores from every run of this command so far. Such runs give no verdict. End this with "
                f"Ctrl-C, and go on when they have ended: {go_on}"
            )
        for (row, repeat), result in ended:
            run_folder = store.run_folder(folder, row.id, repeat)
            if not (run_folder / results.RESULT_FILE).exists():
                unwritten.append((row.id, result))
            num_bytes += spot_checks.num_bytes(run_folder)
        # Between two runs of a pair the machine must not change. Recorded steps of a large model would fill the disk.
        if num_bytes > spot_checks.MOST_BYTES:
            _judge_spot_checks(folder, twins, progress, has_more_runs=True)
            num_bytes = 0
    return unwritten
