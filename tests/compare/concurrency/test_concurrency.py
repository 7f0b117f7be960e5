"""`convtwins concurrency`: what it prints and writes, what it suppresses, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from compare.concurrency.findings import RULES, parse_suppressions
from tests import hostile_files
from tests.support.command_line import convtwins

PROJECT = Path(__file__).parents[3]
HANGS = """\
import torch.distributed as dist


def main(rank):
    dist.init_process_group("gloo")
    if rank == 0:
        dist.barrier(){comment}


if __name__ == "__main__":
    main(dist.get_rank())
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(HANGS.format(comment=""))
    return path


def test_a_finding_is_printed_with_both_ways_and_ends_with_6(hanging: Path) -> None:
    done = convtwins("concurrency", hanging, "--full")
    assert done.exit_code == 6
    for part in ("train.py:7: error collective-missing", "rank 0:", "rank 1:", "line 6: takes: rank == 0", "does not take"):
        assert part in done.output


def test_the_page_shows_what_is_printed(hanging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hanging.parent)
    _, _, printed = convtwins("concurrency", hanging.name, "--full").output.partition("finding\n")
    assert printed.strip() in (PROJECT / "docs" / "concurrency.md").read_text()


def test_a_program_without_findings_ends_with_0(tmp_path: Path) -> None:
    path = tmp_path / "fine.py"
    path.write_text(HANGS.replace("    if rank == 0:\n        dist", "    dist").format(comment=""))
    done = convtwins("concurrency", path)
    assert done.exit_code == 0 and "nothing found\n" in done.output
    in_part = convtwins("concurrency", path, "--nodes", "2")
    assert in_part.exit_code == 0 and "nothing found in what was explored\n" in in_part.output
    assert "explored in part: 2 nodes (--nodes)" in " ".join(in_part.output.split())


def test_json_has_findings_with_their_steps_and_what_was_explored(hanging: Path) -> None:
    done = convtwins("concurrency", hanging, "--json")
    found = json.loads(done.stdout)
    (finding,) = found["findings"]
    assert (finding["rule"], finding["line"], finding["severity"], found["exit_code"]) == ("collective-missing", 7, "error", 6)
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
    folder = convtwins("concurrency", hanging, "--sarif", tmp_path)
    assert (folder.exit_code, folder.stdout) == (2, "") and "--sarif is a folder" in folder.stderr
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("found.sarif")
    for other in ("pipe", "link"):
        done = convtwins("concurrency", hanging, "--sarif", tmp_path / other)
        assert (done.exit_code, done.stdout) == (2, "") and "--sarif must be a plain file" in done.stderr
    for nowhere in (hanging / "found.sarif", tmp_path / "nowhere" / "found.sarif"):
        done = convtwins("concurrency", hanging, "--sarif", nowhere)
        assert (done.exit_code, done.stdout) == (2, "") and "must lie in a folder that exists" in done.stderr
    assert not (tmp_path / "nowhere").exists()
    long = convtwins("concurrency", hanging, "--sarif", tmp_path / ("a" * 300))
    assert (long.exit_code, long.stdout) == (2, "") and "--sarif cannot be written" in long.stderr
    late = convtwins("concurrency", hanging, "--sarif", "/proc/found.sarif")
    assert late.exit_code == 2 and "--sarif cannot be written" in late.stderr
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
    assert printed in (PROJECT / "docs" / "concurrency.md").read_text()
    monkeypatch.undo()
    done = convtwins("concurrency", path)
    assert done.exit_code == 0 and "nothing found, if 2 unknown decisions are the same on all ranks\n" in done.output
    said = [f"{path}:6: how many turns config.names has", f"{path}:7: not config.quick and name"]
    assert json.loads(convtwins("concurrency", path, "--json").stdout)["taken_alike"] == said
    path.write_text(UNKNOWN.replace("config.names", "range(3)").replace("not config.quick and name", "True"))
    assert "nothing found\n" in convtwins("concurrency", path).output


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
    assert done.exit_code == 0 and "nothing found" in printed and "1 conditional warning" in printed
    _, _, warned = printed.partition("warning\n")
    warned, _, _ = warned.partition("\nUnknown")
    assert warned.strip() in (PROJECT / "docs" / "concurrency.md").read_text()
    found = json.loads(convtwins("concurrency", "train.py", "--json").stdout)
    (warning,) = found["conditional"]
    assert found["findings"] == [] and (warning["severity"], warning["rule"]) == ("conditional", "collective-missing")
    assert warning["condition"] == {"file": "train.py", "line": 9, "says": "torch.isnan(loss)"}
    assert not [each for each in found["taken_alike"] if "isnan" in each]
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert lacks(log, SARIF) == [] and [each["level"] for each in log["runs"][0]["results"]] == ["note"]
    path.write_text(OWN.format(comment="  # convtwins: ignore[collective-missing] because the loss is clamped"))
    silent = json.loads(convtwins("concurrency", "train.py", "--json").stdout)
    assert (silent["conditional"], len(silent["suppressed"])) == ([], 1)


