"""`same` on scripts: right pairs, planted causes, stored curves, and bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compare.tools.same import events
from tests.compare.tools.same.corpus import numpy_training
from tests.support.command_line import Ended, convtwins

SCRIPT = Path(__file__).parent / "corpus" / "numpy_training.py"
MOVED = ("--copies", "3", "--ulp")


def curve(*options: str) -> str:
    """The losses of a training, as a file."""
    file = Path(f"losses{'_'.join(options)}.jsonl")
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(numpy_training.train(*options), 1)]
    file.write_text("\n".join(lines), encoding="utf-8")
    return str(file)


def training(*options: str) -> str:
    return f"{sys.executable} {SCRIPT} {' '.join(options)}".strip()


def answered(*words: str) -> dict[str, Any]:
    """The JSON of an answer. Its exit code says whether it holds."""
    ended = convtwins("same", *words, "--json")
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    assert ended.stdout.startswith("{"), ended.output
    values = json.loads(ended.stdout)
    assert ended.exit_code == values["exit_code"] == (0 if values["holds"] else 1)
    return values


def refused(*words: str, code: int) -> Ended:
    """A refusal. 1: a run failed. 2: wrong usage, or losses that cannot be read."""
    ended = convtwins("same", *words)
    assert ended.exit_code == code and ended.stdout == "" and ended.stderr.strip(), ended.output
    return ended


# Right pairs.


def test_the_same_command_twice_is_the_same_and_needs_no_copies() -> None:
    values = answered(training(), training(), *MOVED)
    assert values["verdict"] == "same" and values["first_difference"] is None


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--shards", "3"], id="parts of a batch"),
        pytest.param(["--dtype", "float64"], id="float64", marks=pytest.mark.slow),
    ],
)
def test_rounding_is_told_from_another_training_by_moved_copies(options: list[str]) -> None:
    values = answered(training(), training(*options), *MOVED)
    assert values["verdict"] == "rounding" and 0 < values["first_difference"]["relative"] < 1e-6
    assert "limit_copies" in [statement["kind"] for statement in values["statements"]]


WRITES = """import sys
rows = [(1, 0.5), (2, 0.25), (3, 0.125)]
if sys.argv[1:] and sys.argv[1].endswith(".csv"):
    open(sys.argv[1], "w").write("step,loss\\n" + "".join(f"{step},{loss}\\n" for step, loss in rows))
else:
    file = open(sys.argv[1], "w") if sys.argv[1:] else sys.stdout
    file.write("".join(f'{{"step": {step}, "loss": {loss}}}\\n' for step, loss in rows))
