"""The report of a comparison, made from its stored results."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.artifacts.schema import RunResult
from common.machine.machine import INSTALLED
from common.spec import build
from compare.cli import exits, wording
from compare.cli.terminal import FULL
from compare.judgement import cautions, environments, slices, statement_words
from compare.judgement.findings import ComparisonFindings, findings
from compare.judgement.row_figures import FAILURES, UNFINISHED, Summary
from compare.judgement.statement import Statement
from compare.judgement.summary import summarize
from compare.reporting import (
    class_tables,
    comparison_plots,
    comparison_screen,
    comparison_tables,
    dataframes,
    document,
    page,
    proof_tables,
    tables,
)
from compare.reporting.document import (
    COMPARE,
    PYTHON,
    SET_UP,
    SUITE_ON_PATH,
    TABLES_FOLDER,
    Mark,
    Report,
    without_output_options,
)
from compare.reporting.tables import Table
from compare.results import signing, store
from compare.results.store import SPEC_FILE, Comparison, StoredComparison
from compare.running import launch
from compare.statistics.statistics import VERDICT_PAIRS

RESULTS_FILE = "results.json"
SCHEMA_VERSION = 1
"""Version of the form of results.json, where each setting is a field of the comparison."""

_FRAMES = {"runs": dataframes.runs, "epochs": dataframes.epochs}
"""Frames that are written as CSV beside the tables, for other tools."""
_MAIN_TABLE, _PACE_PLOT, _CURVE_PLOTS = "comparison", "seconds_per_epoch", ("loss", "accuracy")
"""Table and plot of the page's first screen, and plots of its curves."""
_PROOF_TABLES, _CLASS_TABLES, _FOLDED_TABLES = ("proof", "claims"), ("classes",), ("seconds", "epochs")
_FACT_NAMES = {"memory_mib": "memory MiB", "dirty": "uncommitted changes"}
"""Names of facts of the machine that a reader would not understand."""
_FIELDS_SHOWN_ELSEWHERE = (
    "model", "width", "depth", "dropout", "data", "global_batch_size", "epochs", "steps", "precision", "seed", "part", "mode",
    "replicas", "hosts", "cores", "device", "input", "workers", "switches", "framework_options", "paths", "profile_steps",
    "hang_seconds", "checkpoint_seconds",
)  # fmt: skip
"""Fields, or groups of fields, that stand elsewhere in a report, or that change neither what is learned nor a time."""
_REDUNDANT_PROOF_COLUMNS = ("mode", "model", "optimizer")
"""Columns of the proof that repeat the rung's name or the page's title."""


@dataclass(frozen=True)
class JudgedComparison:
    """A stored comparison with the summaries of its rows and the findings."""

    stored: StoredComparison
    summaries: list[Summary]
    findings: ComparisonFindings

    @property
    def cautions(self) -> list[Statement]:
        """All cautions but those on the signature, which is one of the facts."""
        return [caution for caution in self.findings.troubles if caution.kind != "signature"]

    def in_words(self, statements: Sequence[Statement], folder: Path | None = None) -> list[str]:
        """Statements on this comparison as sentences.

        Args:
            folder: folder of the comparison, which advice names. None: `DIR` stands for it.
        """
        return statement_words.sentences(statements, self.summaries, folder)

    @property
    def failures(self) -> list[str]:
        """Reasons for a failure exit code: the proof, rows, stored results, the signature, or what the timed runs trained."""
        proof = self.stored.comparison.proof
        num_bad_rows = sum(summary.status in (*FAILURES, *UNFINISHED) for summary in self.summaries)
        reasons = {
            "the same training is not proved": proof is not None and proof.verdict == "not proved",
            "no row could run": bool(cautions.nothing_can_run(self.stored.comparison)),
            f"{wording.count(num_bad_rows, 'row')} failed or did not end": num_bad_rows > 0,
            "stored results are damaged": bool(self.stored.set_aside),
            "the signature does not hold": bool(cautions.signature(self.stored)),
            "the timed runs did not train the same": not self.findings.comparable,
        }
        return [reason for reason, holds in reasons.items() if holds]

    @property
    def exit_code(self) -> int:
        """Exit code: 1 if there are failures, else 0."""
        return exits.RUN_FAILED if self.failures else 0


