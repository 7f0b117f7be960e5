"""The checker on the corpus: programs whose bugs were seen by running them, beside correct ones."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from convtwins_hangs.concurrency import sources
from convtwins_hangs.concurrency.findings import RULES
from convtwins_hangs.concurrency.meanings import KnownNames
from convtwins_hangs.concurrency.program import Program as Checked
from convtwins_hangs.concurrency.search import SearchResult, search
from plugins.hangs.tests.corpus import confirm, generator
from plugins.hangs.tests.corpus.generator import Program
from tests.support import processes

PROJECT = Path(__file__).parents[4]
PROGRAMS = generator.programs()


def found(program: Program, folder: Path, nodes: int) -> SearchResult:
    path = folder / f"{program.name}.py"
    path.write_text(program.text)
    return search(Checked(sources.read(str(path)), KnownNames()), nodes=nodes, seconds=60)


def judged(programs: list[Program], folder: Path, nodes: int = 20_000) -> list[str]:
    """What is said of a program that is not so."""
    wrong: list[str] = []
    for each in programs:
        findings = found(each, folder, nodes).findings
        rules = {finding.rule for finding in findings}
        if {finding.condition is not None for finding in findings} - {each.conditional}:
            wrong.append(f"{each.name}: {', '.join(finding.severity for finding in findings)}")
        expected = set(each.rules) if each.planted else set[str]()
        if rules != expected:
            wrong.append(f"{each.name}: {sorted(rules)} instead of {sorted(expected)}")
    return wrong


def test_the_corpus_has_ten_kinds_of_bug_and_a_third_is_correct() -> None:
    assert len(PROGRAMS) >= 240 and len({each.text for each in PROGRAMS}) == len(PROGRAMS)
    kinds = Counter(rule for each in PROGRAMS if each.planted for rule in each.rules)
    assert len(kinds) >= 10 and set(kinds) <= RULES.keys()
    assert sum(each.planted for each in PROGRAMS) * 3 == len(PROGRAMS) * 2


def test_every_program_was_run_and_did_what_the_generator_says() -> None:
    seen = confirm.seen()
    assert [each.name for each in PROGRAMS if not confirm.is_confirmed(each, seen)] == [], (
        "run `python -m plugins.hangs.tests.corpus.confirm`"
    )
    assert seen.keys() == {each.name for each in PROGRAMS}


def test_a_changed_program_or_another_outcome_is_not_confirmed() -> None:
    correct, planted = (next(each for each in PROGRAMS if each.planted is planted) for planted in (False, True))
    for program, outcome, holds in (
        (correct, confirm.ENDS, True), (correct, confirm.HANGS, False), (planted, confirm.HANGS, True),
        (planted, confirm.ENDS, False), (planted, "", False),
    ):  # fmt: skip
        assert confirm.is_confirmed(program, {program.name: [program.digest, outcome]}) is holds
        assert not confirm.is_confirmed(program, {program.name: ["0" * 16, outcome]})


@pytest.mark.parametrize("family", generator.families())
def test_a_bug_of_each_family_is_found_and_the_correct_program_is_let_through(family: str, tmp_path: Path) -> None:
    assert judged([generator.made(family, seed) for seed in (0, 1)], tmp_path, nodes=3_000) == []


@pytest.mark.slow
def test_all_programs_are_judged_as_they_were_seen(tmp_path: Path) -> None:
    assert judged(PROGRAMS, tmp_path) == []


@pytest.mark.slow
def test_a_hang_is_seen_again(tmp_path: Path) -> None:
    """The harness itself: two programs of each kind, without what was seen before."""
    code = (
        "from pathlib import Path; from plugins.hangs.tests.corpus import confirm, generator\n"
        f"confirm.SEEN_FILE = Path({str(tmp_path / 'seen.json')!r})\n"
        "for family, runs in (('other_order', 'ranks'), ('cache_and_stats', 'threads'), ('counter_of_workers', 'threads')):\n"
        "    confirm._run([generator.made(family, seed) for seed in (0, 1)], runs, confirm.seen())\n"
        "    assert all(confirm.is_confirmed(generator.made(family, seed), confirm.seen()) for seed in (0, 1))\n"
    )
    processes.python("-c", code, PYTHONPATH=str(PROJECT)).succeeded()


@pytest.mark.slow
@pytest.mark.parametrize("package", ["pytorch_impl", "tensorflow_impl", "common", "compare"])
def test_nothing_is_found_in_our_own_code(package: str) -> None:
    files = sources.read(str(PROJECT / package))
    searched = search(Checked(files, KnownNames()), nodes=2_000, seconds=120)
    assert searched.findings == [] and searched.executions > 50
    assert [each for each in searched.unexplored if "failed" in each] == []


def test_the_deadlock_that_runs_are_planted_with_is_found_in_its_source() -> None:
    """That of docs/hangs.md, which tests/twins/test_hangs.py and test_watch.py find in real runs."""
    (found,) = search(
        Checked(sources.read(str(PROJECT / "tests/planted/hanging.py")), KnownNames()), nodes=3_000, seconds=60
    ).findings
    lines = (PROJECT / "tests/planted/hanging.py").read_text().splitlines()
    assert found.rule == "lock-order" and lines[found.line - 1].strip() == "with other:"
    quoted = re.findall(r"hanging\.py:(\d+)", (PROJECT / "docs/hangs.md").read_text("utf-8"))
    assert quoted and set(quoted) == {str(found.line)}


@pytest.mark.parametrize(
    ("file", "line", "planted", "rule"),
    [
        (
            "pytorch_impl/parallel/pipeline.py",
            "            collectives.barrier()\n",
            "            if distributed.get_rank() == 0:\n                collectives.barrier()\n",
            "collective-missing",
        ),
        (
            "pytorch_impl/parallel/pipeline.py",
            "        collectives.all_reduce(counts, self._group)\n",
            "        if distributed.get_rank() > 0:\n            return 0, 0\n        collectives.all_reduce(counts, None)\n",
            "collective-missing",
        ),
        (
            "common/processes/serving.py",
            "            self._write(line)\n",
            "            with self._report_lock:\n                self._write(line)\n",
            "lock-again",
        ),
    ],
)
def test_a_bug_that_is_planted_in_our_own_code_is_found(file: str, line: str, planted: str, rule: str, tmp_path: Path) -> None:
    text = (PROJECT / file).read_text()
    assert text.count(line) == 1
    package = tmp_path / file.split("/")[0]
    package.mkdir()
    for beside in ("__init__.py", "collectives.py"):  # what records and calls the collectives of modes
        if (PROJECT / package.name / beside).exists():
            shutil.copy(PROJECT / package.name / beside, package)
    for changed, expected in ((text, set[str]()), (text.replace(line, planted), {rule})):
        (package / "copy.py").write_text(changed)
        searched = search(Checked(sources.read(str(package)), KnownNames()), nodes=3_000, seconds=60)
        assert {each.rule for each in searched.findings} == expected
