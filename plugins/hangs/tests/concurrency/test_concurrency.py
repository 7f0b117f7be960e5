"""`convtwins concurrency`: what it prints and writes, what it suppresses, and what it refuses."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from convtwins_hangs.concurrency.findings import RULES, parse_suppressions
from tests import hostile_files
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended

PROJECT = Path(__file__).parents[4]
PAGE = PROJECT / "plugins" / "hangs" / "README.md"
HANGS = """\
import torch.distributed as dist


def main(rank):
    dist.init_process_group("gloo")
    if rank == 0:
        dist.barrier(){comment}


if __name__ == "__main__":
    main(dist.get_rank())
"""


FINE = HANGS.replace("    if rank == 0:\n        dist", "    dist").format(comment="")


def check(*words: object, exit_code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = convtwins_json("concurrency", *words, exit_code=exit_code)
    assert found["exit_code"] == exit_code
    return found


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(HANGS.format(comment=""))
    return path


def test_a_finding_is_printed_with_both_ways_as_the_page_shows_it(hanging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hanging.parent)
    done = convtwins("concurrency", hanging.name, "--full")
    _, _, printed = done.output.partition("finding\n")
    assert done.exit_code == 6 and printed.strip() in (PAGE).read_text()
    for part in ("train.py:7: error collective-missing", "rank 0:", "rank 1:", "rank == 0"):
        assert part in printed


def test_a_program_without_findings_ends_with_0(tmp_path: Path) -> None:
    path = tmp_path / "fine.py"
    path.write_text(FINE)
    whole, in_part = check(path), check(path, "--nodes", 2)
    assert whole["findings"] == in_part["findings"] == whole["not_explored"] == [] and whole["explored"]["nodes"] > 2
    assert any(re.search(r"\b2 nodes \(--nodes\)", left) for left in in_part["not_explored"])


def test_json_has_findings_with_their_steps_and_what_was_explored(hanging: Path) -> None:
    found = check(hanging, exit_code=6)
    (finding,) = found["findings"]
    assert (finding["rule"], finding["line"], finding["severity"]) == ("collective-missing", 7, "error")
    assert [path["who"] for path in finding["paths"]] == ["rank 0", "rank 1"]
    assert all({"file", "line", "says"} == step.keys() for path in finding["paths"] for step in path["steps"])
    assert found["explored"]["nodes"] > 0 and found["not_explored"] == []


SARIF: dict[str, Any] = {
    "$schema": str, "version": "2.1.0",
    "runs": [{
        "tool": {"driver": {"name": str, "version": str, "rules": [
            {"id": str, "shortDescription": {"text": str}, "defaultConfiguration": {"level": str}}]}},
        "results": [{
            "ruleId": str, "ruleIndex": int, "level": str, "message": {"text": str},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": str}, "region": {"startLine": int}}}],
        }],
    }],
}  # fmt: skip
"""What SARIF 2.1.0 requires of a log, and what code hosts need to show it."""


def lacks(found: Any, wanted: Any, place: str = "log") -> list[str]:
    """Where a document differs from the structure that is required."""
    if isinstance(wanted, dict):
        missing = [f"{place}.{name}" for name in wanted if name not in found]
        return missing + [
            each for name in wanted if name in found for each in lacks(found[name], wanted[name], f"{place}.{name}")
        ]
    if isinstance(wanted, list):
        return [each for number, one in enumerate(found) for each in lacks(one, wanted[0], f"{place}[{number}]")] or (
            [] if found else [f"{place} is empty"]
        )
    fits = isinstance(found, wanted) if isinstance(wanted, type) else found == wanted
    return [] if fits else [f"{place}: {found!r}"]


def test_sarif_has_the_structure_that_the_standard_requires(hanging: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.sarif"
    assert convtwins("concurrency", hanging, "--sarif", file).exit_code == 6
    log = json.loads(file.read_text())
    assert lacks(log, SARIF) == []
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULES)
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "collective-missing"
    assert result["level"] in ("none", "note", "warning", "error")
    flows = result["codeFlows"][0]["threadFlows"]
    assert [flow["id"] for flow in flows] == ["rank 0", "rank 1"]
    assert all(each["location"]["physicalLocation"]["region"]["startLine"] >= 1 for flow in flows for each in flow["locations"])
    del result["message"]
    assert lacks(log, SARIF) == ["log.runs[0].results[0].message"]


def test_a_sarif_file_that_cannot_be_written_is_refused_and_findings_are_printed(hanging: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("found.sarif")
    places = (
        tmp_path, tmp_path / "pipe", tmp_path / "link", hanging / "found.sarif", tmp_path / "nowhere" / "found.sarif",
        tmp_path / ("a" * 300),
    )  # fmt: skip
    for place in places:
        ended = convtwins("concurrency", hanging, "--sarif", place)
        check_ended(ended, field="--sarif", names=[place])
        assert ended.stdout == ""
    assert not (tmp_path / "nowhere").exists()
    late = convtwins("concurrency", hanging, "--sarif", "/proc/found.sarif")
    check_ended(late, field="--sarif")
    assert "train.py:7:errorcollective-missing" in "".join(late.stdout.split()), "a long path is broken into lines"


@pytest.mark.parametrize(
    ("repository", "working", "uri"),
    [
        ("", "deep", "a%20b/train.py"),
        ("", "", "a%20b/train.py"),
        (None, "", "a%20b/train.py"),
        (None, "a b", "train.py"),
        ("deep", "deep", None),
        (None, "deep", None),
    ],
)
def test_sarif_names_files_below_the_repository_or_the_working_directory_or_absolutely(
    repository: str | None, working: str, uri: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a b", "deep"):
        (tmp_path / folder).mkdir()
    if repository is not None:
        (tmp_path / repository / ".git").mkdir()
    file = tmp_path / "a b" / "train.py"
    file.write_text(HANGS.format(comment=""))
    monkeypatch.chdir(tmp_path / working)
    for word in (file, os.path.relpath(file)):
        assert convtwins("concurrency", word, "--sarif", tmp_path / "found.sarif").exit_code == 6
        (result,) = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
        named = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert named == (uri or file.as_uri()) and ".." not in named


UNKNOWN = """\
import torch.distributed as dist