def read(folder: Path, unwritten: Sequence[tuple[str, RunResult]] = (), signers: Path | None = None) -> JudgedComparison:
    """Read a results folder and judge it.

    Args:
        unwritten: (row id, result) of runs whose result could not be written, as on a full disk. The report says why.
        signers: file of allowed signers, see `store.read`.
    """
    stored = store.read(folder, signers)
    for row_id, result in unwritten:
        stored.runs[row_id].setdefault(result.repeat, result)
    return judge(stored)


def judge(stored: StoredComparison) -> JudgedComparison:
    """Summarize the rows of a stored comparison and find what they show."""
    summaries = summarize(stored)
    return JudgedComparison(stored, summaries, findings(stored, summaries))


def report(compared: JudgedComparison, folder: Path, out: Path | None = None) -> Report:
    """The report of a comparison.

    Args:
        folder: results folder, which the commands name.
        out: folder that `report` writes to. None: `folder`.
    """
    values = _json_values(compared)
    stored, summaries = compared.stored, compared.summaries
    comparison = stored.comparison
    omitted = comparison_plots.omitted_rows(summaries)
    all_tables = report_tables(compared)
    frames = {f"{TABLES_FOLDER}/{name}.csv": tables.frame_to_csv(frame(stored)) for name, frame in _FRAMES.items()}
    return Report(
        title="Comparison",
        json_file=RESULTS_FILE,
        facts=facts(compared),
        first_sentences=compared.in_words(compared.findings.divisions),
        marks=_marks(compared),
        findings=sections(compared, folder),
        tables=all_tables,
        detail_tables=class_tables.confusion_table(summaries, comparison.class_names),
        terminal_tables=comparison_tables.terminal_tables(summaries, cautions.score_caution(stored.comparison.data_notes)),
        drawings=comparison_plots.drawings(summaries, comparison.class_names),
        files=frames,
        notes=["", f"Left out of the plots: {tables.escaped(omitted)}."] if omitted else [],
        environment=[*environment(compared), *source_digest(stored.made_from), *_missing_signature(stored)],
        commands=commands(compared, folder, out),
        values=values,
        template="report.html.jinja",
        page_values=lambda drawn: _page_values(compared, folder, all_tables, drawn),
        exit_code=compared.exit_code,
        failures=compared.failures,
        screen=comparison_screen.screen(stored, summaries, compared.findings, folder),
        again=wording.command("report", str(folder), FULL),
    )


def _json_values(compared: JudgedComparison) -> dict[str, Any]:
    """Plan, proof, findings in words and as statements, and the result of every run."""
    stored, findings = compared.stored, compared.findings
    sentences = {subject: compared.in_words(statements) for subject, statements in findings.statements.items()}
    comparison = stored.comparison.model_dump(exclude={"settings"}) | stored.comparison.settings.model_dump()
    return {
        "schema_version": SCHEMA_VERSION,
        "comparison": comparison | {"schema_version": SCHEMA_VERSION},
        "findings": {**sentences, "comparable": findings.comparable, "verdicts": findings.verdicts},
        "statements": findings.statements,
        "summaries": [summary.model_dump() | {"name": summary.name} for summary in compared.summaries],
        "runs": {row_id: [result for _, result in sorted(repeats.items())] for row_id, repeats in stored.runs.items()},
        "set_aside": [fault.reason for fault in stored.set_aside],
        "made_from": stored.made_from,
        "signature": stored.signature,
    }


def source_digest(digests: Mapping[str, str]) -> list[tuple[str, str]]:
    """Hash all files that a report was made from, as sha256sum of the lines that sha256sum prints.

    Args:
        digests: SHA-256 of each file, by path in the folder.
    """
    lines = signing.manifest(digests)
    files = wording.count(len(digests), "file")
    return [("made from", f"{files}, SHA-256 {hashlib.sha256(lines.encode()).hexdigest()}")] if lines else []


def _missing_signature(stored: StoredComparison) -> list[tuple[str, str]]:
    text = "none. The checksums protect against accidents only: who changes a file on purpose can write a new one."
    return [("signature", text)] if stored.signature is None else []


