"""The kinds of tables of measurements.md, see measurements.py.

A kind has two pure functions. `keep` picks from the JSON of a command what is stored. `table` makes the table from what was
kept of each command.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))

from compare.cli import wording
from compare.judgement import decision, figures
from compare.judgement.row_figures import Summary
from compare.reporting import tables
from compare.reporting.tables import Cell
from compare.statistics.statistics import Ratio, Spread, inverse
from compare.statistics.verdict_words import bounded_words

Values = dict[str, Any]
"""A JSON object."""
Row = dict[str, Cell]
"""A row of a table by heading."""


class Rows(NamedTuple):
    """A table, and the sentences below it."""

    rows: list[Row]
    sentences: str = ""
    digits: Mapping[str, int] = {}
    """Digits of numbers, by heading."""


class Kind(NamedTuple):
    """A kind of table."""

    keep: Callable[[Values], Values]
    """Picks what is stored from the JSON of a command."""
    table: Callable[[list[Values]], Rows]
    """Makes the table of what was kept of each command. `seconds` of each says how long it took."""


# Comparisons: `run` and `report`.


def keep_rows(values: Values) -> Values:
    """Each row of a comparison with its times, its accuracy and what they are relative to, and the verdicts."""
    keys = ("name", "ratio", "verdict", "disturbed")
    return {
        "model": values["comparison"]["rows"][0]["spec"]["model"],
        "data": values["comparison"]["data_name"],
        "rows": [_row(Summary.model_validate(summary)) for summary in values["summaries"]],
        "verdicts": [{key: judged[key] for key in keys} for judged in values["findings"]["verdicts"]],
    }


def _row(summary: Summary) -> Values:
    times = summary.reported_ratio("speedup_same_cores")
    return {
        "id": summary.id,
        "contestant": summary.contestant,
        "configuration": summary.configuration,
        "input": summary.input_words,
        "seconds": tables.plain(summary.epoch_seconds),
        "images_per_second": tables.plain(summary.images_per_second),
        "accuracy": tables.plain(summary.test.accuracy),
        "times_serial": tables.plain(times),
        "repeats": summary.repeats_done,
        "doubt": summary.doubt,
    }


def contestants(runs: list[Values]) -> Rows:
    """Each row with its seconds and its accuracy."""
    rows: list[Row] = [
        {
            "row": f"{row['contestant']} {row['configuration']}",
            "seconds per epoch": _spread(row["seconds"]),
            "test accuracy": _spread(row["accuracy"]),
            "repeats": row["repeats"],
        }
        for run in runs
        for row in run["rows"]
    ]
    return Rows(rows, _doubts(runs), {"seconds per epoch": 3, "test accuracy": 4})


def keras(runs: list[Values]) -> Rows:
    """What Keras costs: its seconds over those of the framework below it alone, one row for each model and framework."""
    rows: list[Row] = []
    for run in runs:
        by_name = {row["contestant"]: row for row in run["rows"]}
        for name, below in _BELOW.items():
            if {name, below} <= by_name.keys():
                alone, on_top = by_name[below], by_name[name]
                rows.append(
                    {
                        "model": run["model"],
                        "framework": below,
                        "seconds per epoch alone": _spread(alone["seconds"]),
                        "with Keras": _spread(on_top["seconds"]),
                        "ratio": _over(run["verdicts"], on_top["id"], alone["id"]),
                        "test accuracy alone": _spread(alone["accuracy"]),
                        "test accuracy with Keras": _spread(on_top["accuracy"]),
                    }
                )
    digits = {"seconds per epoch alone": 3, "with Keras": 3, "test accuracy alone": 4, "test accuracy with Keras": 4}
    return Rows(rows, f"Medians of {_repeats(runs)}. {_doubts(runs)}".strip(), digits)


_BELOW = {"keras-torch": "pytorch", "keras-tensorflow": "tensorflow", "keras-jax": "jax"}
"""The framework that a twin in Keras runs on."""


def _over(judgements: list[Values], slow: str, fast: str) -> str:
    """Seconds of a row over those of another."""
    for judged in judgements:
        if judged["name"] in (f"{fast} against {slow}", f"{slow} against {fast}"):
            ratio = Ratio(**judged["ratio"])
            is_inverse = judged["name"].startswith(f"{slow} against ")
            return _judged({**judged, "ratio": (inverse(ratio) if is_inverse else ratio).model_dump()})
    return tables.MISSING


def _judged(judged: Values) -> str:
    """A ratio, unless other work disturbed it."""
    return "disturbed" if judged["disturbed"] else bounded_words(Ratio(**judged["ratio"]))


def modes(runs: list[Values]) -> Rows:
    """Images per second of each mode in each framework, and how many times as fast as serial on the same cores."""
    rows = _merged(
        {
            "mode": row["configuration"],
            row["contestant"]: _pace(row),
            f"{row['contestant']}, times serial": _words(row["times_serial"]),
        }
        for run in runs
        for row in run["rows"]
    )
    return Rows(rows, f"Images per second are medians of {_repeats(runs)}. {_doubts(runs)}".strip())


def inputs(runs: list[Values]) -> Rows:
    """Images per second of each input in each framework, from each data."""
    rows = _merged(
        {"input": row["input"], f"{row['contestant']}, {run['data']}": _pace(row)} for run in runs for row in run["rows"]
    )
    return Rows(rows, f"Images per second are medians of {_repeats(runs)}. {_doubts(runs)}".strip())


def verdicts(runs: list[Values]) -> Rows:
    """The time until each question was decided, or was given up."""
    rows: list[Row] = []
    undecided: list[int] = []
    for number, run in enumerate(runs, start=1):
        names = {row["id"]: row for row in run["rows"]}
        repeats = sorted({row["repeats"] for row in run["rows"]})
        cells: Row = {"run": number, "seconds": round(run["seconds"]), "repeats": " to ".join(map(str, repeats))}
        for judged in run["verdicts"]:
            suffix = "" if judged["disturbed"] or judged["verdict"] in decision.DECIDED else ", open"
            cells[_question(judged["name"], names)] = f"{_judged(judged)}{suffix}"
        undecided.append(sum(judged["disturbed"] or judged["verdict"] not in decision.DECIDED for judged in run["verdicts"]))
        rows.append(cells)
    questions = sum(len(run["verdicts"]) for run in runs)
    sentences = (
        "Ratios are of speeds: above 1 the first is faster. "
        f"{questions - sum(undecided)} of {questions} questions were decided, all of them in {undecided.count(0)} of "
        f"{wording.count(len(runs), 'run')}. A run took {statistics.median(run['seconds'] for run in runs):.0f} s (median)."
    )
    return Rows(rows, sentences)


def _question(name: str, names: Mapping[str, Values]) -> str:
    """`pytorch over tensorflow in serial, 2 cores`, or `pytorch data_parallel x2 over serial`."""
    one, _, other = name.partition(" against ")
    first = names[one]
    if other:
        return f"{first['contestant']} over {names[other]['contestant']} in {first['configuration']}"
    return f"{first['contestant']} {first['configuration']} over serial"


def _pace(row: Values) -> str:
    pace = _spread(row["images_per_second"])
    return f"{pace.median:,.0f}" if pace else tables.MISSING


def _words(ratio: Values | str | None) -> str:
    return bounded_words(Ratio(**ratio)) if isinstance(ratio, dict) else ratio or tables.MISSING


def _repeats(runs: list[Values]) -> str:
    repeats = sorted({row["repeats"] for run in runs for row in run["rows"]})
    return wording.count(repeats[-1], "repeat") if len(repeats) == 1 else f"{repeats[0]} to {repeats[-1]} repeats"


def _doubts(runs: list[Values]) -> str:
    """Which rows have no reliable times."""
    rows = [row for run in runs for row in run["rows"]]
    doubted = [f"{row['contestant']} {row['configuration']} ({row['doubt'].replace('_', ' ')})" for row in rows if row["doubt"]]
    return f"Times in doubt, rely on none of them: {wording.joined(doubted)}." if doubted else ""


# The proof: `parity`.


def keep_steps(values: Values) -> Values:
    """The largest difference of each mode, model and optimizer, and how it was judged."""
    steps: dict[tuple[str, str, str], Values] = {}
    for rung in values["rungs"]:
        key = (rung["mode"] or "serial", rung["model"], rung["optimizer"])
        step = steps.setdefault(key, dict(zip(("mode", "model", "optimizer"), key, strict=True)) | _UNJUDGED)
        difference, largest = rung["max_relative_difference"], step["difference"]
        if largest is not None and (difference is None or difference > largest):  # None is infinite
            step["difference"] = difference
        step["judged"] += 1
        step["failed"] += rung["status"] != "passed"
        step["of_terms"] |= bool(rung["of_terms"])
    return {"steps": list(steps.values())}


_UNJUDGED = {"difference": 0.0, "judged": 0, "failed": 0, "of_terms": False}


def steps(runs: list[Values]) -> Rows:
    """The largest relative difference of each mode, by model and optimizer."""

    def words(step: Values) -> str:
        size = "infinite" if step["difference"] is None else f"{step['difference']:.1e}"
        return f"{size}{' *' * step['of_terms']}{', failed' * bool(step['failed'])}"

    all_steps = [step for run in runs for step in run["steps"]]
    rows = _merged({"mode": step["mode"], f"{step['model']}, {step['optimizer']}": words(step)} for step in all_steps)
    judged, failed = (sum(step[key] for step in all_steps) for key in ("judged", "failed"))
    return Rows(rows, f"{judged - failed} of {judged} comparisons passed.")


def keep_lines(values: Values) -> Values:
    """Every difference to the referee."""
    keys = ("model", "optimizer", "framework", "precision", "referee", "what", "difference", "tolerance")
    return {"lines": [{key: line[key] for key in keys} for line in values["lines"]]}


def referee(runs: list[Values]) -> Rows:
    """For each model and optimizer the larger difference of the frameworks, in float64, and its tolerance."""
    headings = {name: name for name in ("gradients of the first step", "losses", "last weights")}
    cells: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    lines = [line for run in runs for line in run["lines"]]
    for line in lines:
        if (line["precision"], line["referee"]) == ("float64", "float64") and line["what"] in headings and line["tolerance"]:
            row = cells.setdefault((line["model"], line["optimizer"]), dict.fromkeys(headings, (0.0, 0.0)))
            row[line["what"]] = max(row[line["what"]], (line["difference"], line["tolerance"]))
    rows: list[Row] = [
        {"model": model, "optimizer": optimizer}
        | {what: f"{difference:.1e} ({tolerance:.0e})" for what, (difference, tolerance) in row.items()}
        for (model, optimizer), row in cells.items()
    ]
    judged = [line for line in lines if line["tolerance"]]
    passed = sum(line["difference"] <= line["tolerance"] for line in judged)
    return Rows(rows, f"{passed} of {len(judged)} comparisons passed.")


# Tools.


def keep_changes(values: Values) -> Values:
    """The versions of two environments, and each ratio of what was measured in them."""
    sides = {side: values[side]["versions"] for side in ("baseline", "candidate")}
    keys = ("name", "metric", "change", "verdict", "not_ruled_out")
    return {**sides, "changes": [{key: change[key] for key in keys} for change in values["changes"]]}


def environments(runs: list[Values]) -> Rows:
    """New over old of each figure, one row for each two environments."""
    rows: list[Row] = []
    for run in runs:
        old, new = run["baseline"], run["candidate"]
        parted = [f"{name} {old[name]}, {new[name]}" for name in old if name in new and old[name] != new[name]]
        cells: Row = {"old, new": "; ".join(parted) or "the same versions"}
        for change in run["changes"]:
            if change["metric"] != "test_accuracy":
                is_judged = change["verdict"] != "not judged"
                cells[figures.metrics()[change["metric"]].label] = _words(change["change"] if is_judged else "not judged")
        rows.append(cells)
    changes = [change for run in runs for change in run["changes"]]
    judged = [change for change in changes if change["verdict"] not in ("not judged", "too few to tell")]
    worse = sum(change["verdict"] == "regression" for change in judged)
    unsure = sum(change["not_ruled_out"] for change in judged)
    left_out = f" Not judged: {len(changes) - len(judged)}." if len(judged) < len(changes) else ""
    found = f"Regressions: {worse} of {len(judged)} figures. Perhaps worse by more than the threshold: {unsure}.{left_out}"
    return Rows(rows, found)


def keep_checks(values: Values) -> Values:
    """The checks on this machine, and what they say of it."""
    return {"checks": [check for check in values["checks"] if check["where"] != "simulated"], "sentences": values["sentences"]}


def pairs(runs: list[Values]) -> Rows:
    """Checks with real pairs, their figures and their limits."""
    checks = [check for run in runs for check in run["checks"]]
    rows: list[Row] = [
        {"what was tried": check["what"], "result": check["found"], "required": check["required"]} for check in checks
    ]
    passed = f"{sum(check['passed'] for check in checks)} of {len(checks)} checks passed."
    return Rows(rows, " ".join([passed, *(sentence for run in runs for sentence in run["sentences"])]))


def keep_layers(values: Values) -> Values:
    """The table of the kinds of layers."""
    return {"layers": next(table for table in values["tables"] if table["name"] == "layer-kinds")}


def layers(runs: list[Values]) -> Rows:
    """Milliseconds of each kind of layers in a step, and how many times the machine's limit."""
    rows: list[Row] = []
    (table,) = (run["layers"] for run in runs)
    for layer in table["rows"]:
        cells: Row = {"layers": f"{layer['number']} {layer['layers']}", "limit": layer["limit_ms"], "by": layer["bound"]}
        for key in layer:
            if isinstance(layer[key], dict):
                name = key.removesuffix("_ms")
                cells |= {name: _spread(layer[key]), f"{name}, times limit": layer[f"{name}_times"]}
        rows.append(cells)
    return Rows(rows, table["note"], dict.fromkeys((key for row in rows for key in row), 1))