"""


def test_every_form_of_the_same_losses_is_the_same(here: Path) -> None:
    Path("train.py").write_text(WRITES.replace("\\\\", "\\"))
    run = here / "runs" / "one"
    run.mkdir(parents=True)
    (run / "events.out.tfevents.1.host").write_bytes(events.event_file([(1, 0.5), (2, 0.25), (3, 0.125)]))
    Path("list.json").write_text(
        '{"log_history": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}, {"step": 3, "loss": "0.125"}]}'
    )
    program = f"{sys.executable} train.py"
    for other in ("runs", "list.json", program, f"{program} {{losses}}.csv", f"{program} {{losses}}"):
        assert answered(program, other)["verdict"] == "same", other
    fixed = f"{program} log.csv"
    assert answered(fixed, fixed, "--losses", "log.csv")["verdict"] == "same"
    assert answered(fixed, f"{program} other.jsonl", "--losses", "log.csv", "--losses", "other.jsonl")["verdict"] == "same"


# Planted causes.

PLANTED = {
    "twice the learning rate": (["--rate", "0.2"], "learning-rate", 2),
    "gradients that are a sum": (["--shards", "2", "--combine", "sum"], "learning-rate", 2),
    "a mean of means over a short batch": (["--shards", "2", "--combine", "mean"], "last-batch", 13),
    "another momentum": (["--momentum", "0.9"], "second-update", 3),
    "another order": (["--order-seed", "1"], "order", 1),
    "another order from the second epoch on": (["--second-epoch-seed", "1"], "order", 14),
    "the loss of one process": (["--shards", "2", "--logged", "first-shard"], "order", 1),
    "other initial weights": (["--weights-seed", "5", "--batch", "100"], "initial-weights", 1),
    "a running mean": (["--logged", "running"], "running-mean", 2),
    "a loss that is logged a step late": (["--logged", "late"], "step-shift", 2),
    "twice the loss in the log": (["--logged", "twice"], "loss-scale", 1),
    "float16": (["--dtype", "float16"], "precision", 1),
}


@pytest.mark.parametrize(("options", "cause", "step"), PLANTED.values(), ids=PLANTED)
def test_a_planted_cause_is_named_with_its_step_and_an_experiment(options: list[str], cause: str, step: int) -> None:
    both = ["--examples", "101", *(["--batch", "101"] if "100" in options else [])]
    values = answered(curve(*both), curve(*both, *options, *both))
    assert values["verdict"] == "another training" and values["first_beyond_rounding"]["step"] == step
    first, *others = values["causes"]
    names = [first["name"], *(other["name"] for other in others)]
    assert first["name"] == cause and first["experiment"], names
    if "first-shard" in options:
        assert "one-rank" in names


@pytest.mark.slow
def test_copies_tell_more_exactly_where_another_training_begins() -> None:
    values = answered(training(), training("--shards", "2", "--combine", "sum"), *MOVED)
    assert values["verdict"] == "another training" and values["first_beyond_rounding"]["step"] == 2
    assert values["causes"][0]["name"] == "learning-rate"


def test_without_copies_a_small_difference_is_not_judged() -> None:
    values = answered(curve(), curve("--shards", "3"))
    assert values["verdict"] == "cannot tell" and values["causes"] == []


@pytest.mark.slow
def test_copies_alone_are_repeats() -> None:
    values = answered(training(), training("--shards", "3"), "--copies", "3")
    assert values["verdict"] == "rounding"


def test_of_equal_copies_the_roundings_of_the_dtype_are_said_to_be_the_measure() -> None:
    values = answered(GOOD, GOOD.replace("0.5", "0.50000001"), "--copies", "3")
    answer, *_ = values["statements"]
    (limit,) = (statement for statement in values["statements"] if statement["kind"] == "limit_copies")
    assert (values["verdict"], answer["kind"], answer["values"]["dtype"]) == ("rounding", "curves_unit", "float32")
    assert answer["values"]["unit"] == limit["values"]["unit"] == 2.0**-21 and limit["values"]["equal"]


@pytest.mark.slow
def test_a_script_that_draws_other_numbers_in_each_run_proves_nothing() -> None:
    values = answered(training("--unseeded"), training("--unseeded"), *MOVED)
    assert values["verdict"] == "cannot tell"
    assert values["statements"][0]["kind"] == "curves_blunt"


@pytest.mark.slow
def test_one_side_without_the_hook_is_judged_by_the_other() -> None:
    values = answered(training("--no-nudge"), training("--shards", "3"), *MOVED)
    assert values["verdict"] == "rounding"
    assert "not_nudged" in [statement["kind"] for statement in values["statements"]]


def test_few_decimals_are_said() -> None:
    values = answered(curve("--digits", "3"), curve("--shards", "3", "--digits", "3"))
    assert values["verdict"] == "same"
    assert [statement["values"]["decimals"] for statement in values["statements"] if statement["kind"] == "digits"] == [3, 3]


def test_a_longer_side_is_no_yes_until_the_first_steps_are_asked_for() -> None:
    values = answered(curve("--steps", "20"), curve())
    assert values["verdict"] == "cannot tell"
    assert answered(curve("--steps", "20"), curve(), "--steps", "20")["verdict"] == "same"


def test_steps_from_0_and_from_1_are_aligned_in_order() -> None:
    lines = [f'{{"step": {step}, "loss": {1 / (step + 1)}}}' for step in range(5)]
    Path("zero.jsonl").write_text("\n".join(lines))
    Path("one.csv").write_text("iter,loss\n" + "".join(f"{step},{1 / step}\n" for step in range(1, 6)))
    values = answered("zero.jsonl", "one.csv")
    assert values["verdict"] == "same" and "in_order" in [statement["kind"] for statement in values["statements"]]


def test_no_number_in_both_ends_the_comparison_and_in_one_is_another_training() -> None:
    def write(name: str, *losses: object) -> str:
        Path(name).write_text("".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in enumerate(losses, 1)))
        return name

    both = answered(write("a.jsonl", 0.5, 0.25, "NaN", 1), write("b.jsonl", 0.5, 0.25, "NaN", 2))
    assert both["verdict"] == "same" and both["steps"] == 2
    one = answered("a.jsonl", write("c.jsonl", 0.5, 0.25, 0.125, 1))
    assert one["verdict"] == "another training" and one["causes"][0]["name"] == "divergence"
    assert "first losses" in refused(write("d.jsonl", "NaN"), "d.jsonl", code=2).stderr


COPIED = """import os, sys
seed = os.environ.get("CONVTWINS_ULP")
if seed is not None:
    open(os.environ["CONVTWINS_ULP_COUNT"], "a").write("5")
