"""The files that users copy: what they start exists."""

import re
import shlex
from pathlib import Path
from typing import Any

import typer
import yaml

from compare.__main__ import app

PROJECT = Path(__file__).parents[2]
WORKFLOW = PROJECT / "docs" / "examples" / "regression.yml"


def steps() -> list[dict[str, Any]]:
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    return job["steps"]


def test_every_command_of_the_workflow_exists_with_its_options() -> None:
    commands = [shlex.split(step["run"]) for step in steps() if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    group: Any = typer.main.get_command(app)
    seen = set()
    for words in commands:
        if words[0] == "make":
            assert set(words[1:]) <= targets
        else:
            assert words[:3] == [".venv/bin/python", "-m", "compare"]
            command = group.get_command(None, words[3])
            assert {word for word in words[4:] if word.startswith("--")} <= {
                option for each in command.params for option in each.opts
            }
        seen.add(words[0])
    assert seen == {"make", ".venv/bin/python"}


def test_the_workflow_has_the_history_the_summary_and_the_artifact() -> None:
    (measure,) = (shlex.split(step["run"]) for step in steps() if "regress" in step.get("run", ""))
    measure.remove("--proof")
    options = dict(zip(measure[4::2], measure[5::2], strict=True))
    assert options["--interleaved"] == "$BASE" and options["--markdown"] == "$GITHUB_STEP_SUMMARY"
    (base,) = (step["env"]["BASE"] for step in steps() if "env" in step)
    assert base == "HEAD^1"  # the branch itself may have moved since the merge was made
    assert int(options["--repeats"]) >= 5
    by_action = {step["uses"].partition("@")[0]: step for step in steps() if "uses" in step}
    assert by_action["actions/checkout"]["with"]["fetch-depth"] == 0
    assert by_action["actions/upload-artifact"]["with"]["path"] == options["--out"]
    assert by_action["actions/upload-artifact"]["if"] == "always()"


def test_every_action_is_pinned_to_a_commit_and_says_its_version() -> None:
    uses = re.findall(r"uses: (\S+)(.*)", WORKFLOW.read_text())
    assert len(uses) == 4
    for action, comment in uses:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) and re.fullmatch(r" # v\d+\.\d+\.\d+", comment)


def test_the_workflow_takes_nothing_of_a_pull_request_into_a_command() -> None:
    assert not any("${{" in step.get("run", "") for step in steps())