def keep_scans(values: Values) -> Values:
    """The pace and the memory of each engine and number of workers."""
    keys = ("engine", "workers", "images_per_second", "peak_memory_mib")
    return {"scans": [{key: row[key] for key in keys} for row in values["rows"]], "note": values["tables"][0]["note"]}


def scans(runs: list[Values]) -> Rows:
    """Images per second of each engine by workers, and its peak memory."""

    def number(value: float | None) -> str:
        return tables.MISSING if value is None else f"{value:,.0f}"

    all_scans = [scan for run in runs for scan in run["scans"]]
    rows = _merged(
        {
            "workers": f"{scan['workers']}",
            scan["engine"]: number(scan["images_per_second"]),
            f"{scan['engine']}, MiB": number(scan["peak_memory_mib"]),
        }
        for scan in all_scans
    )
    return Rows(rows, " ".join(run["note"] for run in runs))


def keep_accuracy(values: Values) -> Values:
    """How far the predictions of a plan were off."""
    return {"model": values["spec"]["model"], "accuracy": values["accuracy"]}


def predictions(runs: list[Values]) -> Rows:
    """The errors of predicted seconds and memory, one row for each plan."""
    rows: list[Row] = []
    for run in runs:
        judged = run["accuracy"]
        hits = judged["best_found"].values()
        errors = (judged[key] for key in ("median_error", "worst_error", "median_memory_error", "worst_memory_error"))
        median, worst, memory, worst_memory = (tables.MISSING if error is None else f"{100 * error:.0f} %" for error in errors)
        rows.append(
            {
                "model": run["model"],
                "layouts": judged["n"],
                "median error": median,
                "largest": worst,
                "error of memory": memory,
                "largest of memory": worst_memory,
                "fastest among the first two predicted": f"in {sum(hits)} of {len(hits)} frameworks",
            }
        )
    return Rows(rows)