def _page_values(
    compared: JudgedComparison, folder: Path, all_tables: Sequence[Table], plot_elements: Mapping[str, str]
) -> dict[str, Any]:
    """Values of the comparison's own page. It shows confusion as tables."""
    comparison = compared.stored.comparison
    grids = {table.name: table for table in all_tables}
    folded = [name for name in grids if name in (_MAIN_TABLE, *_FOLDED_TABLES) or name.startswith("epoch_")]
    shown_separately = {"accuracy", *_PROOF_TABLES, *_CLASS_TABLES, *folded}
    pictures = {name: picture for name, picture in plot_elements.items() if name != comparison_plots.CONFUSION}
    heat_maps = [_heat_map(summary, comparison.class_names) for summary in compared.summaries if summary.confusion]
    return {
        "title": wording.one_line(_training(comparison)),
        "overline": "Comparison of frameworks",
        "facts": list(map(wording.one_line, [_settings(compared), *facts(compared)[1:]])),
        "pace": [pictures[_PACE_PLOT]] if _PACE_PLOT in pictures else [],
        "main_table": page.grid(_narrow(comparison_tables.without_empty_speedups(grids[_MAIN_TABLE])))
        if _MAIN_TABLE in grids
        else None,
        "divisions": list(map(wording.one_line, compared.in_words(compared.findings.divisions))),
        "findings": [(title, list(map(wording.one_line, sentences))) for title, sentences in sections(compared, folder)[1:]],
        "sameness": list(map(wording.one_line, compared.in_words(compared.findings.sameness))),
        "proof_is_open": compared.exit_code != 0,
        "contents": _contents(pictures, heat_maps),
        "proof": page.grid(_without(grids["proof"], _REDUNDANT_PROOF_COLUMNS)) if "proof" in grids else None,
        "claims": page.grid(grids["claims"]) if "claims" in grids else None,
        "results": [page.grid(_narrow(grids["accuracy"]))] if "accuracy" in grids else [],
        "curves": [pictures[name] for name in _CURVE_PLOTS if name in pictures],
        "times": [picture for name, picture in pictures.items() if name not in (_PACE_PLOT, *_CURVE_PLOTS)],
        "left_out": comparison_plots.omitted_rows(compared.summaries),
        "timed": [page.grid(table) for name, table in grids.items() if name not in shown_separately],
        "heat_maps": heat_maps,
        "classes": [page.grid(grids[name]) for name in _CLASS_TABLES if name in grids],
        "whole": [
            page.grid(replace(grids[name], note="", files_note="") if name == _MAIN_TABLE else grids[name]) for name in folded
        ],
        "specs": [(row.id, row.spec.to_json()) for row in comparison.rows],
        "run_commands": run_commands(compared, folder),
    }


def _marks(compared: JudgedComparison) -> list[Mark]:
    comparison, summaries = compared.stored.comparison, compared.summaries
    verdict = comparison.headline
    num_complete = sum(summary.status == "ok" for summary in summaries)
    fewest_repeats, repeats = _repeats(compared)
    has_enough = fewest_repeats >= VERDICT_PAIRS
    timed_runs, tone = ("comparable", "good") if compared.findings.comparable else ("not comparable", "bad")
    divisions = [statement.values.get("division") for statement in compared.findings.divisions]
    if compared.findings.comparable and "neither" in divisions:
        timed_runs, tone = "comparable, at unequal settings", "warn"
    num_in_doubt = sum(summary.in_doubt for summary in summaries)
    if num_in_doubt and compared.findings.comparable:
        timed_runs, tone = f"times in doubt in {num_in_doubt} of {len(summaries)} rows", "warn"
    return [
        Mark("Same training", verdict, page.TONES.get(verdict, "warn")),
        Mark("Timed runs", timed_runs, tone),
        Mark(
            "Rows that ended well",
            f"{num_complete} of {len(summaries)}",
            "good" if num_complete == len(summaries) else "bad" if compared.exit_code else "warn",
        ),
        Mark(
            "Repeats",
            repeats if has_enough else f"{repeats}, a verdict needs {VERDICT_PAIRS}",
            "good" if has_enough else "warn",
        ),
    ]


def _repeats(compared: JudgedComparison) -> tuple[int, str]:
    """(fewest results of a row that can run, number of repeats made in words)."""
    comparison = compared.stored.comparison
    rows = [row for row in comparison.rows if row.unavailable is None]
    counts = sorted(len(compared.stored.runs[row.id]) for row in rows) or [0]
    repeats = comparison.settings.repeats
    if repeats == 1 or all(len(compared.stored.runs[row.id]) >= len(comparison.repeats_of(row.id)) for row in rows):
        return repeats, f"{repeats}"
    return counts[0], f"{repeats} planned, {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} made"