def main(rank, config):
    dist.init_process_group("gloo")
    for name in config.names:
        if not config.quick and name:
            dist.barrier()
        if rank == 0 and name:
            print(name)


if __name__ == "__main__":
    main(dist.get_rank(), open("config"))
"""


def test_nothing_found_names_the_unknown_decisions_that_it_rests_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.py"
    path.write_text(UNKNOWN)
    monkeypatch.chdir(tmp_path)
    printed = "\n".join(map(str.rstrip, convtwins("concurrency", "train.py", "--full").output.strip().splitlines()))
    assert printed in (PAGE).read_text()
    assert check("train.py")["taken_alike"] == [
        "train.py:6: how many turns config.names has", "train.py:7: not config.quick and name"
    ]  # fmt: skip
    path.write_text(UNKNOWN.replace("config.names", "range(3)").replace("not config.quick and name", "True"))
    assert check("train.py")["taken_alike"] == []


OWN = """\
import torch
import torch.distributed as dist


def main(model, loader):
    dist.init_process_group("gloo")
    for batch in loader:
        loss = model(batch)
        if torch.isnan(loss):{comment}
            continue
        dist.all_reduce(loss)


if __name__ == "__main__":
    main(open("model"), open("loader"))
"""


def test_a_conditional_warning_names_its_condition_and_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.py"
    path.write_text(OWN.format(comment=""))
    monkeypatch.chdir(tmp_path)
    done = convtwins("concurrency", "train.py", "--sarif", "found.sarif", "--full")
    printed = "\n".join(map(str.rstrip, done.output.strip().splitlines()))
    assert done.exit_code == 0
    _, _, warned = printed.partition("warning\n")
    warned, _, _ = warned.partition("\nUnknown")
    assert warned.strip() in (PAGE).read_text()
    found = check("train.py")
    (warning,) = found["conditional"]
    assert found["findings"] == [] and (warning["severity"], warning["rule"]) == ("conditional", "collective-missing")
    assert warning["condition"] == {"file": "train.py", "line": 9, "says": "torch.isnan(loss)"}
    assert not [each for each in found["taken_alike"] if "isnan" in each]
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert lacks(log, SARIF) == [] and [each["level"] for each in log["runs"][0]["results"]] == ["note"]
    path.write_text(OWN.format(comment="  # convtwins: ignore[collective-missing] because the loss is clamped"))
    silent = check("train.py")
    assert (silent["conditional"], len(silent["suppressed"])) == ([], 1)


def test_what_hangs_in_any_case_is_a_finding_beside_a_conditional_warning(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(OWN.format(comment="") + "    if dist.get_rank() == 0:\n        dist.barrier()\n")
    done = check(path, exit_code=6)
    assert [each["line"] for each in done["findings"]] == [17]
    assert [each["severity"] for each in done["conditional"]] == ["conditional"]


LATE = """\
import time
import torch.distributed as dist