def keep_ladders(values: Values) -> Values:
    """What each switch gains in each framework."""
    keys = ("name", "ratio", "loss_drift", "status", "taken", "in_doubt")
    return {
        "ladders": {
            framework: [{key: step[key] for key in keys} for step in outcome["ladder"]]
            for framework, outcome in values["frameworks"].items()
        }
    }


def switches(runs: list[Values]) -> Rows:
    """How many times as fast as `usual` each switch is, with the drift of the losses."""

    def words(step: Values) -> str:
        times = step["status"] if step["ratio"] is None else bounded_words(Ratio(**step["ratio"]))
        return f"{times}{', in doubt' * bool(step['in_doubt'])}{', best' * step['taken']}"

    all_steps = [step for run in runs for ladder in run["ladders"].values() for step in ladder]
    shown = {step["name"] for step in all_steps if step["status"] != "measured" or (step["ratio"] and _differs(step["ratio"]))}
    unshown = [name for name in dict.fromkeys(step["name"] for step in all_steps) if name not in {"usual", *shown}]
    rows = _merged(
        {
            "switches": step["name"],
            framework: words(step),
            f"{framework}, loss drift": tables.MISSING if step["loss_drift"] is None else f"{step['loss_drift']:.1e}",
        }
        for run in runs
        for framework, ladder in run["ladders"].items()
        for step in ladder
        if step["name"] not in ("usual", *unshown)
    )
    return Rows(rows, f"No gain or loss is shown: {wording.joined(unshown)}." if unshown else "")


