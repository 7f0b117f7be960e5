"""`convtwins stragglers`: which mode suffers how much from a slow rank, measured beside the simulator."""

from __future__ import annotations

from typing import Annotated

import typer

from common.machine.private_folder import PrivateFolder
from common.spec import SpecError
from compare.cli import commands
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_types import Factors
from compare.cli.wording import count, joined, percent
from compare.comparison import comparison_plan
from compare.judgement.statement_words import DISTURBED
from compare.reporting import document
from compare.reporting.document import Report
from compare.reporting.screen import Bar, Chart, Paragraph, Screen
from compare.reporting.tables import Column, Table, scaled
from compare.results.workspace import FolderKind, Workspace
from compare.running import options, run_settings
from compare.statistics.statistics import VERDICT_PAIRS, Ratio
from compare.statistics.verdict_words import interval_words
from compare.tools.planning import planner, straggling
from compare.tools.planning.slow_rank import PERIOD_SECONDS, Straggler
from compare.tools.planning.straggling import SlowdownResult, StragglerResults

MODES, REPEATS, FACTORS = "all", 5, (1.5, 2.0, 4.0)
RESULTS_FILE, MEASURED_FOLDER = "stragglers.json", "measured"


@commands.command()
def command(
    invocation: Invocation,
    *,
    spec_options: options.SpecOptions,
    contestant_options: options.ContestantOptions,
    factor: Annotated[
        tuple[float, ...], Factors(above=1.0), typer.Option(help="Times as slow as the others that one rank is, with commas.")
    ] = FACTORS,
    jitter: Annotated[
        bool, typer.Option("--jitter", help="Also with each rank slow in turn, for a tenth of a second, by the largest factor.")
    ] = False,
    modes: Annotated[str | None, typer.Option(help=f"{options.MODES} Default: {MODES}.")] = None,
    replicas: options.Replicas = None,
    limit: options.Limit = None,
    cores: options.Cores = None,
    repeats: Annotated[int | None, typer.Option(min=1, help=f"{options.REPEATS} Default: {REPEATS}.")] = None,
    out: options.OutOrNone = None,
) -> Outcome:
    """Slow one rank down, and measure which mode suffers how much. The same command with the same --out goes on."""
    stragglers = [Straggler(number) for number in factor]
    if jitter:
        stragglers.append(Straggler(max(straggler.factor for straggler in stragglers), moves=True))
    settings = run_settings.settings(*spec_options.to_request(limit=limit, cores=cores, replicas=replicas))
    settings = run_settings.with_matrix(settings, modes, MODES, repeats, REPEATS)
    comparison_plan.check_model("stragglers", settings.values)
    if settings.values.get("hosts"):
        raise SpecError("stragglers slows ranks of this machine. Received: hosts. Leave them out.")
    twins = contestant_options.twins(settings.contestants)
    kind = FolderKind[None](
        noun="measurement of stragglers",
        file=RESULTS_FILE,
        allowed=(*document.report_files(), MEASURED_FOLDER),
    )
    invocation.interrupt_message = "Interrupted. The same command goes on." if out else ""
    invocation.hold(Workspace.open(out, kind)).lock()
    folder = (out or invocation.hold(PrivateFolder()).path) / MEASURED_FOLDER
    plan = planner.predict(settings, twins, invocation.progress)
    results = straggling.measure(plan, twins, stragglers, settings.repeats, folder, invocation.progress)
    return Outcome(report(results, settings.repeats), out)


def report(results: StragglerResults, repeats: int) -> Report:
    plan = results.plan
    versions = {name: timings.versions for name, timings in plan.machine.frameworks.items()}
    sections = [
        ("Cautions", results.cautions),
        ("How good the simulator was", accuracy_sentences(results)),
        ("No rank to slow", _unslowed_modes(results)),
    ]
    return Report(
        title=f"Slow ranks: {plan.run.model_label}, batch {plan.run.global_batch_size}",
        json_file=RESULTS_FILE,
        facts=[*verdicts(results.slowdowns), document.hardware_and_versions(plan.machine.facts, versions)],
        findings=[(heading, sentences) for heading, sentences in sections if sentences],
        tables=[table(results.slowdowns, repeats)] if results.slowdowns else [],
        values={
            "spec": plan.run.model_dump(mode="json"),
            "verdicts": verdicts(results.slowdowns),
            "suffered": [
                {**slowdown.model_dump(mode="json"), "error": slowdown.error, "n": slowdown.n} for slowdown in results.slowdowns
            ],
            "median_error": results.median_error,
            "in_one_process": results.one_process_modes,
        },
        screen=screen(results),
    )


