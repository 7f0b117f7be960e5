"""The files that users copy or build: the example workflow, the action that it uses, and the Dockerfile."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from compare.__main__ import MODULES, app
from tests.support import processes, trees

PROJECT = Path(__file__).parents[2]
WORKFLOW = PROJECT / "docs" / "examples" / "regression.yml"
BENCHMARKS = WORKFLOW.with_name("benchmarks.yml")
ACTION = PROJECT / "action.yml"
PLACEHOLDER = "OWNER/convtwins@COMMIT"
"""Stands for the action in a workflow of another project."""
DOCKERFILE = PROJECT / "Dockerfile"


def job(path: Path = WORKFLOW) -> list[dict[str, Any]]:
    (job,) = yaml.safe_load(path.read_text())["jobs"].values()
    return job["steps"]


def action() -> dict[str, Any]:
    return yaml.safe_load(ACTION.read_text())


def measuring() -> dict[str, Any]:
    return step_of("Measure base and head in turn")


def step_of(name: str) -> dict[str, Any]:
    (step,) = (step for step in action()["runs"]["steps"] if step.get("name") == name)
    return step


@pytest.mark.skipif("regress" not in MODULES, reason="the tool was taken away")
def test_every_command_of_the_action_exists_with_its_options() -> None:
    script = measuring()["run"].replace("\\\n", "")
    (line,) = (line for line in script.splitlines() if " regress --interleaved" in line)
    words = shlex.split(line.partition("2>&1")[0]) + shlex.split(action()["inputs"]["options"]["default"])
    group: Any = typer.main.get_command(app)
    command = group.get_command(None, words[1])
    known = {option for each in command.params for option in each.opts}
    assert {word for word in words if word.startswith("--")} <= known
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    (made,) = (step["run"] for step in action()["runs"]["steps"] if step.get("run", "").startswith("make"))
    assert set(made.split()[1:]) <= targets


def test_the_workflow_has_the_history_and_the_action_the_summary_and_the_artifact() -> None:
    checkout, regress = job()
    assert checkout["uses"].startswith("actions/checkout@") and checkout["with"]["fetch-depth"] == 0
    assert regress["uses"] == "./" and set(regress["with"]) <= set(action()["inputs"])
    assert regress["with"]["base"] == "HEAD^1"  # the branch itself may have moved since the merge was made
    assert int(regress["with"]["repeats"]) >= 5
    assert '--interleaved "$BASE"' in measuring()["run"] and '--markdown "$GITHUB_STEP_SUMMARY"' in measuring()["run"]
    (upload,) = (step for step in action()["runs"]["steps"] if "upload-artifact" in step.get("uses", ""))
    assert upload["with"]["path"] == "${{ inputs.out }}" and upload["if"].startswith("${{ always()")


@pytest.mark.parametrize(("path", "count"), [(WORKFLOW, 1), (BENCHMARKS, 1), (ACTION, 2)])
def test_every_action_of_others_is_pinned_to_a_commit_and_says_its_version(path: Path, count: int) -> None:
    uses = [found for found in re.findall(r"uses: (\S+)(.*)", path.read_text()) if found[0] not in ("./", PLACEHOLDER)]
    assert len(uses) == count
    for name, comment in uses:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", name) and re.fullmatch(r" # v\d+\.\d+\.\d+", comment)


def test_nothing_of_a_pull_request_gets_into_a_command() -> None:
    assert not any("${{" in step.get("run", "") for step in [*job(), *job(BENCHMARKS), *action()["runs"]["steps"]])


@pytest.mark.parametrize(
    ("code", "summary", "expected"),
    [
        (0, "No regression.", "No regression.\n"),
        (3, "REGRESSION", "REGRESSION\n"),
        (2, "", "### Nothing was measured (exit code 2)\n```\ngit knows no revision 'HEAD^1'.\n```\n"),
    ],
)
def test_the_action_writes_the_verdict_to_the_summary_and_passes_the_exit_code_on(
    code: int, summary: str, expected: str, tmp_path: Path
) -> None:
    command = tmp_path / ".venv" / "bin" / "convtwins"
    command.parent.mkdir(parents=True)
    command.write_text(
        '#!/bin/sh\necho "$@" > words\n'
        'while [ "$1" != --markdown ]; do shift; done\n'
        + (f'echo "{summary}" >> "$2"\n' if summary else "echo \"git knows no revision 'HEAD^1'.\" >&2\n")
        + f"exit {code}\n"
    )
    command.chmod(0o755)
    written = {name: tmp_path / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    for path in written.values():
        path.touch()
    inputs = {name: str(value["default"]) for name, value in action()["inputs"].items()} | {"options": "--proof --epochs 2"}
    given = {name: inputs[re.findall(r"inputs\.(\w+)", value)[0]] for name, value in measuring()["env"].items()}
    done = processes.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", measuring()["run"]],
        folder=tmp_path, **{name: str(path) for name, path in written.items()}, **given,
    )  # fmt: skip
    assert done.exit_code == code, done.stderr
    assert written["GITHUB_STEP_SUMMARY"].read_text() == expected
    assert written["GITHUB_OUTPUT"].read_text() == f"exit-code={code}\n"
    words = "regress --interleaved HEAD^1 --repeats 7 --threshold 5% --proof --epochs 2 --out results/regress --markdown"
    assert (tmp_path / "words").read_text() == f"{words} {written['GITHUB_STEP_SUMMARY']}\n"


def test_the_action_measures_benchmarks_without_a_framework_and_without_the_proof(tmp_path: Path) -> None:
    checkout, regress = job(BENCHMARKS)
    assert checkout["with"]["fetch-depth"] == 0 and set(regress["with"]) <= set(action()["inputs"])
    assert regress["uses"] == PLACEHOLDER  # another project has no action.yml
    command = tmp_path / "convtwins" / "bin" / "convtwins"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > words\n')
    command.chmod(0o755)
    inputs = {name: str(value["default"]) for name, value in action()["inputs"].items()} | regress["with"]
    given = {name: inputs[re.findall(r"inputs\.(\w+)", value)[0]] for name, value in measuring()["env"].items()}
    written = {name: str(tmp_path / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    (tmp_path / "GITHUB_STEP_SUMMARY").touch()
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", measuring()["run"]]
    processes.run(script, folder=tmp_path, RUNNER_TEMP=str(tmp_path), **given, **written).succeeded()
    words = (tmp_path / "words").read_text().splitlines()
    assert words[words.index("--pytest") + 1] == "benchmarks/" and "--proof" not in words and "--python" in words
    assert "convtwins[" not in step_of("Set up for benchmarks")["run"]


GH = """#!/usr/bin/env python3
# Lists the comments that the filter of --jq selects, as gh does. It knows two conditions: a login, and how a comment begins.
import json, pathlib, re, sys
with open("calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
if "--paginate" in sys.argv:
    query = sys.argv[sys.argv.index("--jq") + 1]
    login, start = re.search(r'user.login == "(.*?)"', query), re.search(r'startswith[(]"(.*?)"', query)
    for comment in json.loads(pathlib.Path("comments.json").read_text()):
        if (not login or comment["user"]["login"] == login[1]) and (not start or comment["body"].startswith(start[1])):
            print(comment["id"])
"""


def commented(folder: Path, comments: Sequence[tuple[int, str, str]], report: str | None) -> tuple[str, str]:
    """Run the step that comments. Returns its last call of gh, and the comment.

    Args:
        comments: (id, login, body) of each comment of the pull request.
        report: what regress has written. None: it was not started.
    """
    gh = trees.write(folder, {"bin/gh": GH}) / "bin" / "gh"
    gh.chmod(0o755)
    listed = [{"id": number, "user": {"login": login}, "body": body} for number, login, body in comments]
    trees.write(folder, {"comments.json": json.dumps(listed)} | ({} if report is None else {"convtwins-regress.md": report}))
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step_of("Comment")["run"]]
    given = {
        "RUNNER_TEMP": str(folder),
        "GITHUB_REPOSITORY": "a/b",
        "NUMBER": "7",
        "PATH": f"{gh.parent}:{os.environ['PATH']}",
    }
    processes.run(script, folder=folder, **given).succeeded()
    return (folder / "calls").read_text().splitlines()[-1], (folder / "convtwins-comment.md").read_text()


def test_the_verdict_is_one_comment_that_is_updated_in_place(tmp_path: Path) -> None:
    first = "<!-- convtwins verdict -->"
    others = [(10, "somebody", f"{first}\nquoted"), (11, "github-actions[bot]", "of another step")]
    call, body = commented(tmp_path, others, "No regression.\n")
    assert "--method POST repos/a/b/issues/7/comments" in call and body == f"{first}\nNo regression.\n"
    call, _ = commented(tmp_path, [*others, (12, "github-actions[bot]", f"{first}\nold")], "No regression.\n")
    assert "--method PATCH repos/a/b/issues/comments/12" in call


def test_a_comment_never_keeps_an_old_verdict_and_has_whole_lines(tmp_path: Path) -> None:
    _, body = commented(tmp_path / "failed", [], None)
    assert "Nothing was measured" in body
    row = "| größer | 1.2 |"
    _, body = commented(tmp_path / "long", [], f"{row}\n" * 5000)
    lines = body.splitlines()
    assert {*lines[1:-2]} == {row} and "summary" in lines[-1] and 50_000 < len(body.encode()) < 65_536
    assert "head.repo.fork" in step_of("Comment")["if"]


def hadolint() -> str:
    found = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip("hadolint is not installed (requirements.lock has it)")
    return found


def test_the_dockerfile_has_nothing_that_the_linter_objects_to() -> None:
    processes.run([hadolint(), "--no-color", DOCKERFILE]).succeeded()


def test_the_linter_objects_to_a_planted_defect(tmp_path: Path) -> None:
    planted = tmp_path / "Dockerfile"
    planted.write_text(DOCKERFILE.read_text().replace(" --no-cache-dir", ""))
    done = processes.run([hadolint(), "--no-color", planted])
    assert done.exit_code == 1 and "DL3042" in done.stdout


def test_the_dockerfile_copies_what_is_there_and_starts_the_command() -> None:
    text = DOCKERFILE.read_text()
    (lock,) = re.findall(r"^ARG LOCK=(.*)$", text, re.MULTILINE)
    assert (PROJECT / lock).is_file() and "--require-hashes" in text and 'ENTRYPOINT ["convtwins"]' in text
    kept = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert ".git" not in kept  # the package takes its commit from there


@pytest.mark.slow
def test_the_image_is_built_and_says_its_commit() -> None:
    builders = [name for name in ("docker", "podman") if shutil.which(name)]
    builders = [name for name in builders if processes.run([name, "info"]).exit_code == 0]
    if not builders:
        pytest.skip("no builder of images works here (docker or podman)")
    build = [builders[0], "build", "--tag", "convtwins-test", PROJECT]
    processes.run(build, timeout=3600).succeeded()
    try:
        told = processes.run([builders[0], "run", "--rm", "convtwins-test", "--version"]).succeeded().stdout
        assert re.match(r"convtwins \S+, commit [0-9a-f]{40}", told)
    finally:
        processes.run([builders[0], "image", "rm", "convtwins-test"])