def _contents(pictures: Mapping[str, str], heat_maps: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    parts = [
        ("proof", "Proof", True),
        ("results", "Results", True),
        ("curves", "Curves", any(name in pictures for name in _CURVE_PLOTS)),
        ("times", "Time", True),
        ("confusion", "Confusion", bool(heat_maps)),
        ("details", "Every figure", True),
        ("environment", "Environment", True),
        ("again", "Repeat it", True),
    ]
    return [(anchor, name) for anchor, name, present in parts if present]


def _narrow(table: Table) -> Table:
    return replace(_without(table, [column.key for column in table.columns if not column.terminal]), files_note="")


def _without(table: Table, keys: Collection[str]) -> Table:
    return replace(table, columns=tuple(column for column in table.columns if column.key not in keys))


def _heat_map(summary: Summary, class_names: Sequence[str]) -> dict[str, Any]:
    """A confusion matrix. A cell's colour is its share of the row, in tenths rounded up."""
    counts = class_tables.mean_confusion(summary)
    return {
        "title": summary.name,
        "names": class_tables.short_class_names(class_names, len(counts)),
        "rows": [
            [
                (class_tables.count_text(count) if count else "", math.ceil(round(10 * count / (sum(row) or 1), 9)))
                for count in row
            ]
            for row in counts
        ],
    }


def sections(compared: JudgedComparison, folder: Path | None = None) -> list[tuple[str, list[str]]]:
    """The findings in words, by heading.

    Args:
        folder: folder of the comparison, which advice names.
    """
    findings = compared.findings
    compared_noun = "contestant" if compared.stored.comparison.settings.contestants else "framework"
    sections: list[tuple[str, list[Statement]]] = [
        ("Is it the same training?", findings.sameness),
        (f"Which {compared_noun} is faster?", findings.contestants),
        ("Which modes pay?", findings.modes),
        ("Which inputs pay?", findings.inputs),
        ("How sure is that?", findings.surety),
        ("How accurate, and how soon?", findings.scores),
        ("Which modes are not serial's mathematics, and what came of it?", findings.inexact_modes),
        ("Input or model: what bounds the runs?", findings.bounds),
        (comparison_tables.ENVIRONMENTS, findings.environments),
        ("Cautions", compared.cautions),
    ]
    in_words = [(title, compared.in_words(statements, folder)) for title, statements in sections]
    return [
        (title, sentences) for title, sentences in [*in_words, ("The data", compared.stored.comparison.data_notes)] if sentences
    ]


def _training(comparison: Comparison) -> str:
    """Model and data: `simple_cnn on digits`."""
    return f"{comparison.rows[0].spec.model_label} on {comparison.data_name}"


def _settings(compared: JudgedComparison) -> str:
    """Settings that the runs share: optimizer, batch, length, precision, seeds and repeats."""
    comparison = compared.stored.comparison
    spec = comparison.rows[0].spec
    length = wording.count(spec.epochs, "epoch") if spec.epochs is not None else wording.count(spec.steps or 0, "step")
    settings = comparison.settings
    seeds = f"seeds {', '.join(map(str, settings.seeds))}" if settings.seeds else f"seed {spec.seed}"
    repeat_words = _repeats(compared)[1]
    repeats = f"repeats: {repeat_words}" if "planned" in repeat_words else wording.count(settings.repeats, "repeat")
    repeats += ", in turns" if any(slices.took_turns(runs.values()) for runs in compared.stored.runs.values()) else ""
    part = {"training": "", "input": "; the input path alone", "compute": "; the model alone, on one batch"}[spec.part]
    training = f"{spec.optimizer.name}, global batch {spec.global_batch_size}, {length}, {spec.precision}"
    return f"{training}, {seeds}, {repeats}{part}"


def facts(compared: JudgedComparison) -> list[str]:
    """Lines that say what was trained, and where, and who signed it."""
    comparison = compared.stored.comparison
    return [
        f"{_training(comparison)}, {_settings(compared)}",
        *([f"Other than by default: {', '.join(others)}"] if (others := _not_default(comparison)) else []),
        document.hardware_and_versions(
            comparison.machine, comparison.versions, cores=max(row.spec.cores for row in comparison.rows)
        ),
        *([signature.sentence] if (signature := compared.stored.signature) is not None else []),
    ]


def _not_default(comparison: Comparison) -> list[str]:
    """Fields that all rows share and that are not at their default, except those that the report names anyway."""
    defaults, *rows = (
        store.flatten(spec.model_dump(mode="json")) for spec in (build({}), *(row.spec for row in comparison.rows))
    )
    return [
        f"{name} {json.dumps(value)}"
        for name, value in rows[0].items()
        if name.partition(".")[0] not in _FIELDS_SHOWN_ELSEWHERE
        and name != "optimizer.name"
        and value != defaults.get(name)
        and all(row.get(name) == value for row in rows)
    ]


def report_tables(compared: JudgedComparison) -> list[Table]:
    """Every table that is written, with the certificate of the proof."""
    comparison = compared.stored.comparison
    differing = environments.differences(environments.relevant_environments(comparison.environments, comparison.machine))
    return [
        *comparison_tables.written_tables(compared.summaries, cautions.score_caution(comparison.data_notes)),
        *class_tables.class_table(compared.summaries, comparison.class_names),
        *(proof_tables.proof_tables(comparison.proof.model_dump()) if comparison.proof else []),
        *comparison_tables.environment_table(differing),
    ]


def environment(compared: JudgedComparison) -> list[tuple[str, str]]:
    """Facts of the machine, the versions, the data and the code, by name."""
    comparison = compared.stored.comparison
    facts: dict[str, Any] = {_FACT_NAMES.get(name, name.replace("_", " ")): value for name, value in comparison.machine.items()}
    for contestant, packages in comparison.versions.items():
        facts[contestant] = ", ".join(f"{package} {version}" for package, version in packages.items())
    for contestant, contestant_environment in comparison.environments.items():
        libraries = ", ".join(f"{name} {version}" for name, version in contestant_environment.libraries.items())
        distributions = f"{len(contestant_environment.distributions)} distributions"
        facts[f"environment of {contestant}"] = (
            f"{contestant_environment.interpreter}, Python {contestant_environment.python}, {distributions} "
            f"({contestant_environment.distributions_hash[:12]}){f'; {libraries}' if libraries else ''}"
        )
    for contestant_record in comparison.settings.contestants:
        switches = ", ".join(f"{name}={value}" for name, value in contestant_record.switches.items())
        ending = f", switches {switches}" if switches else ""
        facts[f"contestant {contestant_record.name}"] = f"twin {contestant_record.twin}{ending}"
    facts |= {
        "data": comparison.data_name,
        "classes": len(comparison.class_names) or None,
        "hash of the data": comparison.data_hash,
        "trainable values": f"{comparison.trainable_values:,}" if comparison.trainable_values else None,
        "hash of the code": comparison.code_hash,
        "made at": comparison.created_at,
    }
    return [(name, wording.one_line(_value_text(value))) for name, value in facts.items() if value is not None]


def commands(compared: JudgedComparison, folder: Path, out: Path | None = None) -> list[tuple[str, str]]:
    """(purpose, command line) of each command that repeats the comparison.

    Args:
        folder: results folder, which the commands name.
        out: folder that `report` writes to. None: `folder`.
    """
    again = ["report", str(folder), *(["--out", str(out)] if out else [])]
    comparison = compared.stored.comparison
    commit = comparison.machine.get("commit")
    checkout: list[tuple[str, str]] = []
    if isinstance(commit, str) and not INSTALLED:
        uncommitted = "The last commit of its code. It lacks changes that were not committed:"
        purpose = uncommitted if comparison.machine.get("dirty") else "The code that made it:"
        checkout.append((purpose, wording.shell(["git", "checkout", commit])))
    return [
        *checkout,
        *SET_UP,
        ("The comparison:", f"{COMPARE} {wording.shell(without_output_options(comparison.argv))}"),
        ("This report, from the stored results:", f"{COMPARE} {wording.shell(again)}"),
    ]


def run_commands(compared: JudgedComparison, folder: Path) -> list[str]:
    """Commands that repeat one run of each row alone, each into a new folder. Rows without a stored spec are left out."""
    lines: list[str] = []
    comparison = compared.stored.comparison
    for row in comparison.rows:
        specs = (store.run_folder(folder, row.id, repeat) / SPEC_FILE for repeat in range(comparison.settings.repeats))
        if (spec_file := next(filter(Path.exists, specs), None)) is not None:
            python = next(
                (contestant.python for contestant in comparison.settings.contestants if contestant.name == row.contestant), None
            )
            words = [python or PYTHON, "-m", *launch.module(row.framework), "run", str(spec_file), "--out", f"again/{row.id}"]
            lines.append(wording.shell([*SUITE_ON_PATH, *words]))
    return lines


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return json.dumps(value) if isinstance(value, Mapping | list) else str(value)