def main(rank, config):
    dist.init_process_group("gloo")
    late = time.time() > 9
    if not config.quick:
        dist.barrier()
    if rank == 1 and config.loud == 7:
        print(rank)
    if not late:
        dist.barrier()
    if rank == 0:
        print(1)

main(dist.get_rank(), open("config"))
"""


def test_a_trace_shows_a_test_as_the_source_does_and_blames_where_ranks_took_different_ways(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    path = tmp_path / "train.py"
    path.write_text(LATE)
    (found,) = check(path, exit_code=6)["findings"]
    assert "line 11: not late" in found["message"]
    assert [[f"{step['line']}: {step['says']}" for step in each["steps"]] for each in found["paths"]] == snapshot


@pytest.mark.parametrize(
    ("comment", "code", "rules"),
    [
        ("  # convtwins: ignore[collective-missing] because the other rank has its own barrier", 0, []),
        ("  # convtwins: ignore[race, collective-missing] because nobody minds", 0, []),
        ("  # convtwins: ignore[collective-missing]", 6, ["collective-missing", "suppression"]),
        ("  # convtwins: ignore[collective-missing] because", 6, ["collective-missing", "suppression"]),
        ("  # convtwins: ignore because nobody minds", 6, ["collective-missing", "suppression"]),
        ("  # convtwins: ignore", 6, ["collective-missing", "suppression"]),
        ("  # convtwins: ignore[] because nobody minds", 6, ["collective-missing", "suppression"]),
        ("  # convtwins: ignore[race] because it is another rule", 6, ["collective-missing", "suppression"]),
        ("  # convtwins: ignore[no-such-rule] because of a slip", 6, ["collective-missing", "suppression"]),
    ],
)
def test_a_comment_suppresses_only_with_a_reason(hanging: Path, comment: str, code: int, rules: list[str]) -> None:
    hanging.write_text(HANGS.format(comment=comment))
    found = check(hanging, exit_code=code)
    assert [each["rule"] for each in found["findings"]] == rules
    assert len(found["suppressed"]) == (code == 0)


def test_a_comment_may_stand_above_the_line_or_at_the_branch_where_ranks_part(hanging: Path) -> None:
    said = "# convtwins: ignore[collective-missing] because the test says so"
    above = HANGS.format(comment="").replace("        dist.barrier()", f"        {said}\n        dist.barrier()")
    at_branch = HANGS.format(comment="").replace("rank == 0:", f"rank == 0:  {said}")
    for text in (above, at_branch):
        hanging.write_text(text)
        assert convtwins("concurrency", hanging).exit_code == 0, text
    hanging.write_text(HANGS.format(comment="").replace("def main", f"{said}\ndef main"))
    assert convtwins("concurrency", hanging).exit_code == 6


def test_a_text_that_only_looks_like_a_comment_suppresses_nothing() -> None:
    assert parse_suppressions('x = "# convtwins: ignore[race] because of nothing"\n') == {}


@pytest.mark.parametrize(
    ("name", "content", "line", "names"),
    [
        ("syntax.py", b"x = 1\ndef f(:\n", 2, ["Python"]),
        ("null.py", b"x = 1\n\0", 1, ["Python"]),
        ("bytes.py", b'x = "\xe9"\n', 1, ["Python"]),
        ("coding.py", b"# coding: nonsense\n", 1, ["Python"]),
        ("brackets.py", b"x = " + b"(" * 500 + b")" * 500, 1, ["nested"]),
        ("minus.py", b"x = " + b"-" * 100_000 + b"1", 1, ["nested"]),
        ("chain.py", b"x = a" + b".b(1)" * 900, 1, ["nested"]),
        ("large.py", b"x = 1\n" * 9_000_000, 1, ["54,000,000 bytes"]),
        ("notes.txt", b"hello", None, ["Python"]),
    ],
)
def test_bad_input_is_refused_with_file_and_line(
    tmp_path: Path, name: str, content: bytes, line: int | None, names: list[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    ended = convtwins("concurrency", path)
    check_ended(ended, names=[path if line is None else f"{path}:{line}", *names])
    assert ended.stdout == "" and "Traceback" not in ended.stderr


def test_a_file_that_cannot_be_read_does_not_hide_the_others_of_its_folder(hanging: Path) -> None:
    (hanging.parent / "a.py").write_text("def f(:\n")
    (hanging.parent / "b.py").write_text("x = a" + ".b(1)" * 900)
    found = check(hanging.parent, exit_code=6)
    assert [each["line"] for each in found["findings"]] == [7]
    (invalid, nested) = found["not_explored"]
    assert f"{hanging.parent / 'a.py'}:1: " in invalid and f"{hanging.parent / 'b.py'}:1: " in nested
    hanging.unlink()
    assert convtwins("concurrency", hanging.parent).exit_code == 2


@pytest.mark.parametrize(("word", "shown"), [("a" * 5000, "…"), ("../..\0", "../..")])
def test_a_path_that_cannot_be_is_refused(word: str, shown: str) -> None:
    ended = convtwins("concurrency", word)
    check_ended(ended)
    assert shown in str(ended.refusal.received) and len(ended.stderr) < 500


def test_a_module_is_found_by_its_name_and_nothing_of_it_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit('this was run')\n")
    (tmp_path / "package" / "train.py").write_text(HANGS.format(comment=""))
    monkeypatch.chdir(tmp_path)
    for word in ("package", "package.train"):
        assert [each["file"] for each in check(word, exit_code=6)["findings"]] == ["package/train.py"]


def test_every_rule_is_on_the_page() -> None:
    page = (PAGE).read_text()
    assert [name for name, rule in RULES.items() if f"| `{name}` | {rule.severity} | {rule.description} |" not in page] == []


@pytest.mark.parametrize(
    "text", ["[" * 5000, "ranks: !!bool x", "ranks: !!timestamp 99999999999", "a: &a [*a]", "[ranks]", "\0"]
)
def test_hostile_names_are_refused_in_a_sentence(text: str, hanging: Path, tmp_path: Path) -> None:
    (tmp_path / "names.yaml").write_text(text)
    check_ended(
        convtwins("concurrency", hanging, "--names", tmp_path / "names.yaml"), names=["--names", tmp_path / "names.yaml"]
    )


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_names_in_a_pipe_or_an_endless_file_are_refused(name: str, hanging: Path, tmp_path: Path) -> None:
    said = hostile_files.put(name, tmp_path / "names.yaml")
    with hostile_files.soon():
        done = convtwins("concurrency", hanging, "--names", tmp_path / "names.yaml")
    assert done.exit_code == 2 and f"names.yaml {said}" in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "line", "option"),
    [
        (
            "import horovod.torch as hvd\nhvd.init()\nif hvd.rank() == 0:\n    hvd.allreduce(1)\n",
            *(5, 4, "--collective horovod.torch.allreduce"),
        ),
        ("from mpi4py import MPI\ncomm = MPI.COMM_WORLD\ncomm.Bcast(1)\n", 5, 3, "--collective comm.Bcast"),
        ("import horovod.torch as hvd\nif hvd.local_rank():\n    hvd.exchange(1)\n", 5, 2, "--collective NAME"),
        ("import numpy as np\nprint(np.broadcast_to(1, 3))\n", 0, None, ""),
    ],
)
def test_where_nothing_was_explored_the_answer_is_not_nothing_found(
    text: str, code: int, line: int | None, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    found = check("train.py", exit_code=code)
    assert found["explored"]["roots"] == 0 and "nothing found" not in convtwins("concurrency", "train.py").output
    if line is None:
        assert found["not_explored"] == []
    else:
        (left,) = found["not_explored"]
        assert left.startswith(f"train.py:{line}: ") and option in left


def test_a_call_that_may_be_a_collective_is_said_beside_what_was_explored(hanging: Path) -> None:
    more = FINE.replace("    dist.barrier()", "    dist.barrier()\n    hvd.allgather(1)")
    hanging.write_text(f"import horovod.torch as hvd\n{more}")
    (left,) = check(hanging)["not_explored"]
    assert "horovod.torch.allgather" in left
    assert check(hanging, "--collective", "horovod.torch.allgather")["not_explored"] == []