def test_what_hangs_in_any_case_is_a_finding_beside_a_conditional_warning(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(OWN.format(comment="") + "    if dist.get_rank() == 0:\n        dist.barrier()\n")
    done = json.loads(convtwins("concurrency", path, "--json").stdout)
    assert (done["exit_code"], [each["line"] for each in done["findings"]]) == (6, [17])
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


def test_a_trace_shows_a_test_as_the_source_does_and_blames_where_ranks_took_different_ways(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LATE)
    (found,) = json.loads(convtwins("concurrency", path, "--json").stdout)["findings"]
    assert found["message"].endswith("They may part in line 11: not late.")
    ways = [[step["says"] for step in each["steps"]] for each in found["paths"]]
    assert {"takes: not late", "assumes true: not config.quick"} <= set(ways[0])
    assert {"does not take: not late", "assumes true: not config.quick"} <= set(ways[1])


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
    done = convtwins("concurrency", hanging, "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, [each["rule"] for each in found["findings"]]) == (code, rules)
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
    ("name", "content", "said"),
    [
        ("syntax.py", b"x = 1\ndef f(:\n", "syntax.py:2: this is not valid Python"),
        ("null.py", b"x = 1\n\0", "null.py:1: this is not valid Python"),
        ("bytes.py", b'x = "\xe9"\n', "bytes.py:1: this is not valid Python"),
        ("coding.py", b"# coding: nonsense\n", "coding.py:1: this is not valid Python"),
        ("brackets.py", b"x = " + b"(" * 500 + b")" * 500, "brackets.py:1: this is not valid Python (too many nested"),
        ("minus.py", b"x = " + b"-" * 100_000 + b"1", "minus.py:1: the code is nested too deeply"),
        ("chain.py", b"x = a" + b".b(1)" * 900, "chain.py:1: the code is nested too deeply"),
        ("large.py", b"x = 1\n" * 9_000_000, "large.py:1: this file is too large. Received: 54,000,000 bytes"),
        ("notes.txt", b"hello", "is not a Python file"),
    ],
)
def test_bad_input_is_refused_with_file_and_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    done = convtwins("concurrency", path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_file_that_cannot_be_read_does_not_hide_the_others_of_its_folder(hanging: Path) -> None:
    (hanging.parent / "a.py").write_text("def f(:\n")
    (hanging.parent / "b.py").write_text("x = a" + ".b(1)" * 900)
    done = convtwins("concurrency", hanging.parent, "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 6 and [each["line"] for each in found["findings"]] == [7]
    assert [each.partition("/a.py")[2] or each.partition("/b.py")[2] for each in found["not_explored"]] == [
        ":1: this is not valid Python (invalid syntax). Mend it, or leave it out",
        ":1: the code is nested too deeply to be read. Leave it out",
    ]
    hanging.unlink()
    assert convtwins("concurrency", hanging.parent).exit_code == 2


@pytest.mark.parametrize("word", ["nowhere.py", "no.such.module", "a" * 5000, "../..\0", ""])
def test_a_path_that_is_not_there_is_refused(word: str) -> None:
    done = convtwins("concurrency", word or "nothing at all")
    assert done.exit_code == 2 and "There is no such path or module" in done.stderr


def test_other_bad_words_are_refused(hanging: Path, tmp_path: Path) -> None:
    (tmp_path / "names.yaml").write_text("collectives: 3")
    (tmp_path / "other.yaml").write_text("colectives: [horovod.torch.allreduce]\nranks: [place]")
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "empty").mkdir()
    for words, said in (
        (("--collective", "not a name"), "--collective must be a name"),
        (("--names", tmp_path / "names.yaml"), "--names must hold lists"),
        (
            ("--names", tmp_path / "other.yaml"),
            "--names has an unknown key. Received: 'colectives'. Use collectives, ranks, sizes",
        ),
        (("--names", tmp_path / "broken.yaml"), "broken.yaml is not valid yaml"),
        (("--names", tmp_path / "nowhere.yaml"), "file of --names cannot be read"),
    ):
        done = convtwins("concurrency", hanging, *words)
        assert done.exit_code == 2 and said in done.stderr
    assert "has no Python files" in convtwins("concurrency", tmp_path / "empty").stderr


def test_a_module_is_found_by_its_name_and_nothing_of_it_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit('this was run')\n")
    (tmp_path / "package" / "train.py").write_text(HANGS.format(comment=""))
    monkeypatch.chdir(tmp_path)
    for word in ("package", "package.train"):
        done = convtwins("concurrency", word, "--json")
        assert [each["file"] for each in json.loads(done.stdout)["findings"]] == ["package/train.py"]


def test_every_rule_is_on_the_page() -> None:
    page = (PROJECT / "docs" / "concurrency.md").read_text()
    assert [name for name, rule in RULES.items() if f"| `{name}` | {rule.severity} | {rule.description} |" not in page] == []


@pytest.mark.parametrize(
    "text", ["[" * 5000, "ranks: !!bool x", "ranks: !!timestamp 99999999999", "a: &a [*a]", "[ranks]", "\0"]
)
def test_hostile_names_are_refused_in_a_sentence(text: str, hanging: Path, tmp_path: Path) -> None:
    (tmp_path / "names.yaml").write_text(text)
    done = convtwins("concurrency", hanging, "--names", tmp_path / "names.yaml")
    assert done.exit_code == 2 and f"file of --names {tmp_path / 'names.yaml'} " in done.stderr


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_names_in_a_pipe_or_an_endless_file_are_refused(name: str, hanging: Path, tmp_path: Path) -> None:
    said = hostile_files.put(name, tmp_path / "names.yaml")
    with hostile_files.soon():
        done = convtwins("concurrency", hanging, "--names", tmp_path / "names.yaml")
    assert done.exit_code == 2 and f"names.yaml {said}" in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "said", "unsaid"),
    [
        ("import horovod.torch as hvd\nhvd.init()\nif hvd.rank() == 0:\n    hvd.allreduce(1)\n", 5,
         "train.py:4: horovod.torch.allreduce may be a collective. Name it: --collective horovod.torch.", "rank. Name"),
        ("from mpi4py import MPI\ncomm = MPI.COMM_WORLD\ncomm.Bcast(1)\n", 5, "comm.Bcast may be a collective", "rank. Name"),
        ("import horovod.torch as hvd\nif hvd.local_rank():\n    hvd.exchange(1)\n", 5,
         "horovod.torch.local_rank asks for a rank. Name the collectives: --collective NAME", "may be"),
        ("import numpy as np\nprint(np.broadcast_to(1, 3))\n", 0, "0 roots", "Not explored"),
    ],
)  # fmt: skip
def test_where_nothing_was_explored_the_answer_is_not_nothing_found(
    text: str, code: int, said: str, unsaid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = convtwins("concurrency", "train.py")
    words = " ".join(done.output.split())
    assert done.exit_code == code and "nothing explored: no thread, lock or collective is known here" in words
    assert said in words and unsaid not in words and "nothing found" not in words


def test_a_call_that_may_be_a_collective_is_said_beside_what_was_explored(hanging: Path) -> None:
    fine = HANGS.replace("    if rank == 0:\n        dist", "    dist").format(comment="")
    hanging.write_text(
        "import horovod.torch as hvd\n" + fine.replace("    dist.barrier()", "    dist.barrier()\n    hvd.allgather(1)")
    )
    done = convtwins("concurrency", hanging)
    assert done.exit_code == 0 and "nothing found in what was explored" in done.output
    assert "horovod.torch.allgather may be a collective" in " ".join(done.output.split())
    named = convtwins("concurrency", hanging, "--collective", "horovod.torch.allgather")
    assert named.exit_code == 0 and "nothing found\n" in named.output