def _differs(ratio: Values) -> bool:
    """Whether the interval of a ratio is on one side of 1."""
    return ratio["low"] is not None and ratio["high"] is not None and not ratio["low"] <= 1.0 <= ratio["high"]


def keep_bars(values: Values) -> Values:
    """The rows of `tests.benchmarks.bars`."""
    return {"bars": values["bars"]}


def bars(runs: list[Values]) -> Rows:
    """Each bar in each framework."""
    return Rows(
        _merged(
            {"what": bar["what"], bar["framework"]: bar["measured"], f"{bar['framework']}, bar": f"{bar['bar']}: {bar['met']}"}
            for run in runs
            for bar in run["bars"]
        )
    )


def _spread(values: Values | None) -> Spread | None:
    return Spread(**values) if values else None


def _merged(cells: Iterable[Row]) -> list[Row]:
    """Rows by their first cell, in order of appearance."""
    rows: dict[Cell, Row] = {}
    for row in cells:
        rows.setdefault(next(iter(row.values())), {}).update(row)
    return list(rows.values())


RUN = Kind(keep_rows, contestants)
KERAS = Kind(keep_rows, keras)
MODES = Kind(keep_rows, modes)
INPUTS = Kind(keep_rows, inputs)
VERDICTS = Kind(keep_rows, verdicts)
STEPS = Kind(keep_steps, steps)
REFEREE = Kind(keep_lines, referee)
ENVIRONMENTS = Kind(keep_changes, environments)
PAIRS = Kind(keep_checks, pairs)
LAYERS = Kind(keep_layers, layers)
SCANS = Kind(keep_scans, scans)
PREDICTIONS = Kind(keep_accuracy, predictions)
SWITCHES = Kind(keep_ladders, switches)
BARS = Kind(keep_bars, bars)