moved = 0.0 if seed is None else 1e-6 if int(seed) <= 3 else 4e-6
print('{"step": 1, "loss": %r}' % (1.1234567890123457 + moved + float(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("apart", "verdict", "copies"), [(1e-5, "rounding", 12), (7e-5, "another training", 12), (1e-3, "another training", 3)]
)
def test_a_small_excess_gets_all_copies_before_it_is_another_training(apart: float, verdict: str, copies: int) -> None:
    Path("train.py").write_text(COPIED)
    values = answered(f"{sys.executable} train.py 0", f"{sys.executable} train.py {apart}", *MOVED)
    (limit,) = (statement for statement in values["statements"] if statement["kind"] == "limit_copies")
    assert (values["verdict"], limit["values"]["copies"]) == (verdict, {"A": copies, "B": copies})


def test_a_copy_that_fails_leaves_the_answer_with_the_copies_before_it() -> None:
    Path("train.py").write_text(f"{COPIED}if seed == '5': sys.exit(3)\n")
    message = refused(f"{sys.executable} train.py 0", f"{sys.executable} train.py 1e-5", *MOVED, code=1).stderr
    assert "A failed (exit code 3)" in message and "The answer with 3 copies: another training." in message


# Stored curves.


def test_a_stored_curve_holds_rounding_and_catches_another_training() -> None:
    golden = ("--golden", "golden.json")
    assert answered(training(), *golden, *MOVED)["verdict"] == "stored"
    stored = Path("golden.json").read_bytes()
    assert answered(curve(), *golden)["verdict"] == "same"
    assert answered(curve("--shards", "3"), *golden)["verdict"] == "rounding"
    assert answered(curve("--rate", "0.2"), *golden)["causes"][0]["name"] == "learning-rate"
    assert Path("golden.json").read_bytes() == stored
    Path("golden.json").write_bytes(stored.replace(b'"is_moved": true', b'"is_moved": false'))
    assert "golden.json" in refused(curve(), *golden, code=2).stderr


def test_a_report_is_written_in_all_forms() -> None:
    ended = convtwins("same", curve(), curve("--rate", "0.2"), "--out", "report")
    assert ended.exit_code == 1
    assert {"same.md", "same.html", "same.json", "tables", "plots"} <= {path.name for path in Path("report").iterdir()}
    assert len(Path("report/steps.csv").read_text().splitlines()) == 41
    assert "learning-rate" in Path("report/same.md").read_text()


# Commands that fail.


def fails(program: str) -> str:
    return f"{sys.executable} -c '{program}'"


GOOD = fails('print("{\\"step\\": 1, \\"loss\\": 0.5}")')
OTHER = GOOD.replace("0.5", "0.6")


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        ([fails("raise SystemExit(3)"), GOOD], 1, ["A failed", "exit code 3"]),
        ([GOOD, fails("raise ValueError(42)")], 1, ["B failed", "ValueError: 42"]),
        ([fails("print(1)"), GOOD], 2, ["the output of A", "{losses}"]),
        ([fails(""), GOOD], 2, ["the output of A", "empty"]),
        ([fails("import sys; sys.argv # {losses}"), GOOD], 2, ["{losses}", "none"]),
        ([GOOD, GOOD, "--losses", "nowhere.jsonl"], 2, ["nowhere.jsonl", "--losses"]),
        ([GOOD, GOOD, "--losses", "old.jsonl"], 2, ["wrote no losses", "old.jsonl"]),
        ([GOOD, GOOD, "--loss", "los"], 2, ["los", "step, loss", "--loss"]),
        ([GOOD, OTHER, *MOVED], 1, ["nudge()", "convtwins.ulp", "The answer without copies: another training"]),
        ([fails("import os; os.kill(os.getpid(), 9)"), GOOD], 1, ["A failed", "SIGKILL"]),
    ],
)
def test_a_command_that_gives_no_losses_says_what_to_do(words: list[str], code: int, parts: list[str]) -> None:
    Path("old.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    message = refused(*words, code=code).stderr
    assert [part for part in parts if part not in message] == [], message


def test_a_hook_that_moves_integers_alone_is_noticed() -> None:
    Path("train.py").write_text(
        "import json, sys, numpy\nfrom convtwins.ulp import nudge\nnudge(numpy.arange(3))\n"
        "print(json.dumps({'step': 1, 'loss': 1.0 + len(sys.argv)}))\n"
    )
    message = refused(f"{sys.executable} train.py", f"{sys.executable} train.py 1", *MOVED, code=1).stderr
    assert "no value was moved" in message