def screen(results: StragglerResults) -> Screen:
    """Return the first screen: the slowdown of each mode."""
    run = results.plan.run
    bars = [
        Bar(
            (slowdown.contestant, slowdown.words, slowdown.straggler.words),
            slowdown.measured and slowdown.measured.value,
            interval_words(slowdown.measured) if slowdown.measured else "not measured",
            [f"{slowdown.simulated:.2f}", "in doubt" if slowdown.in_doubt else ""],
        )
        for slowdown in results.slowdowns
    ]
    answers = [
        Paragraph("Suffers", verdicts(results.slowdowns)),
        Paragraph("Simulated", accuracy_sentences(results)),
        Paragraph("Not slowed", _unslowed_modes(results)),
        Paragraph("Trouble", results.cautions, "bad"),
    ]
    return Screen(
        subject=[f"What does a slow rank cost? {run.model_label} on {run.data.source}, batch {run.global_batch_size}"],
        answers=answers,
        chart=Chart(("times as long with a slow rank, measured", "times as long"), ["simulated", ""], bars),
    )


def _unslowed_modes(results: StragglerResults) -> list[str]:
    return [f"{name}, all replicas in one process: {joined(modes)}." for name, modes in results.one_process_modes.items()]


def verdicts(slowdowns: list[SlowdownResult]) -> list[str]:
    """Return one line for each framework and slow rank: the modes with the smallest and largest slowdown."""
    groups: dict[tuple[str, str], list[tuple[Ratio, SlowdownResult]]] = {}
    for slowdown in slowdowns:
        if slowdown.measured is not None:
            groups.setdefault((slowdown.contestant, slowdown.straggler.words), []).append((slowdown.measured, slowdown))
    sentences: list[str] = []
    for (name, straggler), group in groups.items():
        least, most = (choose(group, key=lambda item: item[0].value) for choose in (min, max))
        low, high = (interval_words(ratio) for ratio, _ in (least, most))
        num_pairs = min(ratio.n for ratio, _ in group)
        if any(slowdown.in_doubt for _, slowdown in group):
            finding = f"not known. {DISTURBED} The same command makes disturbed runs again."
        elif num_pairs < VERDICT_PAIRS:
            finding = f"{num_pairs} of the {count(VERDICT_PAIRS, 'pair')} that a verdict needs."
        elif least is most:
            finding = f"a step takes {high} times as long in {most[1].words}."
        else:
            finding = (
                f"a step takes {low} times as long in {least[1].words}, {high} in {most[1].words}; in the others between "
                "these. No mode was tested against another."
            )
        sentences.append(f"{name}, {straggler}: {finding}")
    return sentences


def accuracy_sentences(results: StragglerResults) -> list[str]:
    errors = [slowdown for slowdown in results.slowdowns if slowdown.error is not None]
    if not errors or results.median_error is None:
        return []
    worst = max(errors, key=lambda slowdown: abs(slowdown.error or 0.0))
    return [
        f"The simulated ratios are off by {percent(results.median_error)} in the median of {len(errors)}, and by "
        f"{percent(abs(worst.error or 0.0))} at most: {worst.contestant} {worst.words}, {worst.straggler.words}."
    ]


def table(slowdowns: list[SlowdownResult], repeats: int) -> Table:
    columns = (
        Column("contestant", "contestant"),
        Column("words", "layout", fold=34),
        Column("straggler", "slow", fold=30, pick="straggler.words"),
        Column("measured", "times as long, measured", 2, short="times as\nlong", interval=True),
        Column("simulated", "simulated", 2),
        Column("error", "error, %", 0, short="error\n%", pick=scaled(100, "error")),
        Column("n", "pairs"),
        Column("in_doubt", "runs in doubt", short="in\ndoubt", wide=True),
    )
    return Table.from_items(
        "stragglers",
        "How much longer a step takes with a slow rank",
        columns,
        slowdowns,
        note=f"Of {repeats} interleaved repeats: seconds of a step with the slow rank over those without, in pairs, with the "
        f"95 % interval. The rank is stopped for a part of every {1e3 * PERIOD_SECONDS:.0f} ms. Error: (simulated - measured) "
        "/ measured.",
    )
